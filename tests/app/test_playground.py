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
from specscope.app.tabs.form import contents, control_of, value_of
from specscope.app.tabs.playground import Playground
from specscope.app.tabs.requests import blame, make_requests
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.methods import METHODS
from specscope.engine.methods.registry import Setting
from specscope.engine.simulate.profile import Profile, profiles
from tests.app.fakes import WORDS, FakeCluster


@pytest.fixture(scope="module")
def built():
    """The playground's components, which all tests share."""
    with gr.Blocks():
        return Playground(None)


def given(page, **changed) -> list:
    return [changed.get(name, control.value) for name, control in page.form.controls.items()]


def play(generator, act=None) -> list[dict]:
    async def drain():
        updates = []
        async for update in generator:
            updates.append(update)
            if act is not None:
                act(updates)
        return updates

    return asyncio.run(drain())


def merged(updates) -> dict:
    state: dict = {}
    for update in updates:
        state |= update
    return state


def message(page, state, where: str) -> str:
    """Return the line at Run, which leads to a control."""
    line = state[page.composer.alert]
    assert f' data-at="{where}" ' in line, line
    return line


def test_a_prompt_is_answered_by_every_method(page, opener) -> None:
    updates = play(page.ask("Tell me a story.", "Be brief.", None, None, *given(page)))
    state, stop, go = merged(updates), page.composer.stop, page.composer.go
    shown = [(update[stop]["visible"], update[go]["visible"]) for update in (updates[0], updates[-1])]
    assert shown == [(True, False), (False, True)], "Run and Stop swap"
    assert 'data-state="done"' in state[page.turn]
    assert "Tell me a story." in state[page.talk]
    assert page.composer.prompt not in state, "it stays, for other methods"
    for pane in page.panes[:3]:
        assert 'data-state="done"' in state[pane]
    assert state[page.panes[3]]["visible"] is False
    viewer = json.loads(state[page.viewer])
    assert len(viewer["runs"]) == 3
    assert viewer["live"] is False
    assert [ran[0] for ran in opener.opened[0].ran] == ["autoregressive", "speculative", "pearl"]
    prompts = [ran[1] for ran in opener.opened[0].ran]
    assert prompts[0] == prompts[1] == prompts[2]
    assert prompts[0][0] == {"role": "system", "content": "Be brief."}
    assert len({ran[2]["group"] for ran in opener.opened[0].ran}) == 1


def test_the_conversation_goes_on_with_the_chosen_answer(page, opener) -> None:
    first = merged(play(page.ask("Hi", "", None, None, *given(page))))
    choices = first[page.composer.follow]["choices"]
    assert choices[0] == ("starts fresh", -1)
    assert [name.split(" · ")[0] for name, _ in choices[1:]] == [
        "continues Autoregressive",
        "continues Speculative decoding",
        "continues PEARL",
    ]
    assert first[page.composer.follow]["value"] == -1
    for chosen in (None, -1):
        play(page.ask("New", "", first[page.chat], chosen, *given(page)))
        assert opener.opened[0].ran[-1][1] == [{"role": "user", "content": "New"}]
    state = merged(play(page.ask("And then?", "", first[page.chat], 2, *given(page))))
    assert state[page.composer.prompt] == ""
    assert state[page.composer.follow]["value"] == 2, "a conversation goes on"
    last = opener.opened[0].ran[-1][1]
    assert [m["role"] for m in last] == ["user", "assistant", "user"]
    assert last[1]["content"] == "".join(WORDS)


def test_a_message_is_answered_again_with_the_next_seed(page, opener) -> None:
    state = merged(play(page.regenerate("", "", None, None, *given(page))))
    assert "no message to answer again" in message(page, state, "prompt")
    assert not opener.opened
    first = merged(play(page.ask("Hi", "", None, None, *given(page, temperature=1.0, seed=4))))
    again = merged(
        play(page.regenerate("unsent", "", first[page.chat], 0, *given(page, temperature=1.0, seed=4)))
    )
    assert again[page.form.controls["seed"]] == 5
    assert opener.opened[0].ran[-1][2]["sampling"].seed == 5
    assert opener.opened[0].ran[-1][1] == [{"role": "user", "content": "Hi"}]
    greedy = merged(play(page.regenerate("", "", first[page.chat], 0, *given(page))))
    assert greedy[page.form.controls["seed"]] == 0


