"""Logs of several servers, whose lines come in any order of the servers, cut, in colours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.errors import UsageError
from specscope.engine.trace.trace import Trace
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.health import health
from specscope.traces.view.counts import line
from specscope.traces.view.document import view_model
from tests.traces.printed import written

Counts = tuple[int | None, int | None, int | None]
"""Drafted, accepted and output tokens of a window."""
NAMES = ("llm-a", "llm-b", "gpu0", "node7")
BEFORE: tuple[Callable[[str, int], str], ...] = (
    lambda name, i: f"{name}-1  | ",
    lambda name, i: f"{name}-1  | 2026-08-06T09:03:{i % 60:02}.1Z ",
    lambda name, i: f"[pod/{name}/main] ",
    lambda name, i: f"Aug 06 09:03:{i % 60:02} host {name}[12]: ",
    lambda name, i: f"{name}.log:{i}:",
)
COLOURS: tuple[Callable[[str], str], ...] = (
    lambda row: row,
    lambda row: f"\x1b[32m{row}\x1b[0m",
    lambda row: re.sub(r"INFO|print_timing|Decode|statistics|Accepted:", "\x1b[1;36m\\g<0>\x1b[0m", row),
)
NOISE = (
    'INFO: 127.0.0.1 - "POST /v1/completions HTTP/1.1" 200 OK',
    "",
    "x \x1b[31m",
    "slot launch_slot_: id 0",
)


class Window(NamedTuple):
    """What a server counts: accepted tokens by place."""

    drafts: int
    kept: list[int]

    @property
    def drafted(self) -> int:
        return self.drafts * len(self.kept)

    @property
    def accepted(self) -> int:
        return sum(self.kept)

    @property
    def rates(self) -> str:
        return ", ".join(f"{one / self.drafts:.3f}" for one in self.kept)

    @property
    def length(self) -> str:
        return f"{1 + self.accepted / self.drafts:.2f}"


def llama(rows: Sequence[Window], more: bool) -> tuple[list[str], list[Counts]]:
    found, expected, totals = list[str](), list[Counts](), [0, 0, 0]
    for i, row in enumerate(rows):
        tokens = row.drafts + row.accepted + 1
        expected.append((row.drafted, row.accepted, tokens))
        time = f"0.{i + 1:02}.000.000 I "
        slot = f"{time}slot print_timing: id  0 | task {i * 10} | "
        found += [
            f"{slot}prompt eval time =  201.20 ms /    24 tokens (   12.55 ms per token)",
            f"{slot}       eval time = 1640.00 ms /   {tokens} tokens (   12.51 ms per token)",
            f"{slot}draft acceptance = 0.5 (  {row.accepted} accepted /   {row.drafted} generated), mean acceptance "
            f"length =  {row.length}, acceptance rate per position = ({row.rates})",
        ]
        totals = [a + b for a, b in zip(totals, (row.drafts, row.drafted, row.accepted), strict=True)]
        drafts, drafted, accepted = totals
        if more:
            found.append(
                f"{time}statistics  draft-mtp: #calls(b,g,a) = {i} {drafts} {drafts}, #gen drafts = {drafts}, #acc drafts = 1, "
                f"#gen tokens = {drafted}, #acc tokens = {accepted}, dur(b,g,a) = 0.004, {10 * drafts}.0, 0.12 ms"
            )
    return found, expected


def vllm(rows: Sequence[Window], more: bool) -> tuple[list[str], list[Counts]]:
    found = list[str]()
    for i, row in enumerate(rows):
        time = f"INFO 08-06 09:03:{10 * i:02} [m.py:1] "
        if more:
            found.append(
                f"{time}Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 54.0 tokens/s, Running: 1 reqs"
            )
        found.append(
            f"{time}SpecDecoding metrics: Mean acceptance length: {row.length}, Accepted throughput: {row.accepted / 10:.2f} "
            f"tokens/s, Drafted throughput: {row.drafted / 10:.2f} tokens/s, Accepted: {row.accepted} tokens, Drafted: "
            f"{row.drafted} tokens, Per-position acceptance rate: {row.rates}, Avg Draft acceptance rate: 1.0%"
        )
    return found, [(row.drafted, row.accepted, None) for row in rows]


def sglang(rows: Sequence[Window], more: bool) -> tuple[list[str], list[Counts]]:
    found = [
        f"[2026-06-10 15:{i:02}:25] Decode batch, #running-req: 1, accept len: {row.length}, gen throughput (token/s): 41.90"
        for i, row in enumerate(rows)
    ]
    tokens = [round(40 * float(row.length)) for row in rows]
    return found, [(None, n - 40, n) for n in tokens]


kept = st.integers(1, 200).flatmap(
    lambda drafts: st.lists(st.integers(0, drafts), min_size=1, max_size=4).map(
        lambda rows: Window(drafts, sorted(rows, reverse=True))
    )
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, list[list[Counts]]]:
    """Return a text and what each of its servers counted."""
    engine, more = draw(st.sampled_from([llama, vllm, sglang])), draw(st.booleans())
    before, colour = draw(st.sampled_from(BEFORE)), draw(st.sampled_from(COLOURS))
    several = st.lists(st.lists(kept, min_size=1, max_size=5), min_size=1, max_size=len(NAMES))
    servers = [engine(rows, more) for rows in draw(several)]
    left, found = [iter(rows) for rows, _ in servers], list[str]()
    for i, server in enumerate(
        draw(st.permutations([n for n, (rows, _) in enumerate(servers) for _ in rows]))
    ):
        found.append(before(NAMES[server], i) + colour(next(left[server])))
        found += draw(st.lists(st.sampled_from(NOISE), max_size=1))
    return "\n".join(found) + "\n", [expected for _, expected in servers]


def counts(trace: Trace) -> list[Counts]:
    """Return the counts of all drafters, without tokens that vLLM's throughput gives roughly."""
    rough = trace.header.runtime == "vLLM"
    return [
        (row.drafted, row.accepted, None if rough else row.tokens) for row in trace.windows if not row.drafter
    ]


@settings(max_examples=40, deadline=None)
@given(logs())
def test_interleaved_servers_have_the_counts_of_their_own_lines(case):
    text, servers = case
    found = [counts(trace) for trace in read_traces(written(text)).traces]
    assert sorted(found, key=str) == sorted(servers, key=str)


@settings(max_examples=40, deadline=None)
@given(logs(), st.floats(0, 1))
def test_a_log_that_is_cut_anywhere_has_no_other_counts(case, share):
    text, servers = case
    known: list[Any] = [one for rows in servers for one in rows]
    place = int(share * len(text))
    for part in (text[:place], text[place:]):
        try:
            found = read_traces(written(part)).traces
        except UsageError:
            continue
        for trace in found:
            json.dumps(view_model([trace]), allow_nan=False)
            assert "\n" not in health(trace) + "".join(map(line, trace.windows))
            for row, mine in zip(trace.windows, counts(trace), strict=True):
                if row.label != "since the server's start":
                    assert any(
                        all(a in (None, b) for a, b in zip(mine, one, strict=True)) for one in known
                    ), (mine, part)
