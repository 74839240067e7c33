"""What-if: the drafts and decisions of a stored run, replayed under other settings."""
