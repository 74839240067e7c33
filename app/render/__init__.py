"""Pure functions that return HTML for runs and traces."""
