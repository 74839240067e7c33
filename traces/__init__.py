"""Stored runs: tables, metrics, exports."""
