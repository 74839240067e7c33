"""Values of the controls become run requests."""

from __future__ import annotations

import json

import pytest

from specscope.app.pairs import TOY, usual
from specscope.app.tabs.requests import FormError, further_prompts, make_requests, passes_of
from specscope.engine.checkpoints.forms import usual_form
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import Profile, profiles

CHOSEN = usual(TOY)
MESSAGES = [{"role": "user", "content": "Hi"}]


def picked(*chosen) -> str:
    """Return the picker's value; a row is a key, or a tuple of key, settings and prompts."""
    rows = [(row,) if isinstance(row, str) else row for row in chosen]
    return json.dumps(
        {"chosen": [dict(zip(("method", "config", "prompts"), row, strict=False)) for row in rows]}
    )


def values(**changed):
    return {
        "methods": picked(*CHOSEN),
        "passes": 1,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "seed": 0,
        "max_new_tokens": 64,
        "stop": "",
        "runtime": "local-process",
        "profile": None,
        "profile_pair": None,
        "models": "bundled",
        "target": "",
        "drafting": "usual",
        "drafter": "",
        "head": "",
    } | changed


def complaint(**changed) -> FormError:
    with pytest.raises(FormError) as caught:
        make_requests(values(**changed), MESSAGES, "g")
    return caught.value


def test_methods_get_the_same_context_and_own_settings_and_may_come_twice_with_other_ones() -> None:
    chosen = picked("autoregressive", ("speculative", {"gamma": 7}), "pearl")
    given = values(methods=chosen, temperature=0.8, seed=3, stop="END\n\nSTOP")
    requests = make_requests(given, MESSAGES, "g")
    assert [r.method for r in requests] == CHOSEN
    assert all(r.prompt == MESSAGES and r.group == "g" for r in requests)
    assert len({r.place for r in requests}) == 1
    assert requests[1].config["gamma"] == 7
    assert requests[0].config == {}
    assert (requests[0].sampling.temperature, requests[0].sampling.seed) == (0.8, 3)
    assert requests[0].limits.stop == ("END", "STOP")
    assert [r.method for r in make_requests(values(methods=picked("pearl")), MESSAGES, "g")] == ["pearl"]
    twice = picked(("pearl", {"gamma": 2}), ("pearl", {"gamma": 6}))
    requests = make_requests(values(methods=twice), MESSAGES, "g")
    assert [r.config for r in requests] == [{"gamma": 2}, {"gamma": 6}]
    for first, second in (
        ({}, {}),
        ({"gamma": 4}, {"gamma": 4}),
        ({}, {"gamma": METHODS["pearl"].configure({}).gamma}),
    ):
        with pytest.raises(FormError, match="PEARL is chosen twice with the same settings"):
            make_requests(values(methods=picked(("pearl", first), ("pearl", second))), MESSAGES, "g")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (picked(), "0 methods are chosen; choose 1 to 6"),
        (picked(*["pearl"] * 7), "7 methods are chosen; choose 1 to 6"),
        (picked("nonsense"), "there is no method 'nonsense'"),
        (None, "0 methods are chosen"),
        ("[1]", "0 methods are chosen"),
        ("{", "cannot be read"),
        ('{"chosen": [3]}', "3 is not a choice of a method"),
        ('{"chosen": [{"method": "pearl", "config": [1]}]}', "is not a choice of a method"),
    ],
)
def test_a_choice_that_cannot_run_is_refused(chosen, message) -> None:
    error = complaint(methods=chosen)
    assert error.where == "methods"
    assert message in str(error)


def test_passes_repeat_a_measured_comparison_only() -> None:
    assert passes_of(values(passes=3)) == 3
    assert passes_of(values(passes=3, runtime="virtual")) == 1
    for passes in (0, 4, None, "2"):
        with pytest.raises(FormError, match="it must be 1 to 3"):
            passes_of(values(passes=passes))


@pytest.mark.parametrize(
    ("changed", "where", "message"),
    [
        (
            {"methods": picked(("speculative", {"gamma": 99}))},
            "speculative-gamma",
            "Speculative decoding: gamma is 99; it must be at least 1 and at most 32",
        ),
        ({"temperature": 11}, "temperature", "temperature is 11; it must be at least 0 and at most 10"),
        ({"temperature": None}, "temperature", "temperature is empty; type a number"),
        ({"top_k": 1.5}, "top-k", "top_k is 1.5; it must be a whole number"),
        ({"top_p": 0}, "top-p", "top_p is 0; it must be more than 0 and at most 1"),
        ({"seed": -1}, "seed", "seed is -1; it must be at least 0"),
        ({"max_new_tokens": 0}, "max-new-tokens", "max_new_tokens is 0; it must be at least 1"),
        ({"runtime": "virtual"}, "profile", "no cluster is chosen"),
        ({"runtime": "virtual", "profile": "moon"}, "profile", "there is no profile 'moon'; choose one of"),
        ({"models": "own"}, "target", "the target is empty"),
        ({"models": "own", "target": "/t", "drafting": "other"}, "drafter", "the drafter is empty"),
        ({"stop": "x" * 1001}, "stop-strings", "a stop string has 1001 characters"),
        (
            {"methods": picked(("pearl", {}), ("pearl", {"gamma": -3}))},
            "pearl-2-gamma",
            "PEARL: gamma is -3; it must be at least 1 and at most 32, or 0 (planned)",
        ),
        (
            {"methods": picked(("pearl", {"gamma": "x"}))},
            "pearl-gamma",
            "gamma is 'x'; it must be a whole number of at least 1 and at most 32, or 0 (planned)",
        ),
        ({"drafting": "other", "drafter": "/d"}, "drafting", "needs a target of your own"),
    ],
)
def test_the_error_of_a_bad_value_names_its_control(changed, where, message) -> None:
    error = complaint(**changed)
    assert error.where == where
    assert message in str(error)


