"""Values of the controls become run requests."""

from __future__ import annotations

import pytest

from app.pairs import TOY, usual
from app.tabs.plan import FormError, further_prompts, listed, make_requests
from engine.methods import METHODS
from engine.simulate.profile import Profile, profiles

CHOSEN = usual(TOY)
MESSAGES = [{"role": "user", "content": "Hi"}]


def values(**changed):
    base = {
        "methods": CHOSEN,
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
        "drafter": "",
        "head": "",
    }
    for key, method in METHODS.items():
        base |= {f"{key}.{s.name}": s.default for s in method.settings()}
    return base | changed


def complaint(**changed) -> FormError:
    with pytest.raises(FormError) as caught:
        make_requests(values(**changed), MESSAGES, "g")
    return caught.value


def test_every_chosen_method_gets_the_same_context_and_its_own_settings() -> None:
    given = values(**{"speculative.gamma": 7, "temperature": 0.8, "seed": 3, "stop": "END\n\nSTOP"})
    requests = make_requests(given, MESSAGES, "g")
    assert [r.method for r in requests] == CHOSEN
    assert all(r.prompt == MESSAGES and r.group == "g" for r in requests)
    assert len({r.place for r in requests}) == 1
    assert requests[1].config["gamma"] == 7
    assert requests[0].config == {}
    assert (requests[0].sampling.temperature, requests[0].sampling.seed) == (0.8, 3)
    assert requests[0].limits.stop == ("END", "STOP")


def test_panes_have_the_order_of_the_list() -> None:
    requests = make_requests(values(methods=list(reversed(CHOSEN))), MESSAGES, "g")
    assert [r.method for r in requests] == CHOSEN
    assert set(listed()) == set(METHODS)


@pytest.mark.parametrize("methods", [[], ["pearl"], None, ["pearl", "nonsense"]])
def test_too_few_methods(methods) -> None:
    error = complaint(methods=methods)
    assert error.where == "methods"
    assert "choose 2 to 4" in str(error)


@pytest.mark.parametrize(
    ("changed", "where", "message"),
    [
        (
            {"speculative.gamma": 99},
            "methods",
            "Speculative decoding: gamma is 99; it must be at least 1 and at most 32",
        ),
        ({"temperature": 11}, "sampling", "temperature is 11; it must be at least 0 and at most 10"),
        ({"temperature": None}, "sampling", "temperature is empty; type a number"),
        ({"top_k": 1.5}, "sampling", "top_k is 1.5; it must be a whole number"),
        ({"top_p": 0}, "sampling", "top_p is 0; it must be more than 0 and at most 1"),
        ({"seed": -1}, "sampling", "seed is -1; it must be at least 0"),
        ({"max_new_tokens": 0}, "sampling", "max_new_tokens is 0; it must be at least 1"),
        ({"runtime": "virtual"}, "place", "no cluster is chosen"),
        ({"runtime": "virtual", "profile": "moon"}, "place", "there is no profile 'moon'; choose one of"),
        ({"models": "own"}, "models", "the target is empty"),
        ({"models": "own", "target": "/t"}, "models", "the drafter is empty"),
    ],
)
def test_the_error_of_a_bad_value_names_its_part_of_the_form(changed, where, message) -> None:
    error = complaint(**changed)
    assert error.where == where
    assert message in str(error)


def test_a_virtual_cluster_has_profile_and_pair() -> None:
    name = profiles()[0]
    pair = list(Profile.load(name).pairs)[-1]
    request = make_requests(values(runtime="virtual", profile=name, profile_pair=pair), MESSAGES, "g")[0]
    assert (request.runtime, request.profile, request.profile_pair) == ("virtual", name, pair)
    assert complaint(runtime="virtual", profile=name, profile_pair="nobody").where == "place"


def test_the_value_of_a_hidden_control_is_ignored() -> None:
    request = make_requests(values(profile=profiles()[0]), MESSAGES, "g")[0]
    assert (request.profile, request.profile_pair) == (None, None)


def test_own_models() -> None:
    request = make_requests(values(models="own", target=" /t ", drafter="/d"), MESSAGES, "g")[0]
    assert (request.target, request.drafter) == ("/t", ("/d",))
    assert dict(request.place)["target"] == "/t"
    several = make_requests(values(models="own", target="/t", drafter=" /d\n\n/e "), MESSAGES, "g")[0]
    assert several.drafter == ("/d", "/e")


def test_heads_of_an_own_target() -> None:
    own = {"models": "own", "target": "/t", "methods": ["medusa", "eagle"]}
    assert str(complaint(**own)) == "the drafting head is empty; Medusa needs one"
    requests = make_requests(values(**own, head="/m\n /e\n"), MESSAGES, "g")
    assert [(request.head, request.drafter) for request in requests] == [(("/m", "/e"), ())] * 2
    assert ("head", ("/m", "/e")) in requests[0].place, "other heads need another cluster"


def test_only_methods_for_batches_get_further_prompts() -> None:
    typed = "First one.\n\nSecond,\non two lines.\n \n\n\nThird"
    assert further_prompts(typed) == ["First one.", "Second,\non two lines.", "Third"]
    assert further_prompts(None) == further_prompts(" \n\n ") == []
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    given = values(methods=["ems", "speculative"], **{"ems.prompts": typed})
    by_method = {r.method: r for r in make_requests(given, messages, "g")}
    assert by_method["speculative"].further == ()
    assert by_method["ems"].prompt == messages
    assert [m[-1]["content"] for m in by_method["ems"].further] == further_prompts(typed)
    assert {m[0]["content"] for m in by_method["ems"].further} == {"Be brief."}
