"""Names from a file that JavaScript knows, too: they are shown as text, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace
from tests.traces.test_imported import FILES

NAMES = ("__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "valueOf")
CLEAN = """() => [Object.getOwnPropertyNames(Object.prototype).sort().join(), typeof ({}).toString, ({}).busy,
    Object.keys(Array.prototype).join(), Object.getPrototypeOf({}) === Object.prototype]"""


def named(kind: str, first: str, second: str, tokens: int = 24):
    """Return a sample whose devices, method, settings and models have such names."""
    trace = sample_trace(kind, tokens=tokens)
    names = {"gpu0": first, "gpu1": second}
    devices = tuple(replace(d, name=names[d.name], label=names[d.name]) for d in trace.header.devices)
    trace.header = replace(
        trace.header,
        run_id=first,
        method=second,
        title=second,
        config={first: second, second: 1, "gamma": 4},
        sampling={**trace.header.sampling, first: second},
        environment={**trace.header.environment, first: {second: first}, "pair": first},
        group=first,
        devices=devices,
        target_path=first,
        drafter_path=second,
    )
    trace.spans = [replace(s, device=names[s.device]) for s in trace.spans]
    trace.occupancy = [replace(o, device=names.get(o.device, o.device)) for o in trace.occupancy]
    trace.pieces = dict.fromkeys(trace.pieces, first)
    return trace


@pytest.mark.parametrize(("first", "second"), zip(NAMES[::2], NAMES[1::2], strict=True))
def test_names_of_all_objects_are_shown_as_text(opened, first, second):
    before = opened.page.evaluate(CLEAN)
    traces = [named("speculative", first, second), named("pearl", second, first)]
    page = opened.show(view_model(traces))
    opened.ready()
    for name in (first, second):
        assert page.locator(".ss-row-label", has_text=name).count()
    assert page.locator("h3", has_text=second).count()
    assert "NaN" not in page.locator("#viewer").inner_text()
    assert page.evaluate(CLEAN) == before


def test_a_run_without_times_has_no_share_of_such_a_device(opened):
    (trace, *_) = read_traces(FILES / "vllm.jsonl").traces
    sample = named("speculative", "constructor", "toString")
    trace.header = replace(trace.header, devices=sample.header.devices)
    page = opened.show(view_model([trace, sample]))
    opened.ready()
    assert "NaN" not in page.locator("#viewer").inner_text()
