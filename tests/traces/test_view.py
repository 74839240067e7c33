"""The viewer's document, and the texts of a pane."""

import json
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.trace.events import Commit, Footer, Occupancy, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.export.assets import viewer_style
from specscope.traces.facts import fates, metrics, waiting
from specscope.traces.facts.settings import config_text, planned_text
from specscope.traces.view.document import VERSION, view_model
from specscope.traces.view.figures import figure_rows
from tests.traces.samples import KINDS, MS, sample_events, sample_trace, shown, with_header
from tests.traces.strategies import few, traces


def ids(track, fate):
    spans = track["spans"]
    return {i for i, f in zip(spans["id"], spans["fate"], strict=True) if f == fate}


@few
@given(st.lists(traces(ended=None), max_size=3), st.booleans())
def test_any_trace_has_a_document_of_plain_json(runs, redact):
    model = view_model(runs, redact_prompt=redact)
    text = json.dumps(model, allow_nan=False)
    assert json.dumps(json.loads(text)) == text
    assert model["model"] == VERSION
    for run in model["runs"]:
        assert not run["headline"] or abs(sum(part["percent"] for part in run["headline"]) - 100) <= 1
        assert run["from"] <= run["to"]


DRAFTED = ("speculative", "pearl", "shared", "tree")
NOWHERE = ("ngrams", "forecasts", "forecast_sums", "fans", "hits", "layers", "lengths", "pool")
SECTIONS = dict.fromkeys(NOWHERE, ()) | {
    "trees": ("tree",),
    "copies": ("llma",),
    "sources": ("llma",),
    "calibration": DRAFTED,
}
"""Section -> the samples that have it."""


@pytest.mark.parametrize("kind", KINDS)
def test_only_runs_with_the_rows_of_a_section_have_it(kind):
    trace = sample_trace(kind)
    run = shown(trace)
    assert {name for name in SECTIONS if run[name]} == {n for n, kinds in SECTIONS.items() if kind in kinds}
    assert fates.sp_degree(trace) == 1
    assert (metrics.measure(trace).calibration_error is None) == (kind not in DRAFTED)
    assert (waiting.overlap(trace)["both"] > 0.5) is (kind == "pearl")
    assert any(ghost["branch"] for ghost in run["ghosts"]) is (kind == "tree")


@pytest.mark.parametrize("kind", KINDS)
def test_span_fates_agree_with_wasted_work(kind):
    trace = sample_trace(kind, tokens=40, acceptance=0.6)
    tracks = shown(trace)["tracks"]
    lost = {i for t in tracks for fate in ("rejected", "discarded", "cancelled") for i in ids(t, fate)}
    assert lost == {s.id for s in fates.wasted(trace)}


def test_speed_up_and_identity_compare_with_the_run_that_drafts_nothing():
    plain, pearl = sample_trace("autoregressive"), sample_trace("pearl")
    first, second = view_model([pearl, plain])["runs"]
    assert (first["baseline"], second["baseline"]) == (False, True)
    over = metrics.speedup(metrics.measure(pearl), metrics.measure(plain))
    assert first["figures"]["speedup"] == f"{over:.2f}×"
    assert second["figures"]["speedup"] == "1.00×"
    assert second["identity"] is None
    assert shown(pearl)["figures"]["speedup"] == "–"


def test_identity_has_the_first_difference():
    plain, other = sample_trace("autoregressive"), sample_trace("speculative")

    def identity():
        return view_model([plain, other])["runs"][1]["identity"]

    other.commits = [replace(c, step=i + 1) for i, c in enumerate(plain.commits)]
    assert identity() == {"same": True, "at": None, "length": 24, "final": True}
    other.commits[5] = replace(other.commits[5], token=other.commits[5].token + 1)
    assert identity()["at"] == 5
    del other.commits[5:]
    assert identity()["at"] == 5, "an ended run that is shorter differs"
    other.footer = None
    assert identity() == {"same": True, "at": None, "length": 5, "final": False}
    other.header = replace(other.header, prompt_ids=((1, 2),))
    assert identity() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_progress_has_a_document_at_every_event(kind):
    header, *rows = sample_events(kind, tokens=10)
    trace = Trace(header)
    for count, row in enumerate([None, *rows]):
        if row is not None:
            trace.add(row)
        model = view_model([trace])
        run = model["runs"][0]
        assert len(run["tokens"]) == sum(isinstance(r, Commit) for r in rows[:count])
        assert model["state"] == ("ready" if isinstance(row, Footer) else "live")
        if not isinstance(row, Footer):
            decided = {d.draft_span for d in trace.decisions}
            drafts = {s.id for s in trace.spans if s.kind == "draft"}
            assert {i for t in run["tracks"] for i in ids(t, "open")} == drafts - decided


