"""The playground's handlers over a fake cluster."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import gradio as gr
import pytest

from specscope.app.tabs import chat as conversations
from specscope.app.tabs import playground
from specscope.app.tabs.chat import Chat, Streams
from specscope.app.tabs.picker import contents, value_of
from specscope.app.tabs.playground import Playground
from specscope.app.tabs.requests import blame, make_requests
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import Profile, profiles
from tests.app.fakes import WORDS, FakeCluster
from tests.app.forms import given, merged, noted, play_all, shown

USUAL = ["autoregressive", "speculative", "pearl"]


@pytest.fixture(scope="module")
def built():
    """The playground's components, which all tests share."""
    with gr.Blocks():
        return Playground(None)


def message(page, state, where: str) -> str:
    """Return the line at Run, which leads to a control."""
    line = state[page.composer.alert]
    assert f' data-at="{where}" ' in line, line
    return line


def ask(page, prompt="Hi", system="", chat=None, follow=None, act=None, **changed) -> dict:
    """Return what the page shows after a press of Run."""
    return shown(page.ask(prompt, system, chat, follow, *given(page, **changed)), act)


def test_a_prompt_is_answered_by_every_method(page, opener) -> None:
    updates = play_all(page.ask("Tell me a story.", "Be brief.", None, None, *given(page)))
    state, stop, go = merged(updates), page.composer.stop, page.composer.go
    buttons = [(update[stop]["visible"], update[go]["visible"]) for update in (updates[0], updates[-1])]
    assert buttons == [(True, False), (False, True)], "Run and Stop swap"
    assert "Tell me a story." in state[page.talk]
    assert page.composer.prompt not in state, "it stays, for other methods"
    assert all('data-state="done"' in state[part] for part in (page.turn, *page.panes[:3]))
    assert state[page.panes[3]]["visible"] is False
    viewer = json.loads(state[page.viewer])
    assert (len(viewer["runs"]), viewer["live"]) == (3, False)
    methods, prompts, settings = zip(*opener.opened[0].ran, strict=True)
    assert methods == ("autoregressive", "speculative", "pearl")
    assert prompts[0] == prompts[1] == prompts[2]
    assert prompts[0][0] == {"role": "system", "content": "Be brief."}
    assert len({one["group"] for one in settings}) == 1


def test_a_conversation_goes_on_with_the_chosen_answer_and_a_message_is_answered_again(page, opener) -> None:
    state = shown(page.regenerate("", "", None, None, *given(page)))
    assert "no message to answer again" in message(page, state, "prompt")
    assert not opener.opened
    first = ask(page, temperature=1.0, seed=4)
    follow = first[page.composer.follow]
    names = [name.split(" · ")[0] for name, _ in follow["choices"]]
    assert names == ["starts fresh", *(f"continues {METHODS[k].title}" for k in USUAL)]
    assert follow["value"] == -1
    for chosen in (None, -1):
        ask(page, "New", chat=first[page.chat], follow=chosen)
        assert opener.opened[0].ran[-1][1] == [{"role": "user", "content": "New"}]
    state = ask(page, "And then?", chat=first[page.chat], follow=2)
    assert (state[page.composer.prompt], state[page.composer.follow]["value"]) == ("", 2)
    said = [(one["role"], one["content"]) for one in opener.opened[0].ran[-1][1]]
    assert said == [("user", "Hi"), ("assistant", "".join(WORDS)), ("user", "And then?")]
    for temperature, seed in ((1.0, 5), (0.0, 4)):
        values = given(page, temperature=temperature, seed=4)
        again = shown(page.regenerate("unsent", "", first[page.chat], 0, *values))
        assert again[page.form.controls["seed"]] == opener.opened[0].ran[-1][2]["sampling"].seed == seed
        assert opener.opened[0].ran[-1][1] == [{"role": "user", "content": "Hi"}]


