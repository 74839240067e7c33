"""A target and its drafters: where they are, their weights, tokenizer and chat template."""
