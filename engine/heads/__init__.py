"""Drafting heads on disk: their form, and published checkpoints brought into it."""
