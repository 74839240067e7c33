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

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from specscope.engine.heads.work import Work
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.roofline import PublishedModel
from specscope.engine.simulate.shapes import with_shape
from specscope.traces.facts.closed_forms import pearl_tokens
from specscope.traces.papers.parallelspec import CONTEXT, round_cost
from specscope.traces.papers.rows import Paper, numbers

_DATA = numbers("outside")
_WIDEST = 32
_TARGET_GPUS = 2


def profile_cost(method: str, profile: str) -> float:
    latency, shape = Profile.load(profile).latency(), _DATA["rounds"][method]
    drafting = shape.get("drafts", 0) * latency("drafter", 1, CONTEXT)
    heads = sum(latency.head(Work(*work), 1, CONTEXT) for work in shape.get("heads", ()))
    verification = latency("target", shape["rows"], CONTEXT) + latency.sample_us
    return (drafting + heads + verification) / latency("target", 1, CONTEXT)


class NanoRow(NamedTuple):
    """A row of nano-PEARL's table, by the words of its name and the numbers of its columns."""

    name: str
    pair: str
    data: str
    batch: int
    speedup: float
    accepted: float
    plain: float
    """Tokens per second of plain decoding."""
    longer: float
    """Tokens of PEARL's run over plain decoding's."""

    @property
    def short(self) -> bool:
        """Whether the prompts are the shortest, so that hardly any time is prefill."""
        return self.data == "AIME"

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step of plain decoding, its part of the prefill included."""
        return 1e3 * self.batch / self.plain


def _nano_row(name: str, numbers_of: Iterable[float]) -> NanoRow:
    pair, data, batch = name.split(", ")
    return NanoRow(name, pair, data, int(batch.removeprefix("batch ")), *numbers_of)


NANO = {name: _nano_row(name, row) for name, row in _DATA["nano-PEARL, H200"].items() if name != "columns"}
_SHORT = {(row.pair, row.batch): row.step_ms for row in NANO.values() if row.short}


def shapes_of(pair: str) -> list[str]:
    """Return the shapes of a pair's drafter and target in `assets/shapes.toml`."""
    family, _, names = pair.rpartition(" ")
    return [_DATA["shapes"][family][name] for name in names.split("/")]


def shaped(shape: str | Mapping[str, Any], gpus: int = 1, speed: float = 1.0) -> PublishedModel:
    """Return a model of a shape, by its name or its sizes."""
    sizes = with_shape({"shape": shape} if isinstance(shape, str) else shape, "shape.")
    return PublishedModel(**sizes, dtype="bfloat16", gpus=gpus, speed=speed, split="tensor")


def predicted(name: str) -> float:
    """Return the speed-up over plain decoding of a row of nano-PEARL's table, from its inputs."""
    row = NANO[name]
    rate, step, drafter = 1 - 1 / row.accepted, _SHORT[row.pair, row.batch], drafter_ms(row.pair)
    gamma = max(1, round(step / drafter))
    post = rate / (1 + rate - rate**gamma)
    more = row.batch * post * (gamma - 1)
    together = max(gamma * drafter, step + more * row_ms(row.pair))
    prefill = 0.0 if row.short else max(0.0, row.step_ms - step)
    return row.step_ms / (prefill / row.longer + together / pearl_tokens(rate, gamma))


@cache
def drafter_ms(pair: str) -> float:
    """Return the milliseconds of a drafter's forward: its roofline, and the target's launches."""
    hardware, speed = Profile.load("H200").hardware, 1e3 / _SHORT[pair, 1]
    drafter, target = shapes_of(pair)
    launch = shaped(target, _TARGET_GPUS, speed).launch_us(hardware)
    own = shaped(drafter, speed=speed)
    return (own.roofline_us(hardware, 1, 0) + own.layers * launch) / 1e3


def row_ms(pair: str) -> float:
    """Return the milliseconds of a row more, from plain decoding at batch 1 and 32."""
    return (_SHORT[pair, _WIDEST] - _SHORT[pair, 1]) / (_WIDEST - 1)


PAPER = Paper(
    "outside",
    {
        "cost of a round": lambda c: c.others["accepted"] / round_cost(c.row),
        "round of the profile": lambda c: c.others["accepted"] / profile_cost(c.row, c.line["profile"]),
        "PEARL": lambda c: predicted(c.row),
        "ratio": lambda c: {"ratio": (c.number or 0.0) - 1},
    },
)
