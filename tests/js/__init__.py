"""Unit tests of the viewer's pure scripts."""
