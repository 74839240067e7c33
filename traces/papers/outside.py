"""Tables of others, predicted in two ways; nothing is fitted to them.

First with the round costs that ParallelSpec's Table 1 implies. Then on the virtual cluster: the
forwards of a round in the profile of the GPU, with the methods' published shapes.

nano-PEARL's table: PEARL on an H200, the target on two more, from its printed mean accepted tokens.
MAT is 1 for plain decoding, so it counts the target's own token: the acceptance rate is 1 - 1 /
MAT. The drafter's time is that of its weights on an H200 and, for each layer, of the target's
launches; gamma is round(c), which nano-PEARL chooses for each batch size. A step takes plain
decoding's printed time of AIME, the data with the shortest prompts, at its batch size, and a row
more what plain decoding's rows cost from batch 1 to 32. What plain decoding of other data takes
longer is prefill. PEARL's run has the same prompts and more tokens, so less prefill per token; both
numbers of tokens are printed. No speed-up of PEARL is used.

ArcticInference's speeds are not predicted: how often its texts repeat is not printed.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from specscope.engine.heads.work import Work
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.roofline import PublishedModel
from specscope.engine.simulate.shapes import with_shape
from specscope.traces.facts.closed_forms import pearl_tokens
from specscope.traces.papers.parallelspec import round_cost
from specscope.traces.papers.rows import Paper, numbers

_CONTEXT = 500
"""Cached rows of a forward; a prompt of Spec-Bench with half of its answer."""
_DATA = numbers("outside")
_TABLE = _DATA["nano-PEARL, H200"]
_PLAIN = 2
_WIDEST = 32
_SHORT = "AIME"
"""The data with the shortest prompts."""
_TARGET_GPUS = 2


class RoundForwards(NamedTuple):
    """Forwards of a round."""

    drafts: int
    heads: tuple[Work, ...]
    rows: int


SHAPES = {
    "EAGLE": RoundForwards(0, (Work(1, 2),) * 5, 26),  # five levels of its tree of 25 nodes
    "Hydra": RoundForwards(
        0, tuple(Work(0, 2 * (i + 2)) for i in range(4)), 64
    ),  # four heads, a tree of 63 nodes
    "Medusa": RoundForwards(0, (Work(0, 5, 5),), 64),  # five heads, a tree of 63 nodes
    "PLD": RoundForwards(0, (), 11),  # ten copied tokens
    "SpS": RoundForwards(5, (), 6),  # five drafts
    "Lookahead": RoundForwards(0, (), 57),  # window 7 and guess set 7, four rows each, and the last token
}
"""Rounds of Spec-Bench's methods, with the settings of ParallelSpec, section 5.1."""


def profile_cost(method: str, profile: str) -> float:
    latency, shape = Profile.load(profile).latency(), SHAPES[method]
    drafting = shape.drafts * latency("drafter", 1, _CONTEXT)
    heads = sum(latency.head(work, 1, _CONTEXT) for work in shape.heads)
    verification = latency("target", shape.rows, _CONTEXT) + latency.sample_us
    return (drafting + heads + verification) / latency("target", 1, _CONTEXT)


def predicted(name: str) -> float:
    """Return the speed-up over plain decoding of a row of nano-PEARL's table, from its inputs."""
    pair, data, batch = _parts(name)
    _, accepted, plain, longer = _TABLE[name]
    rate, step, whole = 1 - 1 / accepted, _step_ms(pair, batch), 1e3 * batch / plain
    drafter = drafter_ms(pair)
    gamma = max(1, round(step / drafter))
    post = rate / (1 + rate - rate**gamma)
    more = batch * post * (gamma - 1)
    together = max(gamma * drafter, step + more * row_ms(pair))
    prefill = max(0.0, whole - step) if data != _SHORT else 0.0
    return whole / (prefill / longer + together / pearl_tokens(rate, gamma))


def _parts(name: str) -> tuple[str, str, int]:
    pair, data, batch = name.split(", ")
    return pair, data, int(batch.removeprefix("batch "))


def _step_ms(pair: str, batch: int) -> float:
    """Return plain decoding's milliseconds of a step, with hardly any prefill."""
    return 1e3 * batch / _TABLE[f"{pair}, {_SHORT}, batch {batch}"][_PLAIN]


@cache
def drafter_ms(pair: str) -> float:
    """Return the milliseconds of a drafter's forward: its roofline, and the target's launches."""
    hardware = Profile.load("H200").hardware
    family, _, names = pair.rpartition(" ")
    drafter, target = names.split("/")
    speed = 1e3 / _step_ms(pair, 1)
    launch = _model(family, target, _TARGET_GPUS, speed).launch_us(hardware)
    own = _model(family, drafter, 1, speed)
    return (own.roofline_us(hardware, 1, 0) + own.layers * launch) / 1e3


def row_ms(pair: str) -> float:
    """Return the milliseconds of a row more, from plain decoding at batch 1 and 32."""
    return (_step_ms(pair, _WIDEST) - _step_ms(pair, 1)) / (_WIDEST - 1)


def _model(family: str, name: str, gpus: int, speed: float) -> PublishedModel:
    shape = with_shape({"shape": _DATA["shapes"][family][name]}, "")
    return PublishedModel(**shape, dtype="bfloat16", gpus=gpus, speed=speed, split="tensor")


PAPER = Paper(
    "outside",
    {
        "cost of a round": lambda c: c.others["accepted"] / round_cost(c.row),
        "round of the profile": lambda c: c.others["accepted"] / profile_cost(c.row, c.line["profile"]),
        "PEARL": lambda c: predicted(c.row),
        "ratio": lambda c: {"ratio": (c.number or 0.0) - 1},
    },
)
