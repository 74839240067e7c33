"""The trace of a run: its events, in memory and in a file."""