def test_stop_ends_the_turn_and_keeps_the_text(page, opener) -> None:
    opener.waiting = [FakeCluster(step=threading.Semaphore(4))]

    def act(state):
        if "ss-token" in str(state.get(page.panes[0], "")):
            page.stop_runs(state[page.chat])

    state = ask(page, act=act)
    assert 'data-state="cancelled"' in state[page.turn]
    assert "Not begun: Speculative decoding, PEARL." in state[page.turn]
    assert 'data-state="cancelled"' in state[page.panes[2]]
    assert Chat.of(state[page.chat]).answers[0][1] == "".join(WORDS[:4])
    assert state[page.composer.follow]["choices"] == [("starts fresh", -1), ("continues Autoregressive", 0)]


def test_what_is_refused_shows_an_error_at_run_until_it_is_corrected(page, opener, service) -> None:
    for prompt in ("", "  \n", None):
        line = message(page, ask(page, prompt), "prompt")
        assert "the prompt is empty" in line
        assert 'role="alert"' in line
    assert not opener.opened
    line = message(page, ask(page, max_new_tokens=0), "max-new-tokens")
    assert "max_new_tokens is 0" in line
    again = message(page, ask(page, max_new_tokens=0), "max-new-tokens")
    assert again != line, "the same error leads there again"
    assert ask(page)[page.composer.alert] == ""
    service.close()
    assert "shutting down" in ask(page)[page.composer.alert]


def test_a_prompt_that_does_not_fit_and_a_model_that_cannot_load_lead_to_their_controls(
    page, opener, monkeypatch
) -> None:
    monkeypatch.setattr(playground, "busy_since", lambda *_: "Other programs used 1.7 of 2 cores.")
    opener.waiting = [FakeCluster(error=UsageError("the prompt has 9000 tokens; shorten it"))]
    state = ask(page)
    assert "9000 tokens" in message(page, state, "prompt")
    assert page.composer.prompt not in state, "it can be corrected and sent again"
    assert 'data-state="failed"' in state[page.panes[0]]
    assert "Other programs" not in state[page.turn], "no times may be wrong"
    opener.waiting = [ModelError("/x: there is no such directory")] * 3
    state = ask(page, models="own", target="/x", drafting="other", drafter="/y")
    assert "no such directory" in message(page, state, "target")
    assert "Nothing was decoded" in state[page.turn]
    assert json.loads(state[page.viewer])["runs"] == []


@pytest.mark.parametrize(
    ("setting", "where"), [("sp", "dsi-2-sp"), ("max_new_tokens", "max-new-tokens"), ("nothing", "prompt")]
)
def test_an_error_of_a_plan_leads_to_the_setting_that_it_names(page, opener, setting, where) -> None:
    opener.waiting = [FakeCluster(error=UsageError(f"{setting} is 7; ask for fewer", setting))]
    chosen = value_of("bundled", [("dsi", {}), ("dsi", {"sp": 7})])
    requests = make_requests(
        page.form.made.values(given(page, methods=chosen)), [{"role": "user", "content": "Hi"}], "g"
    )
    run = page.service.start(requests[1])
    run.wait(20)
    assert blame(requests, run).where == where


def test_a_reload_follows_the_running_race_and_later_shows_it_from_memory_or_the_database(
    page, service, opener
) -> None:
    opener.waiting = [FakeCluster(step=(steps := threading.Semaphore(2)))]

    async def left():
        stream = page.ask("Hi", "", None, None, *given(page))
        begun = await anext(stream)
        await stream.aclose()  # as when the page is reloaded
        return begun

    kept = json.loads(asyncio.run(left())[page.kept])
    for _ in range(100):
        steps.release()
    chats = [kept, {"race": kept["race"]}]  # of this page, and of one that got the address
    for chat in chats:
        state = shown(page.restore(chat))
        assert 'data-state="done"' in state[page.turn]
        assert Chat.of(state[page.chat]).prompt == "Hi"
        assert [text for _, text in Chat.of(state[page.chat]).answers] == ["".join(WORDS)] * 3
    service._runs.clear()  # as after a new start of the server
    for chat in chats:
        state = shown(page.restore(chat))
        assert 'data-state="done"' in state[page.turn]
        assert len(json.loads(state[page.viewer])["runs"]) == 3
        assert Chat.of(state[page.chat]).race == kept["race"]
    assert list(shown(page.restore({"race": "nothing"}))) == [page.kept]
    assert list(shown(page.restore(None))) == [page.kept]
    assert 'data-state="idle"' in shown(page.restore(None, moved=True))[page.turn]


