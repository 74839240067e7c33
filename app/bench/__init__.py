"""The bench: speed, tracing and memory, compared with transformers and between methods."""
