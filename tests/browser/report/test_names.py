"""Names from a file that JavaScript knows, too: they are shown as text, and change nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest

from specscope.app import windows
from specscope.traces.imports.reading import read_traces
from specscope.traces.store import Store
from specscope.traces.view.document import view_model
from tests.browser.report.opened import zoomed
from tests.traces.samples import sample_trace
from tests.traces.test_imported import FILES

NAMES = ("__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "valueOf")
CLEAN = """() => [Object.getOwnPropertyNames(Object.prototype).sort().join(), typeof ({}).toString, ({}).busy,
    Object.keys(Array.prototype).join(), Object.getPrototypeOf({}) === Object.prototype]"""
MOUNT = """async (text) => {
    window.view.destroy();
    const root = document.getElementById("viewer");
    for (const key of Object.keys(root.dataset)) delete root.dataset[key];
    const source = {
        window: async (query) => JSON.parse(await askNamed(query)),
        whole: () => new Promise(() => {}),
        aligned: () => new Promise(() => {}),
    };
    window.view = SpecScope.mount(root, JSON.parse(text), { source });
}"""


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


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    with (
        Store(tmp_path_factory.mktemp("names") / "traces.db") as store,
        pytest.MonkeyPatch.context() as few,
    ):
        trace = named("pearl", "constructor", "__proto__", 500)
        # a third device, which works at the end only: most windows do not name it
        late = replace(trace.header.devices[1], name="toString", label="toString")
        trace.header = replace(trace.header, devices=(*trace.header.devices, late))
        trace.spans.append(replace(trace.spans[-1], id=10**6, device="toString"))
        store.insert(trace)
        few.setattr(windows, "MOST_SPANS", 10)
        few.setattr(windows, "LONG", 100)
        server = windows.Windows(SimpleNamespace(store=store, find=lambda _: None))

        def ask(query):
            asked = {name: values[0] for name, values in parse_qs(query).items()}
            numbers = (float(asked[name]) for name in ("low", "high", "margin"))
            rows = asked["rows"] == "true"
            return json.dumps(server.window(asked["run"], *numbers, int(asked["bins"]), rows=rows))

        yield json.dumps(server.document("constructor")), ask


def test_windows_of_a_long_run_with_such_devices_are_drawn(opened, beside, answers):
    opening, ask = answers
    opened.page.expose_function("askNamed", lambda query: beside(ask, query))
    before = opened.page.evaluate(CLEAN)
    opened.page.evaluate(MOUNT, opening)
    opened.ready()
    opened.page.wait_for_function("() => document.querySelector('#viewer').innerText.includes('toString')")
    zoomed(opened.page, 3)
    assert opened.page.evaluate(CLEAN) == before
