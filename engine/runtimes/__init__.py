"""Where a worker runs: a thread, a process, virtual time, Ray; groups and pipelines of workers."""