def test_a_page_reads_one_stream_of_updates_and_the_newest_wins() -> None:
    """The first stream ends with an update that changes nothing, before the second one begins."""
    streams, seen = Streams("here"), list[tuple[str, object]]()

    async def endless(name: str):
        while True:
            yield {"part": name}
            await asyncio.sleep(0.001)

    async def read(name: str, page: str, most: int) -> None:
        async for update in streams.only(SimpleNamespace(session_hash=page), endless(name)):
            await asyncio.sleep(0.005)  # Gradio renders it
            seen.append((name, update["part"]))
            if [reader for reader, _ in seen].count(name) == most:
                return

    async def both() -> None:
        first = asyncio.create_task(read("first", "a", 10**6))
        await asyncio.sleep(0.02)
        await read("other page", "b", 3)
        assert not first.done()
        await read("second", "a", 3)
        await asyncio.wait_for(first, 20)

    asyncio.run(both())
    assert {"first", "other page", "second"} == {reader for reader, _ in seen}
    page = [row for row in seen if row[0] != "other page"]
    assert page[-4:] == [("first", gr.skip()), *[("second", "second")] * 3]
    assert {part for reader, part in page[:-4]} == {"first"}


def test_a_stream_that_nobody_reads_to_its_end_does_not_hold_up_the_next_one(monkeypatch) -> None:
    monkeypatch.setattr(conversations, "END_S", 0.05)
    streams = Streams("here")

    async def once():
        yield {"part": "x"}

    async def both() -> list[dict[str, str]]:
        request = SimpleNamespace(session_hash="a")
        left = streams.only(request, once())
        await anext(left)
        return [update async for update in streams.only(request, once())]

    assert asyncio.run(both()) == [{"part": "x"}, {"part": gr.skip()}]


def test_every_setting_with_a_choice_has_a_control_and_every_method_is_in_one_group() -> None:
    found = contents()
    rows = {row["key"]: row for row in found["methods"]}
    assert rows.keys() == METHODS.keys()
    assert {row["group"] for row in rows.values()} == set(found["groups"])
    for key, method in METHODS.items():
        controls = {s["name"]: (s["default"], s["doc"]) for s in rows[key]["settings"]}
        assert controls == {s.name: (s.default, s.doc) for s in method.settings() if len(s.choices) != 1}
    assert all(set(preset["methods"]) <= set(METHODS) for preset in found["presets"])


def test_passes_alternate_and_the_median_run_is_shown(page, opener) -> None:
    state = ask(page, passes=3)
    assert [run[0] for run in opener.opened[0].ran] == [*USUAL, *reversed(USUAL), *USUAL]
    names = json.loads(state[page.viewer])["runs"]
    assert [len(name.split("~")) for name in names] == [3, 3, 3]
    assert "pass 3 of 3" in state[page.panes[0]]
    assert f"?run={','.join(names)}" in state[page.turn]


def advised(page, first: dict, **advice) -> dict:
    """Return what the page shows after a press on the advice of the second run."""
    run = json.loads(first[page.viewer])["runs"][1]
    event = gr.EventData(None, {"run": run, "drafter": "", **advice})
    return shown(page.follow_advice(event, "", "", first[page.chat], 0, *given(page)))


