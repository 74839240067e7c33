"""The History's example: its files, and its three runs in the store and on the page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import gradio as gr
import pytest

from specscope.app.beside import FOLDER, GROUP, MOST_BYTES, files, keep, plan
from specscope.app.service import Service
from specscope.app.shipped import pack, unpack
from specscope.app.tabs.history import EXAMPLE, History
from specscope.engine.methods import METHODS
from specscope.traces.checks import check
from specscope.traces.comparable import other_load
from specscope.traces.diff import diff
from specscope.traces.export.report import render_report
from specscope.traces.imported import origin
from specscope.traces.store import Store
from specscope.traces.view.document import view_model
from tests.app.commands import call
from tests.docs.test_instrument import load_example


@pytest.fixture(scope="module")
def built():
    with gr.Blocks():
        return History(None)


@pytest.fixture(scope="module")
def traces():
    return [unpack(file) for file in files()]


def test_the_files_are_small_and_name_no_folder_of_a_machine(traces) -> None:
    assert {file.name for file in FOLDER.iterdir()} == {"beside.json", *(f.name for f in files())}
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= MOST_BYTES
    page = render_report(traces)
    assert not any(f'"{folder}' in page for folder in ("/root", "/home", "/tmp", "/usr"))
    for trace, file in zip(traces, files(), strict=True):
        assert gzip.decompress(pack(trace, GROUP)) == gzip.decompress(file.read_bytes())


def test_three_ways_write_the_same_tokens_with_the_same_models_prompt_and_draft_length(traces) -> None:
    wanted, titles = plan(), [trace.header.title for trace in traces]
    assert titles == ["assisted generation", *(METHODS[name].title for name in wanted["methods"])]
    assert all(title.lower() in EXAMPLE.lower() for title in titles)
    for trace in traces:
        check(trace)
        header = trace.header
        assert (trace.status, header.group) == ("done", GROUP)
        assert header.config["gamma"] == wanted["config"]["gamma"]
        assert [header.target_path, header.drafter_path] == ["bundled/target", "bundled/drafter"]
        assert trace.token_ids() == traces[0].token_ids()
        assert header.prompt_ids == traces[0].header.prompt_ids
        assert wanted["prompt"] in header.prompts[0]
        load = other_load(trace)
        assert load is None or not load.warning, "recorded while other programs used the machine"
    assert len(traces[0].token_ids()) == wanted["max_new_tokens"]
    assert wanted["prompt"] == load_example("assisted").PROMPT
    found = origin(traces[0].header)
    assert found is not None
    assert (found.recorded, found.unknown) == (True, ()), "its load by other programs is recorded"
    assert traces[0].header.environment["threads"] == 1


def test_no_speed_up_is_claimed_between_the_clocks_and_the_difference_says_why(traces) -> None:
    runs = view_model(traces)["runs"]
    assert {run["over"] for run in runs} == {None}
    assert {run["verdict"]["summary"] for run in runs} == {""}
    found = diff(*traces[:2])
    assert found.not_comparable == ("clock",)
    assert found.first_difference is None
    assert found.prefilled == (traces[0].rounds[0].emitted, 0)
    assert diff(*traces[1:]).not_comparable == ()


def test_a_press_stores_the_runs_once_and_opens_them_with_difference_and_what_if(page, service) -> None:
    for _ in range(2):
        state = page.open_example()
        assert service.store.runs()[1] == 3
    ids = json.loads(state[page.viewer])["runs"]
    assert service.store.group(ids[0]) == ids
    analysis = page.analysis
    assert state[analysis.second]["visible"] is state[analysis.chosen]["visible"] is True
    first, second = (state[run]["value"] for run in analysis.pair_of_runs)
    assert [first, second] == ids[:2]
    assert "different clock." in state[analysis.diff]
    assert "Not in the difference: the prefill of the first run" in state[analysis.diff]
    later = analysis.compare(*ids[1:])
    assert "PEARL" in later
    assert "cannot be compared" not in later
    assert [value for _, value in state[analysis.run]["choices"]] == ids
    replay = analysis.show_replay(ids[0], "", "pearl-4xA100", "", 0, "")
    assert replay[analysis.message] == ""
    assert f"what-if of {ids[0]}" in replay[analysis.result]
    assert state[analysis.profile]["value"] == "", "a measured run's own times are offered first"
    own = analysis.show_replay(ids[1], "", "", "", 0, "gamma=2")
    assert own[analysis.message] == ""
    assert "From this run&#x27;s own times: " in own[analysis.result]
    assert "these times give" in own[analysis.result]


def test_the_command_names_the_clock_and_the_prefill_too(capsys, db) -> None:
    with Store(Path(db[1])) as store:
        ids = keep(store)
    code, out, _ = call(capsys, "diff", *ids[:2], *db)
    assert code == 0
    assert "speeds cannot be compared: different clock\n" in out
    assert "Not in the difference: the prefill of the first run, which decided 1 token.\n" in out


def test_a_deleted_run_is_stored_again_and_a_store_that_cannot_be_written_is_one_line(service, built) -> None:
    ids = keep(service.store)
    assert service.store.delete(ids[1:2]) == 1
    assert keep(service.store) == ids
    assert sorted(s.header.run_id for s in service.store.runs()[0]) == sorted(ids)
    keep(service.store)
    built.service = without = Service(None, lambda **_: None)
    state = built.open_example()
    assert (
        'role="alert">runs are not stored: SpecScope was started without a database</p>'
        in (state[built.message])
    )
    without.close()
    built.service = service
    service.store.path.unlink()
    state = built.open_example()
    assert list(state) == [built.message]
    assert state[built.message].count("role=") == 1
