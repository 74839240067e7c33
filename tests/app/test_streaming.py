"""Live panes, and the loop that reads all runs of a turn."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specscope.app.jobs.runs import Lane, LiveRun, RunRequest
from specscope.app.render.turn import turn_line
from specscope.app.tabs import streaming
from specscope.app.tabs.streaming import LivePane, frames, ordinal, turn_state
from specscope.app.web.page import Page, build_page
from specscope.engine.errors import ModelError
from specscope.engine.types import Sampling
from tests.app.fakes import WORDS, FakeCluster, commits, until
from tests.traces.samples import sample_trace


def ask(method: str = "speculative", **more) -> RunRequest:
    return RunRequest(method=method, prompt="Hi", **more)


async def collect(runs, act=None):
    """Return the last frame of some runs, and the HTML of their panes."""
    panes = {}
    async for frame in frames([Lane([run]) for run in runs]):
        panes |= frame.panes
        if act is not None:
            act(frame)
    return frame, panes


def pane_of(run) -> LivePane:
    pane = LivePane(Lane([run]))
    pane.update()
    return pane


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("history", {"leave", "follow", "follow_typed", "place"}),
        ("playground", {"ask", "regenerate", "follow_advice", "forget", "opened", "move"}),
    ],
)
def test_events_of_one_stream_start_in_their_order(service, name, events) -> None:
    """They share a queue; Gradio starts those of different queues in random order."""
    page = build_page(service)
    assert {fn.name for fn in page.fns.values() if fn.concurrency_id == name} == events
    assert {fn.concurrency_limit for fn in page.fns.values() if fn.concurrency_id == name} == {None}


def test_a_turn_streams_to_its_end_and_a_lossy_run_has_a_badge(service) -> None:
    last, html = asyncio.run(collect([service.start(ask(m)) for m in ("autoregressive", "speculative")]))
    assert (last.last, last.state, last.draw) == (True, "done", True)
    assert sorted(html) == [0, 1]
    assert all(word.strip() in html[1] for word in WORDS)
    assert 'class="ss-token ss-corrected"' in html[1]
    assert 'class="ss-token ss-plain"' in html[0]
    configs = [{"acceptance": rule} for rule in ("exact", "typical")]
    runs = [service.start(ask("medusa", config=c, sampling=Sampling(temperature=0.9))) for c in configs]
    _, html = asyncio.run(collect(runs))
    assert [html[i].count(">lossy</span>") for i in (0, 1)] == [0, 1]


def test_text_is_only_ever_appended(service, opener) -> None:
    steps = threading.Semaphore(0)
    opener.waiting = [FakeCluster(step=steps)]
    run = service.start(ask())
    until(lambda: run.state == "running")
    pane, seen = LivePane(Lane([run])), []
    for n in range(1, 4):
        steps.release()
        until(lambda n=n: commits(run) == n)
        assert pane.update()
        seen.append(pane.html)
    assert not pane.update()
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    run.cancel()
    assert run.wait(20)
    assert pane.update()
    assert 'data-state="cancelled"' in pane.html


def test_a_pane_shows_planned_drafts_and_the_modelled_pair() -> None:
    run = LiveRun(ask("tree"), lambda _: None)
    run.enter("running")
    pane = pane_of(run)
    assert "measured first" in pane.html, "before the header, a new pair may be measured"
    plan = {"nodes": 7, "levels": 3, "tokens_per_forward": 1.9, "speedup": 1.6}
    run.append(replace(sample_trace("tree").header, environment={"planned": plan}))
    assert pane.update()
    assert "planned: 7 nodes in 3 levels, predicted 1.9 tokens per forward, 1.60×" in pane.html
    assert "Waiting for the first token" in pane.html
    for pair, name in (("llama-3", " · llama-3"), (None, "")):
        request = ask(runtime="virtual", profile="8xA100", profile_pair=pair)
        assert f">virtual · 8xA100{name}</span>" in pane_of(LiveRun(request, lambda _: None)).html


def test_runs_that_wait_show_their_state_and_how_many_are_before_them(service, opener) -> None:
    opener.gate.clear()
    runs = [service.start(ask()) for _ in range(3)]
    until(lambda: runs[0].state == "loading")
    assert "loading models" in pane_of(runs[0]).html
    html = pane_of(runs[1]).html
    assert all(part in html for part in ("1st in line", "measured · local-process", "one at a time"))
    lanes = [Lane([run]) for run in runs]
    assert "Waiting for the devices: 1 other run first." in turn_line("queued", lanes[1:])
    assert "Waiting for the devices: 2 other runs first." in turn_line("queued", lanes[2:])


def test_failed_runs_show_their_error_or_leave_it_to_the_control(service, opener) -> None:
    opener.waiting = [ModelError("no model at <nowhere>"), RuntimeError("no worker at <nowhere>")]
    run = service.start(ask())
    assert run.wait(20)
    html = pane_of(run).html
    assert "The message at Run says what to correct" in html
    assert "nowhere" not in html
    runs = [service.start(ask()), service.start(ask())]
    last, html = asyncio.run(collect(runs))
    assert last.state == "failed"
    assert "no worker at &lt;nowhere&gt;" in html[0]
    assert ['data-begun="no"' in html[0], 'data-begun="yes"' in html[1]] == [True, True]
    assert "Some runs failed." in turn_line("failed", [Lane([run]) for run in runs])


def test_a_stop_shows_as_soon_as_all_runs_have_ended(service, opener, monkeypatch) -> None:
    """The loop does not wait for the end of its tick, which is an hour here."""
    monkeypatch.setattr(streaming, "TICK", 3600.0)
    monkeypatch.setattr(streaming, "STEPS", 360_000)
    opener.waiting = [FakeCluster(step=threading.Semaphore(1))]
    runs = [service.start(ask()) for _ in range(2)]

    def stop(frame):
        for run in () if frame.last else runs:
            run.cancel()

    last, _ = asyncio.run(asyncio.wait_for(collect(runs, stop), 60))
    assert (last.last, last.state) == (True, "cancelled")


def test_html_in_tokens_is_escaped(service, opener) -> None:
    opener.waiting = [FakeCluster(words=("<script>", "&", '"', "\ud800"))]
    run = service.start(ask())
    assert run.wait(20)
    html = pane_of(run).html
    assert ("<script>" in html, "&lt;script&gt;" in html) == (False, True)
    html.encode()


def test_a_turn_has_the_state_of_its_runs_and_places_have_ordinals() -> None:
    for states, turn in (
        ("queued queued", "queued"),
        ("loading queued", "loading"),
        ("done running", "running"),
        ("done queued", "running"),
        ("done done", "done"),
        ("done cancelled", "cancelled"),
        ("failed done", "failed"),
        ("downloading cancelled", "downloading"),
    ):
        assert turn_state(states.split()) == turn, states
    assert " ".join(map(ordinal, (1, 2, 3, 4, 11, 12, 21, 112))) == "1st 2nd 3rd 4th 11th 12th 21st 112th"


def test_sequences_of_a_batch_lie_apart_and_passes_come_one_after_the_other(service) -> None:
    run = service.start(ask())
    assert run.wait(20)
    pane = LivePane(Lane([run]))
    events, _ = run.since(0)
    header = replace(next(e for e in events if e.tag == "header"), prompts=("Hi", "Ho"))
    commits = [e for e in events if e.tag == "commit"]
    pane._take([header, *(replace(c, sequence=i % 2) for i, c in enumerate(commits))])
    html = pane._sequences()
    assert html.count('<div class="ss-sequence">') == 2
    first, second = html.split("</div>")
    counts = [first.count("ss-token"), second.count("ss-token")]
    assert counts == [(len(commits) + 1) // 2, len(commits) // 2]
    assert commits[1].text.strip() in second
    lanes = [Lane([service.start(ask(m)) for _ in range(3)]) for m in ("autoregressive", "speculative")]
    assert all(run.wait(20) for lane in lanes for run in lane.runs)
    for lane in lanes:
        pane = LivePane(lane)
        pane.update()
        assert "done · pass 3 of 3" in pane.html
        assert pane.html.count(WORDS[-2].strip()) == 1, "the text of one pass"
        assert lane.name.count("~") == 2


def test_an_update_that_the_browser_has_not_shown_yet_is_not_changed_by_the_next_one() -> None:
    """The browser applies each difference in place to the values before."""
    shown, empty = {"__type__": "update", "visible": True}, {"__type__": "update"}
    with Page(analytics_enabled=False) as page:
        outputs = SimpleNamespace(outputs=[0, 1])
        sent = [
            page.handle_streaming_diffs(outputs, [*values], "session", "run", final)
            for values, final in (
                ((shown, "a"), False),
                ((empty, "ab"), False),
                ((empty, "ab"), False),
                ((None, None), True),
            )
        ]
    whole = [[["replace", [], empty]], [["replace", [], "ab"]]]
    assert sent == [[shown, "a"], whole, [[], []], [empty, "ab"]]
    assert not page.pending_diff_streams, "nothing is kept"
