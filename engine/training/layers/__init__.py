"""Training of drafters made of a target's own layers (`engine.pairs.layers`)."""
