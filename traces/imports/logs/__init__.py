"""What engines print: their logs, counters and summaries as windows of counts with times."""
