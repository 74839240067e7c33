"""The decoder over packed rows, its weights and its KV cache."""
