"""Hypothesis strategies: `traces` with any valid values, and `work` with varying rows only."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from hypothesis import settings as examples
from hypothesis import strategies as st

from specscope.engine.trace import events
from specscope.engine.trace.events import (
    Commit,
    Decision,
    Device,
    Footer,
    Header,
    Round,
    Span,
)
from specscope.engine.trace.header import FORMS
from specscope.engine.trace.ranges import MOST_TOKENS
from specscope.engine.trace.trace import Trace

few = examples(max_examples=20, deadline=None)
"""For tests on `traces`, which are large."""
many = examples(max_examples=80, deadline=None)
"""For tests on `work`."""

DOCUMENTS = 2
DEVICES = ("gpu0", "gpu1", "cpu:0")
ROLES = ("drafter", "target", "drafter+target")
texts = st.text(max_size=12)
CHECKED = {name for form in FORMS.values() for name in form}
names = st.text(max_size=8).filter(lambda name: name not in CHECKED)
"""Names of a header's values; those that it checks have values of one type."""
numbers = st.integers(0, MOST_TOKENS)
times = st.integers(0, 2**40)
tokens = st.integers(0, 2**31 - 1)
grams = st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=3).map(tuple)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("window", "tried", "gained"), grams),
    **dict.fromkeys(("time", "start"), times),
    **dict.fromkeys(("node", "parent"), st.integers(-1, 5)),
    **dict.fromkeys(("span", "draft_span", "verify_span"), st.integers(-1, 9)),
    "device": st.sampled_from(DEVICES),
    "kind": st.sampled_from(
        [kind for kind in get_args(events.SpanKind) if kind != "step"]
    ),  # its sides are unknown
    "document": st.integers(-1, DOCUMENTS - 1),
    "position": st.integers(0, 50),
    "rank": st.integers(0, 7),
    "role": st.sampled_from(ROLES),
    "step": st.integers(0, 3),
    "token": tokens,
}
"""Values that meet in several rows; other fields have any of their type's."""
WIDE, MORE = st.integers(0, 2**26), st.integers(0, 9)


def of(kind: type, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of rows of a kind, with values of these fields."""
    known = FIELDS | given
    types = events.types_of(kind).items()
    return st.builds(kind, **{n: known[n] if n in known else values(hint) for n, hint in types})


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of all values that a type allows."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, allowed = parts
        return values(allowed) if kind is str else (st.integers if kind is int else st.floats)(*allowed[:2])
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is dict:
        return st.dictionaries(names, plain, max_size=3)
    if origin is tuple and parts[-1] is ...:
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if parts:
        one = list(map(values, parts))
        return st.tuples(*one) if origin is tuple else st.one_of(one)
    return {str: texts, bool: st.booleans(), NoneType: st.none()}[hint]


def each(sequences: int, one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of tuples with one value for each sequence."""
    return st.tuples(*[one] * sequences)


@cache
def headers(sequences: int) -> st.SearchStrategy[Header]:
    return of(
        Header,
        run_id=st.uuids().map(lambda one: one.hex),
        prompts=each(sequences, texts),
        prompt_ids=each(sequences, st.lists(tokens, max_size=4).map(tuple)),
        devices=st.tuples(*(of(Device, name=st.just(name)) for name in DEVICES)),
        schema=st.just(events.SCHEMA),
    )


@cache
def spans(sequences: int) -> st.SearchStrategy[list[Span]]:
    sequence = st.integers(-1, sequences - 1)
    drawn = st.lists(of(Span, end=st.integers(0, 2**38), sequence=sequence), max_size=8)
    numbered = drawn.map(lambda rows: [replace(s, id=i, end=s.start + s.end) for i, s in enumerate(rows)])
    return numbered.flatmap(st.permutations)


@cache
def rows(sequences: int) -> st.SearchStrategy[Any]:
    one = {"sequence": st.integers(0, sequences - 1)}
    kinds = (Decision, events.Forked, events.Piece, events.Pooled, events.Occupancy)
    return st.one_of(
        *(of(kind, **(one if hasattr(kind, "sequence") else {})) for kind in kinds),
        of(Commit, position=numbers, **one),
        of(events.Forecast, **one).map(lambda f: f if f.tree else replace(f, step=9)),  # copies nothing
        of(Round, accepted=WIDE, drafted=MORE, **one).map(
            lambda r: replace(r, drafted=r.drafted + r.accepted)
        ),
        of(events.Copied, start=WIDE, match=MORE, **one).map(lambda c: replace(c, start=c.start + c.match)),
        of(events.Chain, drafted=WIDE, asked=MORE, **one).map(
            lambda c: replace(c, asked=c.asked + c.drafted)
        ),
    )


@st.composite
def traces(draw: st.DrawFn, ended: bool | None = True) -> Trace:
    """Return a trace with any valid values; with a footer, without (False), or either (None)."""
    sequences = draw(st.integers(1, 3))
    trace = Trace(draw(headers(sequences)), spans=draw(spans(sequences)))
    for span in draw(st.lists(st.sampled_from(trace.spans), max_size=4)) if trace.spans else ():
        kind, length = draw(values(events.PartKind)), draw(st.integers(0, 2**38))
        trace.add(events.Part(span.id, kind, draw(st.integers(0, 99)), span.start, span.start + length))
    for number in range(DOCUMENTS):
        trace.add(events.Document(number, tuple(draw(st.lists(tokens, max_size=4)))))
    for row in draw(st.lists(rows(sequences), max_size=10)):
        trace.add(row)
    if ended or (ended is None and draw(st.booleans())):
        per_sequence = each(sequences, texts)
        trace.footer = draw(of(Footer, texts=per_sequence, reasons=per_sequence))
    return trace


_FIXED = Header(
    *("run", "", "method", "Method", {}, ("", ""), ((), ()), {}, {}, "virtual", "profile"),
    tuple(Device(name, role, name, "virtual") for name, role in zip(DEVICES, ROLES, strict=True)),
    *("", ""),
)
_short = st.integers(0, 60)


@st.composite
def work(draw: st.DrawFn) -> Trace:
    """Return a trace of small times, with spans that touch, overlap or are empty."""
    trace, sequence = Trace(_FIXED), st.integers(0, 1)
    span = st.tuples(FIELDS["device"], values(events.Role), FIELDS["step"], FIELDS["kind"], _short, _short)
    for i, (device, model, step, kind, start, length) in enumerate(draw(st.lists(span, max_size=12))):
        outcome = draw(values(events.SpanOutcome))
        trace.add(Span(i, device, kind, start, start + length // 3, model, step, 0, 1, 0, outcome))
    decision = st.tuples(
        st.integers(1, 3), sequence, st.integers(-1, 3), st.integers(3, 9), values(events.Outcome)
    )
    for step, number, node, position, outcome in draw(st.lists(decision, max_size=8)):
        where = (step, number, node, node - 1, position, 7)
        trace.add(Decision(*where, None, None, None, "", outcome, position % 5 - 1, -1))
    committed = st.tuples(sequence, _short, st.integers(0, 4))
    for number, time, drafted in draw(st.lists(committed, max_size=6)):
        trace.add(Commit(1, number, 3, 7, "plain", "x", time))
        trace.add(Round(1, number, "verify", drafted, drafted // 2, 1, time, -1))
    if draw(st.booleans()):
        trace.add(Footer("done", ("", ""), ("", ""), draw(st.integers(0, 90))))
    return trace
