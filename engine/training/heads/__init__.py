"""Training of drafting heads: Medusa, Hydra, EAGLE, and the parallel drafters of ParallelSpec."""
