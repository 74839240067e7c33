"""Other states of the viewer: hostile texts and names, a hidden tab, a growing run, no run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from specscope.engine.trace.events import Commit, Footer
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import delta
from tests.browser.report.opened import (
    Opened,
    centre_of,
    colours,
    drawn_after,
    pane,
    update,
    visible_text,
    window,
)
from tests.traces.samples import sample_events, sample_trace
from tests.traces.test_imported import FILES

pytestmark = pytest.mark.browser
IMPORTED = Path(__file__).parents[2] / "traces" / "imported"
HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b><a href=https://example.org>x</a>"


def test_texts_of_a_run_stay_text(chromium, tmp_path):
    trace = sample_trace("speculative", tokens=8)
    devices = tuple(replace(d, label=HOSTILE) for d in trace.header.devices)
    texts = dict.fromkeys(("title", "profile"), HOSTILE) | {"config": {HOSTILE: HOSTILE}}
    trace.header = replace(trace.header, prompts=(HOSTILE,), devices=devices, **texts)
    trace.pieces = dict.fromkeys(trace.pieces, HOSTILE)
    trace.commits = [replace(c, text=HOSTILE) for c in trace.commits]
    trace.footer = replace(trace.footer, error=HOSTILE)
    report = Opened(chromium, tmp_path, [trace])
    page = report.ready()
    page.get_by_label("rejected drafts").check()
    page.locator(".ss-token").first.hover()
    assert HOSTILE in page.locator(".ss-float").inner_text()
    page.locator(".ss-gantt").focus()
    page.keyboard.press(".")
    for fold in page.locator("#viewer details summary:visible").all():
        fold.click()
    assert page.locator("#viewer").locator("img, a, script, iframe").count() == 0
    assert page.get_by_text("bold").first.evaluate("(node) => node.tagName") != "B"
    page.wait_for_timeout(200)
    assert report.complaints == []
    page.close()


def test_the_prediction_of_a_planned_draft_is_a_line_of_its_pane(opened):
    plain, planned = sample_trace("tree"), sample_trace("tree")
    plan = {"nodes": 7, "levels": 3, "tokens_per_forward": 1.9, "speedup": 1.6}
    planned.header = replace(planned.header, run_id="planned", environment={"planned": plan})
    page = opened.runs([plain, planned])
    lines = [pane(page, i).locator(".ss-planned") for i in (0, 1)]
    assert [line.is_visible() for line in lines] == [False, True]
    assert lines[1].inner_text() == "planned: 7 nodes in 3 levels, predicted 1.9 tokens per forward, 1.60×"


def test_a_dark_ancestor_decides_and_a_viewer_in_a_hidden_tab_is_drawn_when_it_is_shown(opened, traces):
    page = opened.show(view_model(traces), theme="class")
    opened.ready()
    colour = "getComputedStyle(document.querySelector('#viewer .ss-card')).backgroundColor"
    span = next(s for s in traces[1].spans if s.kind == "verify").id
    assert page.evaluate(colour) == "rgb(251, 252, 254)"
    drawn_after(page, lambda: page.evaluate("document.body.classList.add('dark')"))
    assert page.evaluate(colour) == "rgb(17, 24, 39)"
    assert colours(page, centre_of(page, 1, span)) == ["rgb(20, 128, 194)"]
    page.evaluate("document.body.classList.remove('dark'), document.getElementById('viewer').hidden = true")
    opened.show(view_model(traces))
    page.evaluate("document.getElementById('viewer').hidden = false")
    opened.ready()
    assert colours(page, centre_of(page, 1, span)) == ["rgb(0, 114, 178)"]


def test_a_live_run_grows_in_place(opened):
    header, *rows = sample_events("pearl")
    trace = Trace(header)
    page = opened.show(view_model([trace]))
    assert page.get_attribute("#viewer", "data-state") == "live"
    assert "Waiting for the first token" in pane(page, 0).inner_text()
    for row in rows[: len(rows) // 2]:
        trace.add(row)
    update(page, [trace])
    assert page.get_by_role("group", name="Replay").is_hidden()
    page.evaluate("document.querySelector('.ss-token').kept = true")
    for row in rows[len(rows) // 2 :]:
        trace.add(row)
    update(page, [trace])
    assert page.get_attribute("#viewer", "data-state") == "ready"
    assert page.evaluate("document.querySelector('.ss-token').kept"), "tokens that are there stay"
    assert visible_text(page, 0) == trace.text
    update(page, [sample_trace("speculative")])
    assert visible_text(page, 0) == sample_trace("speculative").text
    ghosts = view_model([sample_trace("speculative")])["runs"][0]["ghosts"]
    assert pane(page, 0).locator(".ss-ghost").count() == len(ghosts)


def test_deltas_make_a_live_document_grow_as_a_new_one_would(opened):
    """A delta may repeat what the document has already, and lanes follow from the times."""
    for kind in ("speculative", "pearl", "shared"):
        events = sample_events(kind, tokens=12)[:-1]
        begun = next(i for i, e in enumerate(events) if isinstance(e, Commit)) + 2
        half, whole = (Trace.of(events[:n]) for n in (begun, len(events)))
        change = delta(whole.header.run_id, events, len(events), ended=False)
        grown = opened.page.evaluate(
            """([text, delta]) => {
                const model = SpecScope.unpack(JSON.parse(text));
                return [SpecScope.grow(model.runs[0], delta, new Map()), model.runs[0]];
            }""",
            [json.dumps(view_model([half])), change],
        )
        assert grown[0] is True
        expected = json.loads(json.dumps(view_model([whole])["runs"][0]))
        for one, other in zip(grown[1]["tracks"], expected["tracks"], strict=True):
            for name in ("id", "kind", "lane", "step", "rows"):
                assert one["spans"][name] == other["spans"][name], name
            assert one["spans"]["start"] == pytest.approx(other["spans"]["start"], abs=0.002)
            assert one["lanes"] == other["lanes"]
        for one, other in zip(grown[1]["tokens"], expected["tokens"], strict=True):
            assert [one[name] for name in ("position", "text", "outcome")] == [
                other[name] for name in ("position", "text", "outcome")
            ]
            assert one["t"] == pytest.approx(other["t"], abs=0.002)
        end = max(max(track["spans"]["end"]) for track in expected["tracks"])
        assert grown[1]["to"] == pytest.approx(end, abs=0.01)


def test_the_live_timeline_follows_its_deltas(opened):
    events = sample_events("pearl", tokens=40)[:-1]
    page = opened.show(view_model([Trace.of(events[: len(events) // 2])]))
    page.wait_for_selector("#viewer[data-drawn]")
    marks = int(page.get_attribute("#viewer", "data-marks"))
    change = delta("sample-pearl", events, len(events), ended=False)
    assert page.evaluate("(delta) => view.extend(delta)", change) is True
    end = view_model([Trace.of(events)])["axis"]["max"]
    while window(page)[1] < end:  # the window moves there in some frames
        page.wait_for_timeout(30)
    assert int(page.get_attribute("#viewer", "data-marks")) > marks
    assert page.evaluate("(delta) => view.extend({ ...delta, run: 'another' })", change) is True
    new = {**change["spans"], "device": ["gpu9"] * len(change["spans"]["id"])}
    assert page.evaluate("(delta) => view.extend(delta)", {**change, "spans": new}) is False


def test_the_text_of_a_long_run_is_opened_where_it_is_looked_at(opened):
    trace = sample_trace("speculative", tokens=2600)
    page = opened.runs([trace])
    text, tokens = pane(page, 0).locator(".ss-text"), pane(page, 0).locator(".ss-token:not(.ss-ghost)")
    assert text.inner_text().split() == trace.text.split(), "the whole text is there"
    assert tokens.count() < 2600
    page.evaluate("view.seek(1e9)")
    text.evaluate("(node) => { node.scrollTop = node.scrollHeight; }")
    expect(pane(page, 0).locator('.ss-token[data-index="2599"]')).to_have_count(1)
    clock = decoding_clock(trace)
    middle = trace.commits[1300].time
    page.evaluate("(t) => view.seek(t)", clock(middle))
    shown = "".join(c.text for c in trace.commits if c.time <= middle)
    assert text.inner_text().split() == shown.split()


def test_ghosts_of_a_growing_run_have_the_same_order(opened):
    header, *rows = sample_events("speculative", tokens=30, acceptance=0.6)
    order = "[...document.querySelectorAll('.ss-token')].map((node) => node.getAttribute('aria-label'))"
    trace = Trace(header)
    page = opened.show(view_model([trace]))
    for count, row in enumerate(rows):
        trace.add(row)
        if count % 25 == 0:
            update(page, [trace])
    update(page, [trace])
    grown = page.evaluate(order)
    opened.show(view_model([trace]))
    assert grown == page.evaluate(order)


def test_empty_failed_and_unknown_documents_have_messages(opened):
    page = opened.show(view_model([]))
    assert page.get_attribute("#viewer", "data-state") == "empty"
    assert page.get_by_text("Nothing to show yet").is_visible()
    trace = sample_trace("pearl")
    trace.footer = Footer("failed", ("",), ("",), trace.footer.time, "worker cpu:1 died; run again")
    page = opened.show(view_model([trace]))
    assert page.get_by_role("alert").inner_text() == "worker cpu:1 died; run again"
    page = opened.show(view_model([sample_trace("autoregressive")]))
    assert page.locator(".ss-note:visible").inner_text().startswith("no drafts in this run")
    page = opened.show({**view_model([]), "model": 99})
    assert page.get_attribute("#viewer", "data-state") == "error"
    assert "version 99" in page.get_by_role("alert").inner_text()


def test_runs_without_times_have_a_sentence_and_a_profile_without_tokens_a_timeline(opened):
    first, second = read_traces(IMPORTED / "vllm.jsonl").traces
    page = opened.runs([first, second])
    assert page.locator(".ss-gantt").is_hidden()
    assert page.locator(".ss-replay").is_hidden()
    assert page.get_by_role("button", name="fit", exact=True).is_hidden()
    page.locator(".ss-token").first.focus()
    for key in ".fn[+":
        page.keyboard.press(key)
    assert page.locator(".ss-untimed").count() == 2
    assert "the file holds no times" in page.locator(".ss-untimed").first.inner_text()
    assert "speed unknown" in pane(page, 0).inner_text()
    page.get_by_label("rejected drafts").check()
    page.locator(".ss-ghost").first.hover()
    card = page.locator(".ss-float").inner_text()
    assert "the file does not say which" in card
    assert "unknown" in card
    (trace,) = read_traces(IMPORTED / "sglang-profile.json").traces
    page = opened.runs([trace])
    assert page.locator(".ss-gantt").is_visible()
    assert page.locator(".ss-untimed").count() == 0
    assert "Imported from a profile of SGLang" in pane(page, 0).inner_text()
    page.locator(".ss-gantt").focus()
    page.keyboard.press(".")
    page.wait_for_selector(".ss-float:visible")
    card = page.locator(".ss-float").inner_text()
    assert "rows\nunknown" in card.lower()
    assert "discarded work" not in page.locator(".ss-legend").inner_text()
    assert "unknown tok/s" not in pane(page, 0).inner_text()


# Names that JavaScript knows, too.


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


def test_names_of_all_objects_are_shown_as_text(opened):
    before = opened.page.evaluate(CLEAN)
    kinds = ("speculative", "pearl") * 3
    pairs = zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True)
    opened.show(view_model([named(kind, *pair) for kind, pair in zip(kinds, pairs, strict=True)]))
    page = opened.ready()
    for name in NAMES:
        assert page.locator(".ss-row-label", has_text=name).count()
        assert page.locator("h3", has_text=name).count()
    assert "NaN" not in page.locator("#viewer").inner_text()
    assert page.evaluate(CLEAN) == before


def test_a_run_without_times_has_no_share_of_such_a_device(opened):
    (trace, *_) = read_traces(FILES / "vllm.jsonl").traces
    sample = named("speculative", "constructor", "toString")
    trace.header = replace(trace.header, devices=sample.header.devices)
    page = opened.show(view_model([trace, sample]))
    opened.ready()
    assert "NaN" not in page.locator("#viewer").inner_text()
