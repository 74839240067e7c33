"""Tables of others, predicted in two ways; nothing is fitted to them.

First with the round costs that ParallelSpec's Table 1 implies. Then on the virtual cluster: the
forwards of a round in the profile of the GPU, with the methods' published shapes.

nano-PEARL's table: PEARL on two and one H200, from its printed mean accepted tokens. MAT is 1 for
plain decoding, so it counts the target's own token: the acceptance rate is 1 - 1 / MAT. The
drafter's time is that of its weights on an H200 and, for each layer, of the target's launches;
gamma is round(c), which nano-PEARL chooses for each batch size. A step takes plain decoding's
printed time at its batch size, and a row more what plain decoding's rows cost from batch 1 to 32 on
AIME, the data with the shortest prompts. No speed-up of PEARL is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from engine.heads.work import Work
from engine.simulate.profile import Profile
from engine.simulate.roofline import Model
from traces.closed_forms import pearl_tokens
from traces.papers.parallelspec import round_cost
from traces.papers.rows import Paper, Row, cells

PAPER = Paper("outside")
_DATA = PAPER.numbers
_KNOWN = ("EAGLE", "Hydra", "Medusa", "PLD", "SpS", "Lookahead")
_CONTEXT = 500
"""Cached rows of a forward; a prompt of Spec-Bench with half of its answer."""
_PROFILES = {"Spec-Bench, A100": "A100-40G", "Spec-Bench, RTX 3090": "RTX-3090"}
_TABLE = _DATA["nano-PEARL, H200"]
_PLAIN = 2
_WIDEST = 32
_TARGET = "72B"
_TARGET_GPUS = 2


class Shape(NamedTuple):
    """Forwards of a round."""

    drafts: int
    heads: tuple[Work, ...]
    rows: int


SHAPES = {
    "EAGLE": Shape(0, (Work(1, 2),) * 5, 26),  # five levels of its tree of 25 nodes
    "Hydra": Shape(0, tuple(Work(0, 2 * (i + 2)) for i in range(4)), 64),  # four heads, a tree of 63 nodes
    "Medusa": Shape(0, (Work(0, 5, 5),), 64),  # five heads, a tree of 63 nodes
    "PLD": Shape(0, (), 11),  # ten copied tokens
    "SpS": Shape(5, (), 6),  # five drafts
    "Lookahead": Shape(0, (), 57),  # window 7 and guess set 7, four rows each, and the last token
}
"""Rounds of Spec-Bench's methods, with the settings of ParallelSpec, section 5.1."""


def profile_cost(method: str, profile: str) -> float:
    latency, shape = Profile.load(profile).latency(), SHAPES[method]
    drafting = shape.drafts * latency("drafter", 1, _CONTEXT)
    heads = sum(latency.head(work, 1, _CONTEXT) for work in shape.heads)
    verification = latency("target", shape.rows, _CONTEXT) + latency.sample_us
    return (drafting + heads + verification) / latency("target", 1, _CONTEXT)


@PAPER.item(*_PROFILES)
def _spec_bench(item: str) -> Iterator[Row]:
    profile = _PROFILES[item]
    for method, (speed, accepted) in ((k, v) for k, v in _DATA[item].items() if k != "columns"):
        row = f"{method}, speed-up"
        if method in _KNOWN:
            yield PAPER.row(row, speed, accepted / round_cost(method), "cost of a round", item)
            virtual = accepted / profile_cost(method, profile)
            yield PAPER.row(f"{row} on the profile {profile}", speed, virtual, "round of the profile")
        else:
            yield PAPER.row(row, speed, None, "no cost")
        yield PAPER.row(f"{method}, accepted", accepted, None, "input")


@PAPER.item("MineDraft, 4 + 1 GPUs")
def minedraft() -> Iterator[Row]:
    for name, _, gain in cells(_DATA["MineDraft, 4 + 1 GPUs"]):
        yield PAPER.row(name, gain, None, "no times", ratio=gain - 1)


@PAPER.item("nano-PEARL, H200")
def _nano_pearl() -> Iterator[Row]:
    for name, (speed_up, accepted, plain) in ((k, v) for k, v in _TABLE.items() if k != "columns"):
        pair, _, batch = name.split(", ")
        drafter = pair.removeprefix("Qwen2.5 ").partition("/")[0]
        ours = predicted(drafter, int(batch.removeprefix("batch ")), accepted, plain)
        yield PAPER.row(f"{name}, speed-up", speed_up, ours, "closed form of PEARL")
        for column, number in (("MAT", accepted), ("plain tokens/s", plain)):
            yield PAPER.row(f"{name}, {column}", number, None, "input")


def predicted(drafter: str, batch: int, accepted: float, plain: float) -> float:
    """Return the speed-up over plain decoding of a drafter, such as `1.5B`, at MAT `accepted`.

    `plain` are the tokens per second of plain decoding, all sequences together.
    """
    rate, step = 1 - 1 / accepted, 1e3 * batch / plain
    gamma = max(1, round(step / drafter_ms(drafter)))
    post = rate / (1 + rate - rate**gamma)
    more = batch * post * (gamma - 1)
    together = max(gamma * drafter_ms(drafter), step + more * row_ms())
    return pearl_tokens(rate, gamma) * step / together


@cache
def drafter_ms(name: str) -> float:
    """Return the milliseconds of a drafter's forward: its roofline, and the target's launches."""
    hardware = Profile.load("H200").hardware
    speed = _TABLE[f"Qwen2.5 {name}/{_TARGET}, AIME, batch 1"][_PLAIN]
    launch = _model(_TARGET, _TARGET_GPUS, speed).launch_us(hardware)
    own = _model(name, 1, speed)
    return (own.roofline_us(hardware, 1, 0) + own.layers * launch) / 1e3


def row_ms() -> float:
    """Return the milliseconds of a row more, from plain decoding of AIME at batch 1 and 32."""
    one, wide = (_TABLE[f"Qwen2.5 1.5B/{_TARGET}, AIME, batch {batch}"][_PLAIN] for batch in (1, _WIDEST))
    return 1e3 * (_WIDEST / wide - 1 / one) / (_WIDEST - 1)


def _model(name: str, gpus: int, speed: float) -> Model:
    return Model(
        title=name,
        **_DATA["Qwen2.5"][name],
        dtype="bfloat16",
        gpus=gpus,
        speed=speed,
        source="nano-PEARL",
        split="tensor",
    )
