"""Values of the controls become run requests: methods, models, prompts, and the conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specscope.app import pairs
from specscope.app.pairs import TOY, usual
from specscope.app.tabs.chat import FRESH, Chat, conversation
from specscope.app.tabs.requests import FormError, further_prompts, make_requests, passes_of
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.forms import usual_form
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import Profile, profiles

CHOSEN = usual(TOY)
MESSAGES = [{"role": "user", "content": "Hi"}]
USUAL = {
    "passes": 1, "temperature": 0, "top_k": 0, "top_p": 1, "seed": 0, "max_new_tokens": 64, "stop": "",
    "runtime": "local-process", "profile": None, "profile_pair": None,
    "models": "bundled", "target": "", "drafting": "usual", "drafter": "", "head": "",
}  # fmt: skip
"""Values of the other controls."""


def picked(*chosen) -> str:
    """Return the picker's value; a row is a key, or a tuple of key, settings and prompts."""
    rows = [(row,) if isinstance(row, str) else row for row in chosen]
    names = ("method", "config", "prompts")
    return json.dumps({"chosen": [dict(zip(names, row, strict=False)) for row in rows]})


def made(*chosen, messages=MESSAGES, **changed):
    """Return the requests of chosen methods."""
    return make_requests(USUAL | {"methods": picked(*(chosen or CHOSEN))} | changed, messages, "g")


def test_methods_get_the_same_context_and_own_settings_and_may_come_twice_with_other_ones() -> None:
    chosen = ("autoregressive", ("speculative", {"gamma": 7}), "pearl")
    requests = made(*chosen, temperature=0.8, seed=3, stop="END\n\nSTOP")
    assert [(r.method, r.prompt, r.group) for r in requests] == [(key, MESSAGES, "g") for key in CHOSEN]
    assert len({r.place for r in requests}) == 1
    assert (requests[0].config, requests[1].config["gamma"]) == ({}, 7)
    assert (requests[0].sampling.temperature, requests[0].sampling.seed) == (0.8, 3)
    assert requests[0].limits.stop == ("END", "STOP")
    requests = made(("pearl", {"gamma": 2}), ("pearl", {"gamma": 6}))
    assert [r.config for r in requests] == [{"gamma": 2}, {"gamma": 6}]
    usual_gamma = {"gamma": METHODS["pearl"].configure({}).gamma}
    for first, second in (({}, {}), ({"gamma": 4}, {"gamma": 4}), ({}, usual_gamma)):
        with pytest.raises(FormError, match="PEARL is chosen twice with the same settings"):
            made(("pearl", first), ("pearl", second))


def test_passes_repeat_a_measured_comparison_only() -> None:
    assert passes_of({"passes": 3, "runtime": "local-process"}) == 3
    assert passes_of({"passes": 3, "runtime": "virtual"}) == 1
    assert passes_of({"passes": 3, "runtime": "virtual", "models": "server"}) == 3
    for passes in (0, 4, None, "2"):
        with pytest.raises(FormError, match="it must be 1 to 3"):
            passes_of({"passes": passes, "runtime": "local-process"})


OWN = {"models": "own", "target": "/t"}


