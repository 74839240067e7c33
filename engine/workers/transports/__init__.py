"""How a worker is reached: a thread, a process, virtual time; a group or a pipeline of workers."""
