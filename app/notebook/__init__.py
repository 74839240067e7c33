"""What a notebook calls and shows: `engine.compare`, `engine.sweep`, `engine.diff`, traces."""
