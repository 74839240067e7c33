"""From runs and traces to HTML. Pure functions."""
