"""Between page and engine: the queue of runs, downloads, followed files, runs by name."""
