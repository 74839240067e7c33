"""The bench: ratios to transformers and between our own methods, measured in turn within one run."""
