"""PEARL's steps: Tables 9, 15 and 16, Figures 1 to 3, appendix G."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from traces.papers.pearl_speeds import best_gamma, latency, pair_of, together
from traces.papers.rows import Row, cells, numbers

_DATA = numbers("pearl")


def table_9() -> Iterator[Row]:
    """Yield tokens and modes of the steps of appendix B."""
    table, about = _DATA["Table 9"], "Algorithm 2 on the printed drafts and the printed text."
    steps = followed([draft.split() for draft in table["drafts"]], table["text"].split())
    for number, (printed, post, step) in enumerate(zip(table["added"], table["post"], steps, strict=True)):
        yield Row(f"step {number}, tokens added", printed, step.added, "exact", about)
        yield Row(f"step {number}, post-verify is next", post, step.post, "exact", about)


def table_15() -> Iterator[Row]:
    """Yield the milliseconds of a step's parts."""
    table = _DATA["Table 15"]
    for name, column, number in cells(table, "communication", "verify"):
        times = latency(column)
        ours = (times.sample_us if name == "verify" else times.communicate_us) / 1e3
        text = "The profile has the median of the three pairs."
        yield Row(f"{name}, {column}", number, ours, "closed form", text, fitted=True)
    for name, column, number in cells(table, "draft", "target"):
        chosen = pair_of(column)
        ours = chosen.window * chosen.drafter if name == "draft" else chosen.target
        text = "round(c) drafts, or one target forward, at Table 10's speeds."
        reason = "Table 15 is slower than Table 10 for this pair, an inconsistency of the paper."
        yield Row(f"{name}, {column}", number, ours, "closed form", text, reason)


def table_16() -> Iterator[Row]:
    """Yield the milliseconds to move a KV cache."""
    times = latency("llama-3.1-8-70")
    for name, column, number in cells(_DATA["Table 16"]):
        ours = times.move_us("drafter", int(column)) / 1e3
        text = "Bytes over 300 GB/s and one start; the start is the median over the four lengths."
        yield Row(f"{name}, {column} tokens", number, ours, "closed form", text, fitted=True)


def figure_1() -> Iterator[Row]:
    """Yield the target's idle shares, which show Figure 1's claim that waiting ends."""
    for name in _DATA["Table 7"]["columns"]:
        chosen, gamma = pair_of(name), best_gamma(name)
        time = gamma * chosen.drafter + chosen.target + chosen.step
        step = together(chosen, chosen.window)
        for method, idle in (
            ("SD", 1 - chosen.target / time),
            ("PEARL", 1 - chosen.target / step),
        ):
            text = "The figure prints no numbers: the share of a step in which the target waits."
            yield Row(f"{method}, target idle, {name}", None, idle, "closed form", text)


def figure_2() -> Iterator[Row]:
    """Yield the claims of section 3.1 about drafting, and the spread of the best draft length."""
    claim, chosen = _DATA["Figure 2"], pair_of("codellama-7-34")
    ratio = chosen.target / chosen.drafter
    yield Row(
        "(a) running speed, drafter over target",
        claim["speed_ratio"],
        ratio,
        "closed form",
        "Speeds of Table 10.",
    )
    drafting = claim["drafts"] / ratio
    yield Row(
        "(a) time of 6 drafts over one verification",
        claim["drafting"],
        drafting,
        "closed form",
        "Speeds of Table 10.",
    )
    for name in _DATA["Table 7"]["columns"]:
        spread = pair_of(name).rate ** 0.5 / (1 - pair_of(name).rate)
        text = (
            "No numbers printed: the best length of a step is the run of right drafts, a geometric variable."
        )
        yield Row(
            f"(b) standard deviation of the best draft length, {name}", None, spread, "closed form", text
        )


def figure_3() -> Iterator[Row]:
    """Yield the tokens of the figure's four steps."""
    figure = _DATA["Figure 3"]
    ours = [step.added for step in followed(figure["right"], [True] * figure["total"])]
    for number, (published, tokens) in enumerate(zip(figure["added"], ours, strict=True), 1):
        yield Row(f"step {number}, tokens added", published, tokens, "exact", "Algorithm 2 at gamma = 3.")
    yield Row("tokens of four steps", figure["total"], sum(ours), "exact", "Algorithm 2 at gamma = 3.")


class Step(NamedTuple):
    """A step of PEARL."""

    added: int
    """Tokens by which the output grows."""
    post: bool
    """Whether the next mode is post-verify."""


def followed(chunks: Sequence[Sequence[object]], text: Sequence[object]) -> list[Step]:
    """Return the steps of PEARL (algorithm 2).

    Args:
        chunks: The tokens drafted in each step.
        text: The target's tokens.
    """
    pending, length, steps = list[object](), 0, list[Step]()
    for chunk in chunks:
        judged = [*pending, chunk[0]]
        same = [a == b for a, b in zip(judged, text[length:], strict=False)]
        right = same.index(False) if False in same else len(judged)
        pending = [*chunk[1:]] if right == len(judged) else []
        steps.append(Step(min(right + 1, len(judged)), right == len(judged)))
        length += steps[-1].added
    return steps


def appendix_g() -> Iterator[Row]:
    """Yield the KV bytes and the GPU of each model in each sub-step."""
    data, times = _DATA["Appendix G"], latency("llama-3.1-8-70")
    assert times.drafter is not None
    size = times.drafter.kv_bytes * data["rows"] / 1e9
    yield Row(
        "KV cache of 1,024 tokens, GB", data["kv_gb"], round(size, 2), "exact", "Shape of Llama 3.1 8B."
    )
    move = data["kv_gb"] / times.hardware.link_gb_s * 1e3
    yield Row(
        "time over NVLink, ms",
        data["move_ms"],
        round(move, 2),
        "arithmetic",
        "The printed 0.13 GB at 300 GB/s.",
    )
    steps = data["gpus"] * data["c"]
    target = [step * data["gpus"] // steps for step in range(steps)]
    moved = ceil(data["c"] / 2) * data["gpus"]
    drafter = [data["gpus"] - 1 if step < moved else 0 for step in range(steps)]
    for name, ours in (("target", target), ("drafter", drafter)):
        for step, (published, gpu) in enumerate(zip(data[name], ours, strict=True)):
            yield Row(f"GPU of the {name} in sub-step {step}", published, gpu, "exact", "Equations 2 and 3.")