def test_stop_ends_the_turn_and_keeps_the_text(page, opener) -> None:
    opener.waiting = [FakeCluster(step=threading.Semaphore(4))]

    def act(updates):
        if "ss-token" in str(updates[-1].get(page.panes[0], "")):
            page.stop_runs(updates[0][page.chat])

    state = merged(play(page.ask("Hi", "", None, None, *given(page)), act))
    assert 'data-state="cancelled"' in state[page.turn]
    assert "Not begun: Speculative decoding, PEARL." in state[page.turn]
    assert 'data-state="cancelled"' in state[page.panes[2]]
    assert Chat.of(state[page.chat]).answers[0][1] == "".join(WORDS[:4])
    assert state[page.composer.follow]["choices"] == [("starts fresh", -1), ("continues Autoregressive", 0)]


def test_what_is_refused_shows_an_error_at_run_until_it_is_corrected(page, opener, service) -> None:
    for prompt in ("", "  \n", None):
        state = merged(play(page.ask(prompt, "", None, None, *given(page))))
        assert "the prompt is empty" in message(page, state, "prompt")
        assert 'role="alert"' in message(page, state, "prompt")
    assert not opener.opened
    state = merged(play(page.ask("Hi", "", None, None, *given(page, max_new_tokens=0))))
    line = message(page, state, "max-new-tokens")
    assert "max_new_tokens is 0" in line
    state = merged(play(page.ask("Hi", "", None, None, *given(page, max_new_tokens=0))))
    assert message(page, state, "max-new-tokens") != line, "the same error leads there again"
    state = merged(play(page.ask("Hi", "", None, None, *given(page))))
    assert state[page.composer.alert] == ""
    service.close()
    state = merged(play(page.ask("Hi", "", None, None, *given(page))))
    assert "shutting down" in state[page.composer.alert]


@pytest.mark.parametrize(
    ("setting", "where"), [("sp", "dsi-2-sp"), ("max_new_tokens", "max-new-tokens"), ("nothing", "prompt")]
)
def test_an_error_of_a_plan_leads_to_the_setting_that_it_names(page, opener, setting, where) -> None:
    opener.waiting = [FakeCluster(error=UsageError(f"{setting} is 7; ask for fewer", setting))]
    chosen = value_of("bundled", [("dsi", {}), ("dsi", {"sp": 7})])
    requests = make_requests(
        page.form.values(given(page, methods=chosen)), [{"role": "user", "content": "Hi"}], "g"
    )
    run = page.service.start(requests[1])
    run.wait(20)
    assert blame(requests, run).where == where


def test_a_prompt_that_is_too_long_shows_an_error_beside_the_prompt(page, opener) -> None:
    opener.waiting = [FakeCluster(error=UsageError("the prompt has 9000 tokens; shorten it"))]
    state = merged(play(page.ask("Hi", "", None, None, *given(page))))
    assert "9000 tokens" in message(page, state, "prompt")
    assert page.composer.prompt not in state, "it can be corrected and sent again"
    assert 'data-state="failed"' in state[page.panes[0]]


def test_a_model_that_cannot_load_shows_an_error_beside_the_models(page, opener) -> None:
    opener.waiting = [ModelError("/x: there is no such directory")] * 3
    own = {"models": "own", "target": "/x", "drafting": "other", "drafter": "/y"}
    state = merged(play(page.ask("Hi", "", None, None, *given(page, **own))))
    assert "no such directory" in message(page, state, "target")
    assert "Nothing was decoded" in state[page.turn]
    assert json.loads(state[page.viewer])["runs"] == []


def test_a_new_conversation_drops_the_old_one(page) -> None:
    first = merged(play(page.ask("Hi", "", None, None, *given(page))))
    state = merged(play(page.forget(first[page.chat])))
    assert Chat.of(state[page.chat]) == Chat()
    assert 'data-state="idle"' in state[page.turn]
    assert state[page.talk] == ""


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
        state = merged(play(page.restore(chat)))
        assert 'data-state="done"' in state[page.turn]
        assert Chat.of(state[page.chat]).prompt == "Hi"
        assert [text for _, text in Chat.of(state[page.chat]).answers] == ["".join(WORDS)] * 3
    service._runs.clear()  # as after a new start of the server
    for chat in chats:
        state = merged(play(page.restore(chat)))
        assert 'data-state="done"' in state[page.turn]
        assert len(json.loads(state[page.viewer])["runs"]) == 3
        assert Chat.of(state[page.chat]).race == kept["race"]
    assert list(merged(play(page.restore({"race": "nothing"})))) == [page.kept]
    assert list(merged(play(page.restore(None)))) == [page.kept]
    assert 'data-state="idle"' in merged(play(page.restore(None, moved=True)))[page.turn]


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


