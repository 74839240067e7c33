"""The papers' tables and figures, row by row: published numbers beside computed ones."""
