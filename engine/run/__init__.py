"""A run as its method sees it (prefix, models, scores, `commit`), and the dispatcher behind it."""