def test_states():
    assert view_model([])["state"] == "empty"
    trace = sample_trace("pearl")
    trace.footer = Footer("failed", ("",), ("",), trace.footer.time, "worker cpu:1 died")
    run = shown(trace)
    assert (run["status"], run["error"]) == ("failed", "worker cpu:1 died")


def test_a_redacted_prompt_is_nowhere_in_the_document():
    trace = sample_trace("pearl")
    secret = trace.header.prompts[0]
    for redact in (False, True):
        text = json.dumps(view_model([trace], redact_prompt=redact), ensure_ascii=False)
        assert (secret in text) is not redact


def test_a_device_that_only_prefilled_gets_no_track():
    trace, drafter = sample_trace("autoregressive"), sample_trace("pearl").header.devices[0]
    trace.header = replace(trace.header, devices=(drafter, *trace.header.devices))
    trace.spans.append(Span(9999, drafter.name, "prefill", 0, 5 * MS, "drafter", 0, 0, 4, 0, "done"))
    assert [t["device"] for t in shown(trace)["tracks"]] == ["gpu1"]


@pytest.mark.parametrize(
    ("kind", "label"),
    [("cpu", "whole core (psutil)"), ("cuda", "whole card (NVML)"), ("virtual", "measured")],
)
def test_measured_load_is_labelled_with_its_meter(kind, label):
    trace = sample_trace("pearl")
    first, second = (replace(d, kind=kind) for d in trace.header.devices)
    start, end = waiting.decode_window(trace)
    samples = [(-2 * MS, 1.0, 900, 90.0), (MS, 0.25, 700, 100.0), (end - start, 0.75, 800, 200.0)]
    trace = with_header(trace, devices=(first, second))
    trace.occupancy = [Occupancy(second.name, start + at, *rest) for at, *rest in samples]
    run = shown(trace)
    assert [track["measured"] for track in run["tracks"]] == [
        None,
        {
            "label": label,
            "samples": [(pytest.approx(at / MS), *rest) for at, *rest in samples],
            "busy": 0.5,
            "memory": 900,
            "power": 130.0,
        },
    ]
    assert run["figures"]["measured_occupancy"] == f"{second.label} 50 %"
    assert run["metrics"]["occupancy"][second.name] != 0.5
    run = shown(replace(trace, occupancy=[]))
    assert [track["measured"] for track in run["tracks"]] == [None, None]
    assert run["figures"]["measured_occupancy"] == "–"


def test_every_metric_is_shown_and_explained():
    rows = {row["key"]: row for row in figure_rows()}
    measured = {f.name for f in fields(metrics.Metrics)}
    assert measured - rows.keys() == {"waiting"}
    assert rows.keys() - measured == {"speedup", "both", "target_waits", "drafter_waits"}
    assert all(row["definition"].endswith(".") for row in rows.values())
    assert shown(sample_trace("pearl"))["figures"].keys() == rows.keys()


def contrast(a, b):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


TEXTS = ("ink", "muted", "rejected", "bad", "good", "warn")
BANDS = ["verify", "prefill", "communicate", "band-both", "band-draft", "band-target"]
BANDS += ["hatch", "control", "accepted", "bonus", "focus"]
EDGES = {
    "light": ["draft-edge", "pre-verify-edge", "calibrate-edge", "sample-edge"],
    "dark": ["draft", "pre-verify", "calibrate", "sample"],
}


@pytest.mark.parametrize("theme", EDGES)
def test_colours_stand_out_from_the_card(theme):
    pairs = re.findall(r"--ss-([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", viewer_style())
    colours = {"draft": "#e69f00", "calibrate": "#44aa99"}
    colours |= {name: dark if theme == "dark" else light for name, light, dark in pairs}
    for name in TEXTS:
        assert contrast(colours[name], colours["card"]) >= 4.5, name
    assert min(contrast(colours[name], colours["lit"]) for name in ("ink", "rejected")) >= 4.5
    for name in BANDS + EDGES[theme]:
        assert contrast(colours[name], colours["card"]) >= 3, name


