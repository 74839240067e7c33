"""Drafts that no model makes."""
