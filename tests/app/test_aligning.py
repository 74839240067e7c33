"""Long runs token by token: a window has the tokens and times of the whole runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from specscope.app import windows
from specscope.engine.errors import UsageError
from specscope.traces.store import Store
from specscope.traces.view.aligned import aligned
from specscope.traces.view.tokens import committed
from tests.traces.samples import sample_trace

FIELDS = ("index", "sequence", "position", "id", "text", "outcome", "step", "t")


def named(trace, name, **changes):
    return replace(trace, header=replace(trace.header, run_id=name), **changes)


@pytest.fixture(scope="module")
def traces():
    """A run, the same text 5 ms later, the text until token 100, another text, another prompt."""
    first = named(sample_trace("pearl", tokens=150), "first")
    later = named(first, "later", commits=[replace(c, time=c.time + 5_000_000) for c in first.commits])
    turned = [c if i < 100 else replace(c, token=c.token + 1) for i, c in enumerate(first.commits)]
    other = sample_trace("autoregressive", tokens=150)
    prompt = replace(other, header=replace(other.header, run_id="prompt", prompt_ids=((1, 2),)))
    return [first, later, named(first, "turned", commits=turned), named(other, "other"), prompt]


@pytest.fixture(scope="module")
def server(tmp_path_factory, traces):
    with Store(tmp_path_factory.mktemp("aligning") / "traces.db") as store:
        store.insert(*traces)
        yield windows.Windows(SimpleNamespace(store=store, find=lambda _: None))


@pytest.mark.parametrize("most", [600, 7])
def test_a_window_has_the_tokens_of_the_first_run_and_the_same_ones_of_the_others(
    server, traces, monkeypatch, most
):
    monkeypatch.setattr(windows, "MOST", most)
    tokens = [list(committed(trace)) for trace in traces]
    (views,) = aligned(traces)
    for low, high in ((-100, 1e6), (0, tokens[0][30]["t"]), (tokens[0][90]["t"], tokens[0][120]["t"])):
        found = server.aligned(",".join(t.header.run_id for t in traces), 0, low, high)
        inside = [token for token in tokens[0] if low <= token["t"] <= high]
        first = inside[0]["index"]
        assert (found["first"], found["inside"]) == (first, len(inside))
        for row, view, own in zip(found["rows"], views["rows"], tokens, strict=True):
            assert {name: row[name] for name in view} == view
            wanted = own[first : min(first + min(most, len(inside)), view["same"])]
            assert row["tokens"] == [{name: token[name] for name in FIELDS} for token in wanted]
            assert row["length"] == (0 if view["reason"] else len(own))
            assert row["before"] == (own[first - 1]["t"] if wanted and first else 0)


def test_runs_and_windows_that_cannot_be_aligned_are_refused(server):
    for names, sequence, window, message in (
        ("first,nobody", 0, (0, 1), "is not stored or has not ended"),
        ("", 0, (0, 1), "is not stored or has not ended"),
        ("first,later", 3, (0, 1), "sequence 3 is not one of the run's 1"),
        ("first,later", 0, (1, 1), "needs a start before its end"),
        ("first," * 9, 0, (0, 1), "more than 8 runs"),
    ):
        with pytest.raises(UsageError, match=message):
            server.aligned(names, sequence, *window)