@pytest.mark.parametrize(
    ("method", "config", "text"),
    [
        ("autoregressive", {}, ""),
        ("speculative", {"gamma": 5, "drafts": "sampled"}, "γ 5"),
        ("speculative", {"gamma": 5, "drafts": "greedy"}, "γ 5 · drafts greedy"),
        ("pearl", {"gamma": 4, "pre_verify": False, "post_verify": True}, "γ 4 · pre_verify off"),
        ("eagle", {"tree": "eagle", "drafts": "sampled"}, ""),
        ("eagle", {"tree": "[[0],[1],[0,0]]", "drafts": "sampled"}, "tree 3 nodes in 2 levels"),
        ("eagle", {"tree": "[[0],[9]]", "drafts": "sampled"}, "tree [[0],[9]]"),
        ("eagle2", {"top": 4, "depth": 6, "total": 7}, "top 4 · total 7"),
        ("llma", {"reference": "a long  text\n" * 20}, "reference a long text a long text a long…"),
        ("not known here", {"width": 3}, "width 3"),
    ],
)
def test_headings_show_gamma_and_settings_that_are_not_the_default(method, config, text):
    assert config_text(method, config) == text


PLAN = {"nodes": 7, "levels": 3, "tokens_per_forward": 1.93, "speedup": 1.6}
THREE = "planned: 7 nodes in 3 levels, predicted 1.9 tokens per forward, 1.60×"
WHY = "γ 22, because one target forward was measured to take as long as 22.3 drafter forwards"
PLANNED = {
    "a tree": (PLAN, THREE),
    "slower": (
        {**PLAN, "nodes": 1, "levels": 1, "speedup": 0.91},
        "planned: 1 node in 1 level, predicted 1.9 tokens per forward, 0.91×: plain decoding is faster",
    ),
    "under load": ({**PLAN, "others": 1.26}, f"{THREE}; measured while other programs used 1.3 cores"),
    "on one GPU": (
        {**PLAN, "shared": True},
        f"{THREE}; both models are on one GPU, where drafting beside a verification saves no time",
    ),
    "a chain": (
        {**PLAN, "nodes": 16, "levels": 16, "tokens_per_forward": 9.0},
        "planned: 16 tokens in a row, predicted 9.0 tokens per forward, 1.60×",
    ),
    "none": (None, ""),
    "a list": ([1], ""),
    "markup": ({**PLAN, "nodes": "<b>"}, ""),
    "endless": ({**PLAN, "levels": float("inf")}, ""),
}


@pytest.mark.parametrize(("planned", "text"), PLANNED.values(), ids=PLANNED)
def test_a_planned_draft_is_shown_with_its_prediction(planned, text):
    trace = sample_trace("tree")
    environment = trace.header.environment | {"planned": planned}
    assert shown(with_header(trace, environment=environment))["planned"] == text
    assert shown(trace)["planned"] == ""


@pytest.mark.parametrize(
    ("environment", "gamma", "known"),
    [
        ({"open": {"gamma": 0}, "c": 22.3}, 22, True),
        ({"open": {"gamma": 0}, "c": 22.3}, 5, False),
        ({"open": {}, "c": 22.3}, 22, False),
        ({"open": {"gamma": 0}}, 22, False),
        ({"open": 3, "c": "x"}, 22, False),
        ({"open": {"gamma": 0}, "c": float("nan")}, 22, False),
        ({"open": {"gamma": 0}, "c": 22.3}, 10**400, False),
    ],
)
def test_a_draft_chosen_by_speed_says_why_it_is_so_long(environment, gamma, known):
    header = sample_trace("pearl").header
    text = planned_text(replace(header, environment=environment, config={**header.config, "gamma": gamma}))
    assert text.startswith(WHY) == bool(text) == known


def test_a_run_without_drafts_has_a_note_with_the_reason():
    plain = sample_trace("autoregressive")
    assert "the method has no drafter" in shown(plain)["note"]
    assert "target busy" in [part["label"] for part in shown(plain)["headline"]]
    assert shown(sample_trace("pearl"))["note"] == ""
    plain.header = replace(plain.header, method="pearl", drafter_path="there")
    assert "every round was a plain target forward" in shown(plain)["note"]
    plain.header = replace(plain.header, drafter_path="")
    assert "no drafter was given" in shown(plain)["note"]
    plain.rounds.clear()
    assert "ended before its first round" in shown(plain)["note"]
