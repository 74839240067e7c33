"""Training of the bundled pair: data, tokenizer, target, drafter, and the model card."""
