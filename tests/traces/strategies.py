"""Hypothesis strategies: `traces` with any valid values, and `work` with varying rows only."""

from __future__ import annotations

from hypothesis import settings as examples
from hypothesis import strategies as st

from specscope.engine.trace.events import (
    Chain,
    Commit,
    Copied,
    Decision,
    Device,
    Document,
    Footer,
    Forecast,
    Forked,
    Header,
    Occupancy,
    Part,
    Piece,
    Pooled,
    Round,
    Span,
)
from specscope.engine.trace.ranges import MOST_TOKENS
from specscope.engine.trace.trace import Trace
from specscope.traces import schema

few = examples(max_examples=20, deadline=None)
"""For tests on `traces`, which are large."""
many = examples(max_examples=80, deadline=None)
"""For tests on `work`."""

texts = st.text(max_size=12)
names = st.text(max_size=8)
numbers = st.integers(0, MOST_TOKENS)
times = st.integers(0, 2**40)
tokens = st.integers(0, 2**31 - 1)
chances = st.none() | st.floats(0, 1)
tops = st.lists(st.tuples(tokens, st.floats(0, 1)), max_size=3).map(tuple)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
settings = st.dictionaries(names, plain, max_size=3)
DOCUMENTS = 2
DEVICES = ("gpu0", "gpu1", "cpu:0")


@st.composite
def headers(draw: st.DrawFn, sequences: int) -> Header:
    text = {
        f: draw(texts)
        for f in ("created", "method", "title", "runtime", "profile", "target_path", "drafter_path")
    }
    devices = tuple(
        Device(name, draw(st.sampled_from(("drafter", "target", "drafter+target"))), draw(texts), draw(texts))
        for name in DEVICES
    )
    return Header(
        run_id=draw(st.uuids()).hex,
        config=draw(settings),
        prompts=tuple(draw(texts) for _ in range(sequences)),
        prompt_ids=tuple(tuple(draw(st.lists(tokens, max_size=4))) for _ in range(sequences)),
        sampling=draw(settings),
        limits=draw(settings),
        devices=devices,
        environment=draw(settings),
        group=draw(texts),
        lossless=draw(st.booleans()),
        **text,
    )


@st.composite
def spans(draw: st.DrawFn, sequences: int) -> list[Span]:
    rows: list[Span] = []
    for i in range(draw(st.integers(0, 8))):
        start = draw(times)
        rows.append(
            Span(
                id=i,
                device=draw(st.sampled_from(DEVICES)),
                kind=draw(st.sampled_from(schema.KINDS)),
                start=start,
                end=start + draw(st.integers(0, 2**38)),
                model=draw(st.sampled_from(schema.MODELS)),
                step=draw(st.integers(0, 3)),
                sequence=draw(st.integers(-1, sequences - 1)),
                rows=draw(numbers),
                context=draw(numbers),
                outcome=draw(st.sampled_from(schema.SPAN_OUTCOMES)),
                cells=draw(times),
                rank=draw(st.integers(0, 7)),
            )
        )
    return draw(st.permutations(rows))


def rows(sequences: int) -> st.SearchStrategy[object]:
    sequence = st.integers(0, sequences - 1)
    rounds = st.builds(
        lambda step, number, mode, accepted, more, emitted, time, span: Round(
            step, number, mode, accepted + more, accepted, emitted, time, span
        ),
        *(numbers, sequence, st.sampled_from(schema.MODES), st.integers(0, 2**26), st.integers(0, 9)),
        *(numbers, times, numbers),
    )
    decisions = st.builds(
        Decision,
        *(st.integers(0, 3), sequence, st.integers(-1, 5), st.integers(-1, 5), st.integers(0, 50), tokens),
        *(chances, chances, chances, st.sampled_from(schema.RULES), st.sampled_from(schema.OUTCOMES)),
        *(st.integers(-1, 9), st.integers(-1, 9), tops, tops),
    )
    commits = st.builds(
        Commit, numbers, sequence, numbers, tokens, st.sampled_from(schema.OUTCOMES), texts, times
    )
    copies = st.builds(
        lambda step, sequence, document, start, match, length: Copied(
            step, sequence, document, start + match, match, length
        ),
        *(st.integers(0, 3), sequence, st.integers(-1, DOCUMENTS - 1), st.integers(0, 2**26)),
        *(st.integers(0, 9), numbers),
    )
    grams = st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=3).map(tuple)
    pools = st.builds(
        Pooled, st.integers(0, 3), sequence, st.sampled_from(schema.MODELS), grams, grams, grams, times
    )
    forks = st.builds(
        Forked,
        st.integers(0, 3),
        sequence,
        st.integers(0, 9),
        tokens,
        st.floats(0, 1),
        numbers,
        st.booleans(),
    )
    trees, scores = st.sampled_from(schema.TREES), st.floats(0, 100)
    forecasts = st.builds(
        Forecast, st.integers(0, 3), sequence, trees, numbers, times, scores, st.none() | scores
    )
    chains = st.builds(
        lambda step, number, position, drafted, more, stop, span: Chain(
            step, number, position, drafted + more, drafted, stop, span
        ),
        *(st.integers(0, 3), sequence, numbers, st.integers(0, 2**26), st.integers(0, 9)),
        *(st.sampled_from(schema.STOPS), st.integers(-1, 9)),
    )
    pieces = st.builds(Piece, tokens, texts)
    power = st.none() | st.floats(0, 2000)
    samples = st.builds(
        Occupancy, st.sampled_from(DEVICES), times, st.floats(0, 1), st.integers(0, 2**50), power
    )
    return rounds | decisions | commits | copies | pools | forks | forecasts | chains | pieces | samples