def test_a_virtual_cluster_has_profile_and_pair_and_hidden_controls_are_ignored() -> None:
    name = profiles()[0]
    pair = list(Profile.load(name).pairs)[-1]
    request = make_requests(values(runtime="virtual", profile=name, profile_pair=pair), MESSAGES, "g")[0]
    assert (request.runtime, request.profile, request.profile_pair) == ("virtual", name, pair)
    assert complaint(runtime="virtual", profile=name, profile_pair="nobody").where == "profile-pair"
    request = make_requests(values(profile=profiles()[0]), MESSAGES, "g")[0]
    assert (request.profile, request.profile_pair) == (None, None)


def test_own_models_with_drafters_heads_or_their_own_weights() -> None:
    own = {"models": "own", "drafting": "other"}
    request = make_requests(values(**own, target=" /t ", drafter="/d"), MESSAGES, "g")[0]
    assert (request.target, request.drafter) == ("/t", ("/d",))
    assert dict(request.place)["target"] == "/t"
    several = make_requests(values(**own, target="/t", drafter=" /d\n\n/e "), MESSAGES, "g")[0]
    assert several.drafter == ("/d", "/e")
    own = {"models": "own", "target": "/t", "drafter": "/hidden"}
    usual_one = make_requests(values(**own), MESSAGES, "g")[0]
    assert usual_one.drafter == (usual_form(),)
    plain = make_requests(values(**own, methods=picked("autoregressive")), MESSAGES, "g")[0]
    assert plain.drafter == ()
    assert make_requests(values(**own, drafting="int8"), MESSAGES, "g")[0].drafter == ("int8",)
    assert make_requests(values(), MESSAGES, "g")[0].drafter == ()
    request = make_requests(values(drafting="int4"), MESSAGES, "g")[0]
    assert (request.pair, request.target, request.drafter) == ("bundled", None, ("int4",))
    own = {"models": "own", "target": "/t", "methods": picked("medusa", "eagle")}
    assert str(complaint(**own)) == "the drafting head is empty; Medusa needs one"
    requests = make_requests(values(**own, head="/m\n /e\n"), MESSAGES, "g")
    assert [(request.head, request.drafter) for request in requests] == [(("/m", "/e"), ())] * 2
    assert ("head", ("/m", "/e")) in requests[0].place, "other heads need another cluster"


def test_only_methods_for_batches_get_further_prompts() -> None:
    typed = "First one.\n\nSecond,\non two lines.\n \n\n\nThird"
    assert further_prompts(typed) == ["First one.", "Second,\non two lines.", "Third"]
    assert further_prompts(None) == further_prompts(" \n\n ") == []
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    given = values(methods=picked(("ems", {}, typed), ("speculative", {}, typed)))
    requests = make_requests(given, messages, "g")
    by_method = {r.method: r for r in requests}
    assert by_method["speculative"].further == ()
    assert by_method["ems"].prompt == messages
    assert [m[-1]["content"] for m in by_method["ems"].further] == further_prompts(typed)
    assert {m[0]["content"] for m in by_method["ems"].further} == {"Be brief."}


def test_a_batch_brings_batched_plain_decoding_of_the_same_prompts_once_up_to_a_limit() -> None:
    chosen = picked(
        "autoregressive", ("ems", {"copy": 3}, "One.\n\nTwo."), ("ems", {"copy": 5}, "One.\n\nTwo.")
    )
    requests = make_requests(values(methods=chosen), MESSAGES, "g")
    assert [(r.method, r.config.get("base"), len(r.further)) for r in requests] == [
        ("autoregressive", None, 0),
        ("ems", "plain", 2),
        ("ems", None, 2),
        ("ems", None, 2),
    ]
    other = picked(("ems", {}, "One."), ("ems", {"batch": 1}, "One."), ("ems", {"base": "plain"}, "One."))
    bases = [r.config.get("base") for r in make_requests(values(methods=other), MESSAGES, "g")]
    assert bases == [None, "plain", None, "plain"], "a batch of one has another baseline"
    alone = make_requests(values(methods=picked("ems")), MESSAGES, "g")
    assert len(alone) == 1, "one prompt is compared with plain decoding"
    chosen = picked(*[("ems", {"batch": n}, "One.") for n in range(1, 7)])
    assert "12 runs are needed" in str(complaint(methods=chosen))
