"""Many requests as one thing: what came in together, computed from the runs when it is read."""
