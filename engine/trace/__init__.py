"""The trace: events, all of them in memory and in a file."""
