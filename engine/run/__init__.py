"""What a method sees of a run: prefixes, models, scores and `commit`."""