@st.composite
def traces(draw: st.DrawFn, ended: bool | None = True) -> Trace:
    """Return a trace with any valid values; with a footer, without (False), or either (None)."""
    sequences = draw(st.integers(1, 3))
    trace = Trace(draw(headers(sequences)), spans=draw(spans(sequences)))
    for span in draw(st.lists(st.sampled_from(trace.spans), max_size=4)) if trace.spans else ():
        kind, length = draw(st.sampled_from(schema.PARTS)), draw(st.integers(0, 2**38))
        trace.add(Part(span.id, kind, draw(st.integers(0, 99)), span.start, span.start + length))
    for number in range(DOCUMENTS):
        trace.add(Document(number, tuple(draw(st.lists(tokens, max_size=4)))))
    for row in draw(st.lists(rows(sequences), max_size=10)):
        trace.add(row)
    if ended or (ended is None and draw(st.booleans())):
        per_sequence = st.lists(texts, min_size=sequences, max_size=sequences).map(tuple)
        status = st.sampled_from(schema.STATUSES)
        trace.footer = draw(st.builds(Footer, status, per_sequence, per_sequence, times, texts))
    return trace


_FIXED = Header(
    *("run", "", "method", "Method", {}, ("", ""), ((), ()), {}, {}, "virtual", "profile"),
    *(
        tuple(
            Device(name, role, name, "virtual")
            for name, role in zip(DEVICES, ("drafter", "target", "drafter+target"), strict=True)
        ),
        "",
        "",
    ),
)
_short = st.integers(0, 60)
_spans = st.tuples(
    *(st.sampled_from(DEVICES), st.sampled_from(schema.KINDS), _short, st.integers(0, 20)),
    *(st.sampled_from(schema.MODELS), st.integers(0, 3), st.sampled_from(schema.SPAN_OUTCOMES)),
)
_decisions = st.tuples(
    st.integers(1, 3),
    st.integers(0, 1),
    st.integers(-1, 3),
    st.integers(3, 9),
    st.sampled_from(schema.OUTCOMES),
)


@st.composite
def work(draw: st.DrawFn) -> Trace:
    """Return a trace of small times, with spans that touch, overlap or are empty."""
    trace = Trace(_FIXED)
    for i, (device, kind, start, length, model, step, outcome) in enumerate(
        draw(st.lists(_spans, max_size=12))
    ):
        trace.add(Span(i, device, kind, start, start + length, model, step, 0, 1, 0, outcome))
    for step, sequence, node, position, outcome in draw(st.lists(_decisions, max_size=8)):
        where = (step, sequence, node, node - 1, position, 7)
        trace.add(Decision(*where, None, None, None, "", outcome, position % 5 - 1, -1))
    for sequence, time, drafted in draw(
        st.lists(st.tuples(st.integers(0, 1), _short, st.integers(0, 4)), max_size=6)
    ):
        trace.add(Commit(1, sequence, 3, 7, "plain", "x", time))
        trace.add(Round(1, sequence, "verify", drafted, drafted // 2, 1, time, -1))
    if draw(st.booleans()):
        trace.add(Footer("done", ("", ""), ("", ""), draw(st.integers(0, 90))))
    return trace
