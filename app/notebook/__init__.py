"""What a notebook calls and shows: `compare`, `sweep`, `diff` and traces."""