def test_four_examples_fill_the_prompt_and_the_last_is_a_document(page) -> None:
    prompts = [row[0] for row in page.composer.samples.samples]
    assert len(prompts) == 4
    assert [len(prompt.split()) > 200 for prompt in prompts] == [False, False, False, True]


def test_every_setting_with_a_choice_has_a_control_and_every_method_is_in_one_group() -> None:
    rows = {row["key"]: row for row in contents()["methods"]}
    for key, method in METHODS.items():
        shown = {s["name"]: s for s in rows[key]["settings"]}
        for setting in method.settings():
            assert (setting.name in shown) == (len(setting.choices) != 1), f"{key}.{setting.name}"
            if setting.name in shown:
                control = shown[setting.name]
                assert (control["default"], control["doc"]) == (setting.default, setting.doc)
    found = contents()
    assert {row["key"] for row in found["methods"]} == set(METHODS)
    assert {row["group"] for row in found["methods"]} == set(found["groups"])
    groups = {row["key"]: row["group"] for row in found["methods"]}
    assert [groups[k] for k in ("autoregressive", "llma", "ems", "pearl", "hydra")] == list(found["groups"])
    assert all(set(preset["methods"]) <= set(METHODS) for preset in found["presets"])
    assert all(row["line"][:1].isupper() and ":" not in row["line"][:20] for row in found["methods"])


@pytest.mark.parametrize(
    ("kind", "default", "low", "high", "choices", "control"),
    [
        (int, 4, 1, 8, (), "whole"),
        (float, 0.4, 0.0, 1.0, (), "number"),
        (bool, True, None, None, (), "flag"),
        (str, "a", None, None, ("a", "b"), "choice"),
        (str, "", None, 100_000, (), "text"),
        (str, "", None, 100, (), "line"),
    ],
)
def test_controls_follow_the_declared_type(kind, default, low, high, choices, control) -> None:
    setting = Setting("draft_length", kind, default, "What it does.", low, high, choices, "")
    built = control_of(setting)
    assert (built["kind"], built["default"], built["label"]) == (control, default, "draft-length")
    assert (built["low"], built["high"]) == (low, high)


def test_planned_and_lossy_choices_are_marked_in_their_controls() -> None:
    built = control_of(Setting("gamma", int, 0, "Length.", 1, 32, (), "round(c)"))
    assert (built["low"], built["label"]) == (0, "gamma (0 = round(c))")
    setting = next(s for s in METHODS["medusa"].settings() if s.name == "acceptance")
    assert control_of(setting)["choices"] == [["exact", "exact"], ["typical", "typical (lossy)"]]


def test_passes_alternate_and_the_median_run_is_shown(page, opener) -> None:
    state = merged(play(page.ask("Hi", "", None, None, *given(page, passes=3))))
    ran = [run[0] for run in opener.opened[0].ran]
    forth, back = ["autoregressive", "speculative", "pearl"], ["pearl", "speculative", "autoregressive"]
    assert ran == forth + back + forth
    names = json.loads(state[page.viewer])["runs"]
    assert [len(name.split("~")) for name in names] == [3, 3, 3]
    assert "pass 3 of 3" in state[page.panes[0]]
    assert f"?run={','.join(names)}" in state[page.turn]


def test_an_advised_run_is_compared_with_the_run_it_improves_and_the_baseline(page, opener) -> None:
    first = merged(play(page.ask("Hi", "", None, None, *given(page))))
    run = json.loads(first[page.viewer])["runs"][1]
    event = gr.EventData(None, {"run": run, "method": "pearl", "config": {"gamma": 3}, "drafter": ""})
    state = merged(play(page.follow_advice(event, "", "", first[page.chat], 0, *given(page))))
    ran = [(r[0], r[2]["config"].get("gamma")) for r in opener.opened[0].ran[3:]]
    assert [method for method, _ in ran] == ["autoregressive", "speculative", "pearl"]
    assert ran[2] == ("pearl", 3)
    assert 'data-state="done"' in state[page.turn]
    assert "pearl" in state[page.form.controls["methods"]]
    event = gr.EventData(None, {"run": run, "method": "pearl", "config": {"gamma": 99}, "drafter": ""})
    state = merged(play(page.follow_advice(event, "", "", first[page.chat], 0, *given(page))))
    assert "gamma is 99" in message(page, state, "pearl-gamma")


