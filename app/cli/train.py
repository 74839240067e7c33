"""Train and measure models: a pair from text, a drafter, drafting heads for a target."""

from specscope.engine.training.cli import add_arguments, run

__all__ = ["OPTIONS", "run"]
OPTIONS = (add_arguments,)
