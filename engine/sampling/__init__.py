"""Which token: keyed draws, rows of p and q, and the acceptance rules."""