def test_an_advised_run_is_compared_with_the_run_it_improves_and_the_baseline(page, opener) -> None:
    first = ask(page)
    state = advised(page, first, method="pearl", config={"gamma": 3})
    ran = [(run[0], run[2]["config"].get("gamma")) for run in opener.opened[0].ran[3:]]
    assert [method for method, _ in ran] == USUAL
    assert ran[2] == ("pearl", 3)
    assert 'data-state="done"' in state[page.turn]
    assert "pearl" in state[page.form.controls["methods"]]
    state = advised(page, first, method="pearl", config={"gamma": 99})
    assert "gamma is 99" in message(page, state, "pearl-gamma")


def test_an_advised_drafter_is_chosen_and_runs_the_same_method_again(page, opener) -> None:
    first, drafting = ask(page), page.form.controls["drafting"]
    method, _, settings = opener.opened[0].ran[1]
    state = advised(page, first, method=method, config=dict(settings["config"]), drafter="int4")
    assert state[drafting] == "int4"
    assert opener.opened[1].place["drafter"] == ("int4",)
    assert [ran[0] for ran in opener.opened[1].ran] == ["autoregressive", method]
    assert "drafter int4" in state[page.folded]
    state = advised(page, first, method=method, config=dict(settings["config"]), drafter="<script>")
    assert state[drafting] == "usual"


def test_a_measured_comparison_on_a_busy_machine_is_marked(page, monkeypatch) -> None:
    monkeypatch.setattr(playground, "busy_since", lambda *_: "Other programs used 1.7 of 2 cores")
    assert "Other programs used 1.7 of 2 cores" in ask(page)[page.turn]
    assert "Other programs" not in ask(page, runtime="virtual")[page.turn]


def test_opening_the_page_changes_the_models_only_if_one_came_or_went(page, monkeypatch):
    models, pair = page.form.controls["models"], page.form.controls["models"].value
    monkeypatch.setattr(page, "pair", None)
    monkeypatch.setattr(playground, "opening", lambda: pair)
    assert models not in shown(page.opened(None, None)), "a choice made before the answer arrives stays"
    monkeypatch.setattr(playground, "opening", lambda: "smollm2")
    assert shown(page.opened(None, None))[models] == "smollm2"
    values = [*noted(page, models="bundled", max_new_tokens=-5), "A prompt", "", None]
    assert shown(page.opened(None, {"values": values}))[models] == "bundled", "what was chosen stays"


def test_what_a_page_has_noted_is_shown_again_without_what_it_cannot_have(page) -> None:
    form, name = page.form.controls, profiles()[-1]
    pair = list(Profile.load(name).pairs)[-1]
    chosen = value_of("bundled", [("pearl", {"gamma": -3})])
    wanted = {"runtime": "virtual", "profile": name, "profile_pair": pair, "max_new_tokens": 0, "stop": "x"}
    kept = {"values": [*noted(page, methods=chosen, **wanted), "A prompt", "Be brief.", 2]}
    state = shown(page.restore(None, kept))
    assert state[form["methods"]] == chosen, "as it was, also if Run refuses it"
    assert (state[form["max_new_tokens"]], state[form["stop"]]) == (0, "x")
    assert state[form["profile_pair"]]["value"] == pair
    assert len(state[form["profile_pair"]]["choices"]) == len(Profile.load(name).pairs)
    assert (state[page.composer.prompt], state[page.composer.system]) == ("A prompt", "Be brief.")
    strange = {"runtime": "moon", "profile": 3, "max_new_tokens": {}, "stop": [1], "models": "gone"}
    for methods in ('{"chosen": [{"method": "gone", "config": {}}]}', '{"chosen": [3]}', [], None):
        kept = {"values": [*noted(page, methods=methods, **strange), [], 3, "x"]}
        state = shown(page.restore(None, kept))
        assert not {form[name] for name in (*strange, "methods")} & set(state)
        assert page.composer.prompt not in state
    for broken in (None, [], {"values": 3}, {"values": [1]}, {"values": [None] * 99}):
        assert list(shown(page.restore(None, broken))) == [page.kept]
