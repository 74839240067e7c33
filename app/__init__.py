"""The playground and the command line."""
