"""Drafting heads: their files, their modules, how each kind drafts and how it is trained."""