@pytest.mark.parametrize(
    ("changed", "where", "message"),
    [
        ({"methods": picked()}, "methods", "0 methods are chosen; choose 1 to 6"),
        ({"methods": picked(*["pearl"] * 7)}, "methods", "7 methods are chosen; choose 1 to 6"),
        ({"methods": picked("nonsense")}, "methods", "there is no method 'nonsense'"),
        ({"methods": None}, "methods", "0 methods are chosen"),
        ({"methods": "[1]"}, "methods", "0 methods are chosen"),
        ({"methods": "{"}, "methods", "cannot be read"),
        ({"methods": '{"chosen": [3]}'}, "methods", "3 is not a choice of a method"),
        ({"methods": picked(("pearl", [1]))}, "methods", "is not a choice of a method"),
        ({"methods": picked(("speculative", {"gamma": 99}))}, "speculative-gamma", "Speculative decoding: gamma is 99; it must be at least 1 and at most 32"),
        ({"methods": picked("pearl", ("pearl", {"gamma": -3}))}, "pearl-2-gamma", "PEARL: gamma is -3; it must be at least 1 and at most 32, or 0 (planned)"),
        ({"methods": picked(("pearl", {"gamma": "x"}))}, "pearl-gamma", "gamma is 'x'; it must be a whole number of at least 1 and at most 32, or 0 (planned)"),
        ({"methods": picked(*[("ems", {"batch": n}, "One.") for n in range(1, 7)])}, "methods", "12 runs are needed"),
        ({"temperature": 11}, "temperature", "temperature is 11; it must be at least 0 and at most 10"),
        ({"temperature": None}, "temperature", "temperature is empty; type a number"),
        ({"top_k": 1.5}, "top-k", "top_k is 1.5; it must be a whole number"),
        ({"top_p": 0}, "top-p", "top_p is 0; it must be more than 0 and at most 1"),
        ({"seed": -1}, "seed", "seed is -1; it must be at least 0"),
        ({"max_new_tokens": 0}, "max-new-tokens", "max_new_tokens is 0; it must be at least 1"),
        ({"stop": "x" * 1001}, "stop-strings", "a stop string has 1001 characters"),
        ({"runtime": "ray"}, "runtime", "has no Ray cluster; start it with specscope play --ray"),
        ({"runtime": "virtual"}, "profile", "no cluster is chosen"),
        ({"runtime": "virtual", "profile": "moon"}, "profile", "there is no profile 'moon'; choose one of"),
        ({"runtime": "virtual", "profile": "8xA100", "profile_pair": "nobody"}, "profile-pair", "nobody"),
        ({"models": "own"}, "target", "the target is empty"),
        ({**OWN, "drafting": "other"}, "drafter", "the drafter is empty"),
        ({**OWN, "methods": picked("medusa", "eagle")}, "heads", "the drafting head is empty; Medusa needs one"),
        ({"drafting": "other", "drafter": "/d"}, "drafting", "needs a target of your own"),
    ],
    ids=str,
)  # fmt: skip
def test_the_error_of_a_bad_value_names_its_control(changed, where, message) -> None:
    with pytest.raises(FormError) as caught:
        made(**changed)
    assert (caught.value.where, message in str(caught.value)) == (where, True), caught.value


def test_a_virtual_cluster_has_profile_and_pair_and_hidden_controls_are_ignored() -> None:
    name = profiles()[0]
    pair = list(Profile.load(name).pairs)[-1]
    request = made(runtime="virtual", profile=name, profile_pair=pair)[0]
    assert (request.runtime, request.profile, request.profile_pair) == ("virtual", name, pair)
    request = made(profile=name)[0]
    assert (request.profile, request.profile_pair) == (None, None)


@pytest.mark.parametrize(
    ("chosen", "changed", "target", "drafter", "head"),
    [
        ((), {}, None, (), ()),
        ((), {"drafting": "int4"}, None, ("int4",), ()),
        ((), {**OWN, "target": " /t ", "drafting": "other", "drafter": "/d"}, "/t", ("/d",), ()),
        ((), {**OWN, "drafting": "other", "drafter": " /d\n\n/e "}, "/t", ("/d", "/e"), ()),
        ((), {**OWN, "drafter": "/hidden"}, "/t", (usual_form(),), ()),
        (("autoregressive",), {**OWN, "drafter": "/hidden"}, "/t", (), ()),
        ((), {**OWN, "drafting": "int8"}, "/t", ("int8",), ()),
        (("medusa", "eagle"), {**OWN, "head": "/m\n /e\n"}, "/t", (), ("/m", "/e")),
    ],
)
def test_own_models_with_drafters_heads_or_their_own_weights(chosen, changed, target, drafter, head) -> None:
    for request in made(*chosen, **changed):
        place = dict(request.place)
        assert (request.target, request.drafter, request.head) == (target, drafter, head)
        assert (place["target"], place["head"]) == (target, head), "others need another cluster"


def test_only_methods_for_batches_get_further_prompts() -> None:
    typed = "First one.\n\nSecond,\non two lines.\n \n\n\nThird"
    assert further_prompts(typed) == ["First one.", "Second,\non two lines.", "Third"]
    assert further_prompts(None) == further_prompts(" \n\n ") == []
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    by_method = {r.method: r for r in made(("ems", {}, typed), ("speculative", {}, typed), messages=messages)}
    assert (by_method["speculative"].further, by_method["ems"].prompt) == ((), messages)
    assert [m[-1]["content"] for m in by_method["ems"].further] == further_prompts(typed)
    assert {m[0]["content"] for m in by_method["ems"].further} == {"Be brief."}


def test_a_batch_brings_batched_plain_decoding_of_the_same_prompts_once() -> None:
    two = "One.\n\nTwo."
    requests = made("autoregressive", ("ems", {"copy": 3}, two), ("ems", {"copy": 5}, two))
    batches = [(r.method, r.config.get("base"), len(r.further)) for r in requests]
    assert batches == [("autoregressive", None, 0), ("ems", "plain", 2), *[("ems", None, 2)] * 2]
    other = made(("ems", {}, "One."), ("ems", {"batch": 1}, "One."), ("ems", {"base": "plain"}, "One."))
    bases = [r.config.get("base") for r in other]
    assert bases == [None, "plain", None, "plain"], "a batch of one has another baseline"
    assert len(made("ems")) == 1, "one prompt is compared with plain decoding"