def test_an_advised_drafter_is_chosen_and_runs_the_same_method_again(page, opener) -> None:
    first = merged(play(page.ask("Hi", "", None, None, *given(page))))
    run, drafting = json.loads(first[page.viewer])["runs"][1], page.form.controls["drafting"]
    used = opener.opened[0].ran[1]
    facts = {"run": run, "method": used[0], "config": dict(used[2]["config"])}
    event = gr.EventData(None, {**facts, "drafter": "int4"})
    state = merged(play(page.follow_advice(event, "", "", first[page.chat], 0, *given(page))))
    assert state[drafting] == "int4"
    assert opener.opened[1].place["drafter"] == ("int4",)
    assert [ran[0] for ran in opener.opened[1].ran] == ["autoregressive", used[0]]
    assert "drafter int4" in state[page.folded]
    event = gr.EventData(None, {**facts, "drafter": "<script>"})
    state = merged(play(page.follow_advice(event, "", "", first[page.chat], 0, *given(page))))
    assert state[drafting] == "usual"


def test_a_measured_comparison_on_a_busy_machine_is_marked(page, monkeypatch) -> None:
    monkeypatch.setattr(playground, "busy_since", lambda *_: "Other programs used 1.7 of 2 cores")
    state = merged(play(page.ask("Hi", "", None, None, *given(page))))
    assert "Other programs used 1.7 of 2 cores" in state[page.turn]
    virtual = given(page, runtime="virtual")
    assert "Other programs" not in merged(play(page.ask("Hi", "", None, None, *virtual)))[page.turn]


def test_a_refused_prompt_has_no_times_that_may_be_wrong(page, opener, monkeypatch) -> None:
    monkeypatch.setattr(playground, "busy_since", lambda *_: "Other programs used 1.7 of 2 cores.")
    opener.waiting = [FakeCluster(error=UsageError("the prompt is too long"))]
    state = merged(play(page.ask("Hi", "", None, None, *given(page))))
    assert "the prompt is too long" in message(page, state, "prompt")
    assert "Other programs" not in state[page.turn]


def test_opening_the_page_changes_the_models_only_if_one_came_or_went(page, monkeypatch):
    models, pair = page.form.controls["models"], page.form.controls["models"].value
    monkeypatch.setattr(page, "pair", None)
    monkeypatch.setattr(playground, "opening", lambda: pair)
    assert models not in state_of(page.opened(None, None)), "a choice made before the answer arrives stays"
    monkeypatch.setattr(playground, "opening", lambda: "smollm2")
    assert state_of(page.opened(None, None))[models] == "smollm2"
    noted = [*given(page, models="bundled", max_new_tokens=-5), "A prompt", "", None]
    assert state_of(page.opened(None, {"values": noted}))[models] == "bundled", "what was chosen stays"


def state_of(stream) -> dict:
    return merged(play(stream))


def test_what_a_page_has_noted_is_shown_again_without_what_it_cannot_have(page) -> None:
    form, name = page.form.controls, profiles()[-1]
    pair = list(Profile.load(name).pairs)[-1]
    chosen = value_of("bundled", [("pearl", {"gamma": -3})])
    wanted = {"runtime": "virtual", "profile": name, "profile_pair": pair, "max_new_tokens": 0, "stop": "x"}
    noted = {"values": [*given(page, methods=chosen, **wanted), "A prompt", "Be brief.", 2]}
    state = state_of(page.restore(None, noted))
    assert state[form["methods"]] == chosen, "as it was, also if Run refuses it"
    assert (state[form["max_new_tokens"]], state[form["stop"]]) == (0, "x")
    assert state[form["profile_pair"]]["value"] == pair
    assert len(state[form["profile_pair"]]["choices"]) == len(Profile.load(name).pairs)
    assert (state[page.composer.prompt], state[page.composer.system]) == ("A prompt", "Be brief.")
    strange = {"runtime": "moon", "profile": 3, "max_new_tokens": {}, "stop": [1], "models": "gone"}
    for methods in ('{"chosen": [{"method": "gone", "config": {}}]}', '{"chosen": [3]}', [], None):
        noted = {"values": [*given(page, methods=methods, **strange), [], 3, "x"]}
        state = state_of(page.restore(None, noted))
        assert not {form[name] for name in (*strange, "methods")} & set(state)
        assert page.composer.prompt not in state
    for broken in (None, [], {"values": 3}, {"values": [1]}, {"values": [None] * 99}):
        assert list(state_of(page.restore(None, broken))) == [page.kept]
