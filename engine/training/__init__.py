"""Training of pairs, drafters and heads: data, tokenizer, recipes, checkpoints, model cards."""
