"""Runs that SpecScope ships: the first page's race, the History's example."""
