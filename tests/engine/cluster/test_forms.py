"""Drafters `int4` and `int8` in every runtime and method: the texts are the target's own."""

from __future__ import annotations

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.types import Limits, Sampling
from tests.engine.checkpoints.gguf_files import write
from tests.engine.runtimes.processes import six_cores

TARGET = Pair.find("bundled").target_path
PROMPT, NEW = "Tell me a story about a dragon.", Limits(20)
GREEDY, WARM = Sampling(), Sampling(temperature=0.9, top_k=60, top_p=0.95, seed=11)
THREADS = {"runtime": "local-thread", "device": "cpu"}
METHODS = {
    "speculative": {"gamma": 4},
    "pearl": {"gamma": 3},
    "dsi": {},
    "assisted": {},
    "easyspec": {"size": 2, "gamma": 3, "calibrate": False},
    "tree": {"width": 3, "depth": 3},
    "ouroboros": {},
}


def text(cluster, method, sampling=GREEDY, **config):
    trace = cluster.run(method, PROMPT, config=config, sampling=sampling, limits=NEW)
    assert trace.status == "done"
    return tuple(trace.token_ids())


@pytest.fixture(scope="module")
def expected():
    """Whether the text is greedy -> the target's own text."""
    with specscope.open(target=TARGET, **THREADS) as cluster:
        texts = {s.greedy: text(cluster, "autoregressive", s) for s in (GREEDY, WARM)}
    assert texts[True] != texts[False]
    return texts


@pytest.fixture(scope="module", params=["int4", "int8"])
def threads(request):
    with specscope.open(target=TARGET, drafter=request.param, **THREADS) as cluster:
        assert cluster.pair.drafter_path == TARGET / request.param
        yield cluster


@pytest.mark.parametrize("method", METHODS)
def test_greedy_texts_are_the_targets(method, threads, expected):
    assert text(threads, method, **METHODS[method]) == expected[True]


def test_most_drafts_are_accepted(threads):
    rounds = threads.run("speculative", PROMPT, config={"gamma": 6}, limits=Limits(60)).rounds
    assert 0.6 < sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds) <= 1


@pytest.mark.parametrize("most", [5, 1000], ids=["a long prompt's rows move in parts", "all at once"])
def test_int4_drafts_from_the_targets_rows_of_the_prompt(threads, expected, monkeypatch, most):
    monkeypatch.setattr("specscope.engine.run.models.PREFILL_ROWS", most)
    trace = threads.run("speculative", PROMPT, limits=NEW)
    assert tuple(trace.token_ids()) == expected[True]
    spans = [s for s in trace.spans if s.step == 0]
    prefills = {s.model for s in spans if s.kind == "prefill"}
    moved = [(s.model, s.rows, s.context) for s in spans if s.kind == "communicate"]
    rows = len(threads.pair.encode(PROMPT)) - 1
    parts = [(min(most, rows - start), start) for start in range(0, rows, most)]
    if threads.pair.drafter_path == TARGET / "int4":
        assert prefills == {"target"}
        assert sorted(moved) == sorted((model, *part) for model in ("target", "drafter") for part in parts)
    else:  # its values are rotated
        assert (prefills, moved) == ({"target", "drafter"}, [])
    assert sum(r.accepted for r in trace.rounds) > 8, "the rows are the prompt's"


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("dsi", {}),
        ("tree", {"width": 3, "depth": 2, "drafts": "greedy"}),
        ("easyspec", {"size": 2, "gamma": 3, "calibrate": False, "drafts": "greedy"}),
    ],
)
def test_greedy_drafts_leave_the_warm_text_as_it_is(method, config, threads, expected):
    assert text(threads, method, WARM, **config) == expected[False]


def test_a_header_names_the_form_and_opens_the_same_models_again(threads):
    header = threads.run("speculative", PROMPT, limits=Limits(2)).header
    assert header.target_path == str(TARGET)
    assert header.drafter_path == str(threads.pair.drafter_path)
    assert header.drafter_path.endswith(("/int4", "/int8"))
    again = Pair.of(header.target_path, header.drafter_path)
    assert again.models == threads.pair.models


VIRTUAL = {"runtime": "virtual", "profile": "pearl-4xA100"}


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ("int8", VIRTUAL),
        ("int4", VIRTUAL),
        ("int4", {**THREADS, "forward": "static"}),
        ("int8", {**THREADS, "memory": "0=75MB,1=60MB"}),
        ("int8", {**THREADS, "dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_texts_do_not_depend_on_the_runtime(form, place, expected, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    with specscope.open(target=TARGET, drafter=form, **place) as cluster:
        if place.get("dtype") == "bfloat16":
            assert text(cluster, "speculative") == text(cluster, "autoregressive")
            return
        assert text(cluster, "speculative") == expected[True]
        assert text(cluster, "pearl", gamma=2) == expected[True]
        assert text(cluster, "tree", WARM, width=2, depth=2, drafts="greedy") == expected[False]


def test_processes_that_split_a_form_draft_for_the_targets_text(expected, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    with specscope.open(target=TARGET, drafter="int4", device="cpu", drafter_tp=2) as cluster:
        trace = cluster.run("speculative", PROMPT, config={"gamma": 3}, limits=Limits(8))
    assert tuple(trace.token_ids()) == expected[True][:8]
    assert sum(r.accepted for r in trace.rounds) > 3


def test_several_forms_race(expected, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    with specscope.open(target=TARGET, drafter=["int4", "int8"], **THREADS) as cluster:
        trace = cluster.run("dsi", PROMPT, config={"drafters": 2, "lookahead": 2}, limits=NEW)
        assert tuple(trace.token_ids()) == expected[True]
        assert trace.header.environment["further_drafters"] == [str(TARGET / "int8")]
        assert len({s.device for s in trace.spans if s.model == "drafter"}) == 2


def test_a_gguf_file_drafts_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("specscope.engine.model.weights.PACKED_FROM", 0)
    file = write(tmp_path / "a.gguf", "Q4_0")
    with specscope.open(target=file, drafter=["int8", "int4"], **THREADS) as cluster:
        plain = text(cluster, "autoregressive")
        assert text(cluster, "speculative") == text(cluster, "pearl") == plain
        folder = cluster.pair.target_path
        assert cluster.pair.drafter_paths == (folder / "int8", folder / "int4")
        header = cluster.run("speculative", PROMPT, limits=Limits(2)).header
    assert Pair.of(header.target_path, header.drafter_path).drafter_path == folder / "int8"
    assert sorted(file.name for file in folder.iterdir() if file.is_dir()) == []
