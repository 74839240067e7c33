"""A target and its drafters: found, downloaded, converted, loaded; their tokenizer and chat template."""
