"""The history tab's handlers over a real database and a fake cluster."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import gradio as gr
import pytest

from specscope.app.jobs import long
from specscope.app.jobs.service import Service
from specscope.app.render.history import models_of, moment, runs_table, when
from specscope.app.tabs import history
from specscope.app.tabs.history import History, wanted_runs
from specscope.app.web.routes import import_trace
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.trace.jsonl import write_jsonl
from specscope.engine.types import Sampling
from specscope.traces.facts.metrics import measure
from tests.app.commands import IMPORTED


@pytest.fixture(scope="module")
def built():
    """The history's components, which all tests share."""
    with gr.Blocks():
        return History(None)


def the_run(name: str, **more) -> SimpleNamespace:
    """Return the event of a press on a run."""
    return SimpleNamespace(run=name, **more)


def opened_runs(state, page) -> list[str]:
    return json.loads(state[page.viewer])["runs"]


def test_an_empty_history_a_repeated_search_and_an_unknown_run(page) -> None:
    state = page.refresh()
    assert 'data-state="empty"' in state[page.table]
    assert state[page.delete]["interactive"] is False
    assert page.find("", {"query": ""}) == gr.skip()
    for state in (page.show(["nobody"]), page.open_group(the_run("nobody"))):
        assert "nobody" in state[page.message]
        assert 'role="alert"' in state[page.message]
    assert (wanted_runs("a,b,"), wanted_runs("")) == (["a", "b"], [])
    with pytest.raises(UsageError, match="at most 8"):
        wanted_runs("a,b,c,d,e,f,g,h,i")


def test_runs_are_listed_newest_first_escaped_and_with_the_speed_of_the_open_run(page, run) -> None:
    first, second, opened = (
        run(prompt="<script>alert(1)</script>"),
        run("pearl", group="g"),
        run("speculative"),
    )
    table = page.refresh()[page.table]
    assert table.index(second.run_id) < table.index(first.run_id)
    assert ("<script>" in table, "&lt;script&gt;" in table) == (False, True)
    assert [f'data-group="{r.run_id}"' in table for r in (first, second)] == [False, True]
    assert "measured · local-process" in table
    metrics = measure(page.service.store.load(opened.run_id))
    speed = f"{metrics.tokens_per_second:.1f}"
    assert speed != f"{metrics.tokens_per_second_with_prefill:.1f}"
    assert f'<td class="app-n">{speed}</td>' in table


def test_a_row_has_id_models_temperature_speedup_race_time_and_load(page, run) -> None:
    race = {"group": "race0123456", "sampling": Sampling(temperature=0)}
    plain, pearl = (run(m, **race) for m in ("autoregressive", "pearl"))
    rows = page.refresh()[page.table].split("<tr data-run=")[1:]
    (row,) = (row for row in rows if row.startswith(f'"{pearl.run_id}"'))
    speeds = [measure(page.service.store.load(r.run_id)).tokens_per_second for r in (pearl, plain)]
    for part in (
        f"<small>{pearl.run_id}</small>",
        f"<small>{models_of(page.service.store.header(pearl.run_id))}</small>",
        '<td class="app-n">0</td>',
        f'<td class="app-n">{speeds[0] / speeds[1]:.2f}×</td>',
        ">race0123</button>",
    ):
        assert part in row
    assert ">load</span>" not in row
    (one, *_), _ = page.service.store.runs()
    for changed, badge in (
        ({"load": "Other programs used 1.0 of 2 cores."}, 'title="Other programs used 1.0 of 2 cores.">load</span>'),
        ({"status": "failed", "error": '"><b>'}, 'title="&quot;&gt;&lt;b&gt;">failed</span>'),
    ):  # fmt: skip
        assert badge in runs_table([one._replace(**changed)], 1, 0, 20)
    created = "2026-07-01T10:00:02.345+00:00"
    assert moment(created) == f'<time datetime="{created}">2026-07-01 10:00:02 UTC</time>'
    assert when("long ago") == "long ago"


