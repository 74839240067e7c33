"""Recorded examples: the race of the first page, and the three runs of the History's example."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from specscope.app.jobs.service import Service
from specscope.app.shipped import beside, demo
from specscope.app.shipped.beside import GROUP, keep
from specscope.app.shipped.packing import pack, unpack
from specscope.app.tabs.history import EXAMPLE, History
from specscope.engine.methods import METHODS
from specscope.traces.database.store import Store
from specscope.traces.export.report import render_report
from specscope.traces.facts.checks import check
from specscope.traces.facts.comparable import other_load
from specscope.traces.facts.imported import origin
from specscope.traces.judge.diff import diff
from specscope.traces.view.document import view_model
from tests.app.commands import printed
from tests.docs.test_instrument import load_example


@pytest.fixture(scope="module")
def built():
    with gr.Blocks():
        return History(None)


@pytest.fixture(scope="module")
def traces():
    return [unpack(file) for file in beside.files()]


@pytest.mark.parametrize("example", [beside, demo], ids=["beside", "demo"])
def test_the_files_are_small_and_name_no_folder_of_a_machine(example, traces) -> None:
    settings = f"{example.__name__.rpartition('.')[2]}.json"
    assert {file.name for file in example.FOLDER.iterdir()} == {settings, *(f.name for f in example.files())}
    assert sum(file.stat().st_size for file in example.FOLDER.iterdir()) <= example.MOST_BYTES
    page = demo.demo_document() if example is demo else render_report(traces)
    assert not any(f'"{folder}' in page for folder in ("/root", "/home", "/tmp", "/usr"))


def test_a_packed_run_names_no_folder_of_a_machine(traces, tmp_path) -> None:
    header = traces[0].header
    environment = {**header.environment, "head": "/srv/models/eagle"}
    local = replace(header, environment=environment, target_path="/srv/models/bundled/target")
    (tmp_path / "run").write_bytes(pack(replace(traces[0], header=local), GROUP))
    packed = unpack(tmp_path / "run").header
    assert (packed.target_path, packed.environment) == ("bundled/target", header.environment)


def test_three_methods_race_on_the_first_page_with_the_same_text_and_a_sentence_each() -> None:
    document, wanted = json.loads(demo.demo_document()), demo.plan()
    runs = document["model"]["runs"]
    assert [run["title"] for run in runs] == [METHODS[r["method"]].title for r in wanted["runs"]]
    assert len(runs) == len(document["looks"]) == 3
    assert all(look.endswith(".") for look in document["looks"])
    assert runs[0]["baseline"]
    assert all(run["identity"]["same"] for run in runs[1:])
    for run in runs:
        assert (run["prompts"][0], run["status"], run["over"]) == (wanted["prompt"], "done", runs[0]["id"])


def test_three_ways_write_the_same_tokens_with_the_same_models_prompt_and_draft_length(traces) -> None:
    wanted, titles = beside.plan(), [trace.header.title for trace in traces]
    assert titles == ["assisted generation", *(METHODS[name].title for name in wanted["methods"])]
    assert all(title.lower() in EXAMPLE.lower() for title in titles)
    for trace, file in zip(traces, beside.files(), strict=True):
        check(trace)
        header, load = trace.header, other_load(trace)
        assert gzip.decompress(pack(trace, GROUP)) == gzip.decompress(file.read_bytes())
        assert (trace.status, header.group) == ("done", GROUP)
        assert header.config["gamma"] == wanted["config"]["gamma"]
        assert (header.target_path, header.drafter_path) == ("bundled/target", "bundled/drafter")
        assert trace.token_ids() == traces[0].token_ids()
        assert header.prompt_ids == traces[0].header.prompt_ids
        assert wanted["prompt"] in header.prompts[0]
        assert load is None or not load.warning, "recorded while other programs used the machine"
    assert len(traces[0].token_ids()) == wanted["max_new_tokens"]
    assert wanted["prompt"] == load_example("assisted").PROMPT
    found = origin(traces[0].header)
    assert found is not None
    assert (found.recorded, found.unknown) == (True, ()), "its load by other programs is recorded"
    assert traces[0].header.environment["threads"] == 1


def test_no_speed_up_is_claimed_between_the_clocks_and_the_difference_says_why(traces, capsys, db) -> None:
    for run in view_model(traces)["runs"]:
        assert (run["over"], run["verdict"]["summary"]) == (None, "")
    found = diff(*traces[:2])
    assert (found.not_comparable, found.first_difference) == (("clock",), None)
    assert found.prefilled == (traces[0].rounds[0].emitted, 0)
    assert diff(*traces[1:]).not_comparable == ()
    with Store(Path(db[1])) as store:
        ids = keep(store)
    out = printed(capsys, "diff", *ids[:2], *db)
    assert "speeds cannot be compared: different clock\n" in out
    assert "Not in the difference: the prefill of the first run, which decided 1 token.\n" in out


def test_a_press_stores_the_runs_once_and_opens_them_with_difference_and_what_if(page, service) -> None:
    for _ in range(2):
        state = page.open_example()
        assert service.store.runs()[1] == 3
    ids, analysis = json.loads(state[page.viewer])["runs"], page.analysis
    assert service.store.group(ids[0]) == ids
    assert state[analysis.second]["visible"] is state[analysis.chosen]["visible"] is True
    assert [state[run]["value"] for run in analysis.pair_of_runs] == ids[:2]
    assert "different clock." in state[analysis.diff]
    assert "Not in the difference: the prefill of the first run" in state[analysis.diff]
    later = analysis.compare(*ids[1:])
    assert ("PEARL" in later, "cannot be compared" in later) == (True, False)
    assert [value for _, value in state[analysis.run]["choices"]] == ids
    assert state[analysis.made["profile"]]["value"] == "", "a measured run's own times are offered first"
    for run, profile, settings, said in (
        (ids[0], "pearl-4xA100", "", (f"what-if of {ids[0]}",)),
        (ids[1], "", "gamma=2", ("From this run&#x27;s own times: ", "these times give")),
    ):
        replay = analysis.show_replay(run, "", profile, "", 0, settings)
        assert replay[analysis.message] == ""
        assert all(part in replay[analysis.result] for part in said)


def test_a_deleted_run_is_stored_again_and_a_store_that_cannot_be_written_is_one_line(service, built) -> None:
    ids = keep(service.store)
    assert service.store.delete(ids[1:2]) == 1
    assert keep(service.store) == keep(service.store) == ids
    assert sorted(s.header.run_id for s in service.store.runs()[0]) == sorted(ids)
    built.service = without = Service(None, lambda **_: None)
    alert = 'role="alert">runs are not stored: SpecScope was started without a database</p>'
    assert alert in built.open_example()[built.message]
    without.close()
    built.service = service
    service.store.path.unlink()
    state = built.open_example()
    assert list(state) == [built.message]
    assert state[built.message].count("role=") == 1
