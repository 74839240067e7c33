"""Stored runs: an SQLite file, its tables, its reading in parts, and runs in progress."""
