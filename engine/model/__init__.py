"""Models: loading, the decoder over packed rows, its KV cache, and the pair's tokenizer."""
