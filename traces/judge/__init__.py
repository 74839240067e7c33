"""Judgements in words: which run is faster and why, what would help, what contradicts the rules."""