def test_row_and_heading_of_a_lossy_run_have_a_badge(page, run) -> None:
    warm, typical = Sampling(temperature=0.9), {"acceptance": "typical"}
    run("medusa", sampling=warm)
    run("medusa", config=typical)
    assert "lossy" not in page.refresh()[page.table]
    lossy = run("medusa", sampling=warm, config=typical)
    rows = page.refresh()[page.table].split("<tr data-run=")
    assert [row.count(">lossy</span>") for row in rows[1:]] == [1, 0, 0]
    state = page.open_one(the_run(lossy.run_id))
    assert ">lossy</span>" in state[page.heading]


def test_pages_and_search(page, run, monkeypatch) -> None:
    monkeypatch.setattr(history, "PAGE_SIZE", 2)
    runs = [run(prompt=f"Tell me of the {name}.") for name in ("whale", "storm", "harbour")]
    first = page.refresh()[page.table]
    assert "1 to 2 of 3" in first
    assert 'data-offset="2" >older' in first
    second = page.turn_page("", {"offset": 0, "selected": []}, SimpleNamespace(offset=2))
    assert "3 to 3 of 3" in second[page.table]
    assert second[page.place] == {"query": "", "offset": 2, "selected": []}
    table = page.find("storm", {"query": ""})[page.table]
    assert runs[1].run_id in table
    assert "1 to 1 of 1" in table
    assert "No run contains “&lt;b&gt;”" in page.find("<b>", {"query": ""})[page.table]


def test_selection_spans_pages(page) -> None:
    event = SimpleNamespace(listed=["a", "b"], ticked=["b"])
    state = page.pick({"offset": 0, "selected": ["a", "z"]}, event)
    assert state[page.place]["selected"] == ["z", "b"]
    assert state[page.open] == gr.update(interactive=True, value="Compare 2")
    nine = page.pick({"offset": 0, "selected": list("abcdefghi")}, SimpleNamespace(listed=[], ticked=[]))
    assert nine[page.open]["interactive"] is False
    assert nine[page.delete]["interactive"] is True


def test_a_run_opens_with_its_downloads_a_race_with_its_passes_and_a_comparison_goes_back(page, run) -> None:
    opened = run("speculative").run_id
    state = page.open_one(the_run(opened))
    assert (opened_runs(state, page), state[page.detail]["visible"]) == ([opened], True)
    exports = (f"export/{opened}/{name}" for name in ("trace.jsonl", "tokens.csv", "perfetto.json"))
    addresses = (f"/specscope/{one}" for one in (f"report.html?runs={opened}", *exports))
    assert all(address in state[page.heading] for address in (f"/?run={opened}", *addresses))
    runs = [run(m, group="g").run_id for m in ("autoregressive", "pearl", "pearl", "autoregressive")]
    state = page.open_group(the_run(runs[1]))
    names = opened_runs(state, page)
    assert [set(name.split("~")) for name in names] == [{runs[0], runs[3]}, {runs[1], runs[2]}]
    assert f"?run={','.join(names)}" in state[page.heading]
    selected = {"offset": 0, "selected": [runs[0]]}
    assert opened_runs(page.open_selected(selected), page) == [runs[0]]
    back = page.list_again("", selected)
    assert (back[page.listing]["visible"], opened_runs(back, page)) == (True, [])


def test_a_long_run_opens_without_its_rows_and_is_analysed_later(page, run, service, monkeypatch) -> None:
    opened = run("speculative").run_id
    assert page.analyse(page.open_one(the_run(opened))[page.viewer]) == gr.skip()
    monkeypatch.setattr(long, "LONG", 1)
    with monkeypatch.context() as unread:
        for part, reads in ((service.store, "load"), (service, "trace")):
            unread.setattr(part, reads, lambda run: pytest.fail(f"{run} was read whole"))
        state = page.open_one(the_run(opened))
    assert opened_runs(state, page) == [opened]
    assert opened in state[page.heading]
    assert not any(state[card]["visible"] for card in page.analysis.cards)
    later = page.analyse(state[page.viewer])
    assert (later[page.analysis.run]["value"], later[page.analysis.third]["visible"]) == (opened, True)
    monkeypatch.setattr(history, "MOST_ANALYSED", 1)
    assert page.analyse(state[page.viewer]) == gr.skip()