# The pairs that can be chosen.


def test_a_model_of_the_catalog_opens_and_the_toy_without_one(monkeypatch) -> None:
    here = set[str]()
    monkeypatch.setattr(catalog, "installed", lambda name: Path(name) if name in here else None)
    assert (pairs.opening(), pairs.absent().name) == ("bundled", "smollm2")
    here.add("smollm2")
    assert (pairs.opening(), pairs.absent()) == ("smollm2", None)


def test_a_pair_runs_the_methods_that_its_drafter_and_its_heads_can(tmp_path, monkeypatch) -> None:
    assert "a toy" in pairs.label("bundled")
    assert pairs.reasons("bundled") == {}, "it has a head of each kind"
    assert pairs.able("bundled") == list(METHODS)
    assert pairs.usual("bundled") == pairs.usual("smollm2") == ["autoregressive", "speculative", "pearl"]
    for name, context in (("bundled", "2,304"), ("smollm2", "8,192")):
        assert f"{context} tokens" in pairs.about(name)
    monkeypatch.setattr(catalog, "PAIRS", tmp_path)
    heads = [key for key, method in METHODS.items() if method.layout(method.Config()).head]
    assert {"pearl", "speculative", "dsi", "llma"} <= set(pairs.able("smollm2"))
    assert list(pairs.reasons("smollm2")) == heads
    assert pairs.reasons("smollm2")["eagle"] == "needs a drafting head of kind eagle"
    (tmp_path / "smollm2" / "heads" / "eagle").mkdir(parents=True)
    assert {"eagle", "eagle2"} <= set(pairs.able("smollm2"))
    assert not {"medusa", "hydra"} & set(pairs.able("smollm2"))
    assert pairs.reasons("smollm2")["medusa"] == "needs a drafting head of kind medusa"


# The conversation.


ANSWERS = (("Autoregressive", "Hello!"), ("PEARL", "Hi there."))
HI = Chat().asked("Hi")


def test_the_next_message_continues_the_chosen_answer_without_turns_that_have_none() -> None:
    chat = HI.started(("a", "b")).answered(ANSWERS).asked("And you?", chosen=1)
    said = [(one["role"], one["content"]) for one in chat.messages("Be kind.")]
    assert said == [
        *(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hi there."), ("user", "And you?")),
    ]
    assert chat.answers == ()
    assert HI.messages("  ") == HI.messages(None) == MESSAGES
    chat = HI.answered((("PEARL", " "),))
    assert chat.asked("Again", 0).messages("") == [{"role": "user", "content": "Again"}]
    assert chat.asked("Again", 7).past == ()


def test_a_message_starts_fresh_unless_it_continues_an_answer() -> None:
    first = HI.answered(ANSWERS)
    assert (first.asked("New"), first.usual) == (Chat((), "New"), FRESH)
    assert first.offered == [("starts fresh", -1), ("continues Autoregressive", 0), ("continues PEARL", 1)]
    failed = first.asked("And you?", 1)
    assert failed.offered == [("starts fresh", -1), ("continues PEARL", 0)]
    assert failed.asked("Again", failed.usual).past == failed.past
    second = failed.answered((("PEARL · γ 4", "Well."), ("DSI", "Fine.")))
    assert second.usual == 0, "the conversation goes on with PEARL"
    assert second.asked("New") == Chat((), "New")


def test_json_of_the_page_restores_the_conversation_with_the_names_of_its_runs() -> None:
    chat = HI.answered(ANSWERS, ("a", "b~c")).asked("More", 0)
    assert chat.turns == (("a", "b~c"),)
    for one in (chat.started(("t1",)), later := chat.answered(ANSWERS, ("d",))):
        assert Chat.of(json.loads(json.dumps(one.to_json()))) == one
    assert later.turns == (("a", "b~c"), ("d",))
    for broken in (None, {}, {"past": 3}, {"past": [["a"]]}, {"answers": ["x"]}, "text"):
        assert Chat.of(broken) == Chat()


def test_texts_are_escaped_and_a_long_prompt_is_folded() -> None:
    chat = Chat().asked("<b>bold</b>").answered((("PEARL", "<script>alert(1)</script>"),))
    page = conversation(chat.asked("<img src=x>", 0))
    assert not any(tag in page for tag in ("<script>", "<img", "<b>bold"))
    assert "&lt;script&gt;alert(1)" in page
    assert "1 earlier turn " in page
    assert conversation(Chat()) == ""
    page = conversation(Chat().asked("word " * 400))
    assert ("<details" in page, "2,000 characters" in page) == (True, True)
    assert "<details" not in conversation(HI)
