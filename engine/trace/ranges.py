"""Ranges of the numbers in a trace, checked where a file is read. Standard library only.

A number becomes a length, a position or a time of views: so none of them loops or counts without
an end. -1 stands for a number that is unknown or does not apply.
"""

from __future__ import annotations

from typing import Annotated

from specscope.engine.schema import Range

MOST_TIME = 10**18
"""31 years in nanoseconds; three such times add up within 64 bits."""
MOST_TOKENS = 2**27
"""The longest context of a model that is opened."""
LONGEST_DRAFT = 1024
"""Of a file that counts verifications by their accepted tokens."""
NO_TOKEN = -1
"""The id of a token that is not named."""
MOST_TOKEN = 2**31 - 1
"""Largest token id."""
MOST_PROMPTS = 10_000
MOST_WHOLE = 2**53 - 1
"""The largest whole number that JavaScript knows exactly, and so every reader of a trace."""
MOST_DEVICES = 1024

Time = Annotated[int, Range(0, MOST_TIME, big=True)]
"""Nanoseconds since the run's start."""
Count = Annotated[int, Range(0, MOST_TOKENS)]
"""Of tokens, steps, layers or levels."""
Place = Annotated[int, Range(-1, MOST_TOKENS)]
"""Of a sequence, a node or a token among others."""
Id = Annotated[int, Range(-1, MOST_WHOLE)]
"""Of a span, or a count of rows."""
Size = Annotated[int, Range(0, MOST_WHOLE, big=True)]
"""A number that nothing is counted up to: cells, bytes, tokens of a server."""
Number = Annotated[int, Range(0, MOST_WHOLE)]
"""A span's number, or such a number that is small: n-grams, occurrences."""
TokenId = Annotated[int, Range(-1, MOST_TOKEN)]
Share = Annotated[float, Range(0, 1.01)]
"""A probability; softmax of float32 may exceed 1 by a rounding."""
Amount = Annotated[float, Range(0, MOST_WHOLE)]
"""Watts, cores, expected tokens."""
