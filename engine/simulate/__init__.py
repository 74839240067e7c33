"""Virtual clusters: latency profiles, token sources without a model, and closed forms."""
