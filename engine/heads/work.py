"""The size of a forward of a drafting head. Without torch: latency models and tables read it."""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """The size of one forward of a head, from which latency models compute its time."""

    layers: int
    squares: float
    """Products with a D x D matrix outside the layers."""
    heads: float = 1
    """Products with a V x D matrix; an LM head of N of the tokens counts as N / V."""
    outputs: int = 0
    """Rows of logits; 0 if there is one per row."""
