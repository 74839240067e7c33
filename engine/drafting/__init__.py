"""Drafts without a model (copies, n-grams), and the shapes of token trees."""