def test_a_bad_file_is_an_error_without_path_and_an_exported_run_is_imported_once(
    page, service, tmp_path, run
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"event":"nonsense"}\n')
    with file.open("rb") as opened, pytest.raises(UsageError, match=r"^the file is not a .* line 1"):
        import_trace(service, opened)
    state = page.show_imported("", SimpleNamespace(run="", error="the <file> is bad"))
    assert 'role="alert"' in state[page.message]
    assert "the &lt;file&gt; is bad" in state[page.message]
    trace = run("pearl").trace()
    with file.open("w", encoding="utf-8") as out:
        write_jsonl(trace, out)
    service.store.delete([trace.header.run_id])
    with file.open("rb") as opened:
        assert import_trace(service, opened) == (trace.header.run_id, "")
    state = page.show_imported("storm", the_run(trace.header.run_id, set="", error=""))
    assert f"Run {trace.header.run_id} was imported" in state[page.message]
    assert trace.header.run_id in state[page.table]
    assert service.store.load(trace.header.run_id).commits == trace.commits
    with file.open("rb") as opened, pytest.raises(SpecScopeError):
        import_trace(service, opened)


def test_runs_of_another_engine_are_listed_with_what_is_known(page, service) -> None:
    notes = []
    for name in ("vllm.jsonl", "sglang.json", "sglang-profile.json"):
        with (IMPORTED / name).open("rb") as opened:
            notes.append(import_trace(service, opened)[0])
    assert notes[0].endswith(" (and 1 more)")
    rows = page.refresh()[page.table].split("<tr data-run=")[1:]
    counts = {row.split("imported · ")[1].split("<")[0]: row for row in rows}
    assert set(counts) == {"vLLM", "SGLang"}
    numbers = sorted(cell for row in rows for cell in re.findall(r'class="app-n">([^<]*)<', row)[1:2])
    assert numbers == ["10", "5", "8", "–"]


def test_an_imported_file_is_shown_as_one_set_and_so_are_selected_runs(page, service, run) -> None:
    with (IMPORTED / "vllm.jsonl").open("rb") as opened:
        said, name = import_trace(service, opened)
    state = page.show_imported("", the_run(said, set=name, error=""))
    assert state[page.detail]["visible"]
    assert opened_runs(state, page) == []
    shown = state[page.heading]
    assert f'data-runs="set:{name}"' in shown
    assert f"Run {said} was imported." in shown
    assert "One set of 2" in shown
    assert 'href="/?run=' in shown.partition("lowest acceptance")[2]
    assert page.show([f"set:{name}"])[page.heading] == page.open_grouped(the_run(name))[page.heading]
    assert f'data-set="{name}"' in page.refresh()[page.table]
    mine = [run("pearl").run_id, run("speculative").run_id]
    state = page.open_as_set({"selected": mine})
    assert "2 settings are mixed" in state[page.heading]
    assert wanted_runs(f"set:{','.join(mine * 5)}")[0] == f"set:{mine[0]}"
    assert "there is no run" in page.show(["set:nobody"])[page.message]
    asked = page.ask_delete_set("", {}, the_run("", runs=name))
    assert "Delete these 2 runs and their traces?" in asked[page.question]
    assert len(asked[page.place]["selected"]) == 2
    assert "2 runs deleted" in page.delete_runs("", asked[page.place])[page.message]
    assert "there is no run" in page.ask_delete_set("", {}, the_run("", runs=name))[page.message]
    with (IMPORTED / "printed" / "11-spec-bench-sps.jsonl").open("rb") as opened:
        answers, none = import_trace(service, opened)
    assert none == ""
    assert "Its 2 requests as one set" in (shown := page.show([answers])[page.heading])
    assert f'href="/?run={answers}#sequence=0.1"' in shown
    assert "as one set" not in page.show(mine[:1])[page.heading]


def test_without_a_database_the_history_shows_an_error(built) -> None:
    service = Service(None, lambda **_: None)
    built.service = service
    assert "without a database" in built.refresh()[built.message]
    service.close()
