"""nano-PEARL's table: PEARL on two and one H200, from its printed mean accepted tokens.

MAT is 1 for plain decoding, so it counts the target's own token: the acceptance rate is 1 - 1 /
MAT. The drafter's time is that of its weights on an H200 and, for each layer, of the target's
launches; gamma is round(c), which nano-PEARL chooses for each batch size. A step takes plain
decoding's printed time at its batch size, and a row more what plain decoding's rows cost from batch
1 to 32 on AIME, the data with the shortest prompts. No speed-up of PEARL is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from engine.simulate.profile import Profile
from engine.simulate.roofline import Model
from traces.closed_forms import pearl_tokens
from traces.papers.rows import Row, numbers

_DATA = numbers("outside")
_TABLE = _DATA["nano-PEARL, H200"]
_PLAIN = 2
"""Column of plain decoding's tokens per second."""
_WIDEST = 32
_TARGET = "72B"
_TARGET_GPUS = 2


def rows() -> Iterator[Row]:
    """Yield a prediction for each speed-up, and the inputs as published."""
    text = (
        "PEARL's closed form at the rate 1 - 1 / MAT; gamma = round(c) of the H200; plain decoding's printed step, "
        "and its own time of a row more."
    )
    reason = "the printed times include the prefill, which is the same for both ways: articles of CNN/DM at large batches."
    for name, (speed_up, accepted, plain) in ((k, v) for k, v in _TABLE.items() if k != "columns"):
        pair, _, batch = name.split(", ")
        drafter = pair.removeprefix("Qwen2.5 ").partition("/")[0]
        ours = predicted(drafter, int(batch.removeprefix("batch ")), accepted, plain)
        yield Row(f"{name}, speed-up", speed_up, ours, "closed form", text, reason)
        for column, number in (("MAT", accepted), ("plain tokens/s", plain)):
            yield Row(f"{name}, {column}", number, None, "published only", "An input of the speed-up.")


def predicted(drafter: str, batch: int, accepted: float, plain: float) -> float:
    """Return the speed-up over plain decoding.

    Args:
        drafter: Size of the drafter, such as `1.5B`.
        batch: Sequences.
        accepted: MAT.
        plain: Tokens per second of plain decoding, all sequences together.
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
