"""Small planted faults of the product, and a command that says which tests find them."""
