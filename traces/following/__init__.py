"""What other programs write meanwhile: a trace file, a folder of recordings, a log, counters."""
