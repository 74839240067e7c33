"""Virtual clusters: latency profiles, and tokens without a model."""
