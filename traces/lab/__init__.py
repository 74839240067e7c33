"""Sweeps of a method's settings: axes, cells with their spread, and the papers' points."""
