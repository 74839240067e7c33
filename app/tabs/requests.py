"""Turn the values of the controls, the picker's among them, into run requests. Without Gradio."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from specscope.app import pairs
from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.app.ray import RUNTIME, Ray
from specscope.engine.bounds import MOST_CHARACTERS, MOST_PROMPTS, characters, check_prompt, check_prompts
from specscope.engine.checkpoints.forms import FORMS, usual_form
from specscope.engine.errors import ModelError, PairError, UsageError, shown
from specscope.engine.layout import Layout
from specscope.engine.methods import METHODS, find
from specscope.engine.servers.address import Address, ServerError
from specscope.engine.servers.session import MOST_REQUESTS
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.types import Limits, Sampling

OWN = "own"
"""Value of `models` for models that the user names."""
SERVER = "server"
"""Value of `models` for servers that run already, which the user names by their addresses."""
USUAL, OTHER = "usual", "other"
"""Values of `drafting`, beside the forms of the target's own weights."""
VIRTUAL = "virtual"
MOST_PASSES = 3
MOST_METHODS = 6
"""Most methods that can be chosen; a method counts once for each of its settings."""
MOST_SERVERS = 4
"""Most servers of a turn."""
MOST_RUNS = 8
"""Most runs of a turn, baselines of batches included."""


class FormError(UsageError):
    """A control has an invalid value; `where` is its id on the page."""

    def __init__(self, where: str, message: object) -> None:
        super().__init__(message)
        self.where = where


@contextmanager
def at(where: str, controls: Mapping[str, str] | None = None) -> Iterator[None]:
    """Blame errors of use on a control; one that names a setting of `controls` on that one's."""
    try:
        yield
    except FormError:
        raise
    except UsageError as error:
        raise FormError((controls or {}).get(error.setting, where), error) from None


class Choice(NamedTuple):
    """One pane of the comparison: a method, its settings, and further prompts of its batch."""

    method: str
    config: dict[str, Any]
    prompts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return METHODS[self.method].title

    @property
    def settings(self) -> Any:
        return METHODS[self.method].configure(self.config)

    @property
    def layout(self) -> Layout:
        return METHODS[self.method].layout(self.settings)

    @property
    def is_plain(self) -> bool:
        """Whether it is the baseline of a batch."""
        plain, settings = METHODS[self.method].plain, self.settings
        return bool(plain) and all(getattr(settings, name) == value for name, value in plain.items())

    @property
    def conditions(self) -> tuple[str, Sequence[str], int]:
        return self.method, self.prompts, self.layout.batch


def read_choices(value: str | None) -> list[Choice]:
    rows = rows_of(value)
    choices = [_choice(row, rows[:i]) for i, row in enumerate(rows)]
    if not 1 <= len(choices) <= MOST_METHODS:
        raise UsageError(f"{len(choices)} methods are chosen; choose 1 to {MOST_METHODS}")
    known = list[Any]()
    for choice in choices:
        same = (choice.method, choice.prompts, choice.settings)
        if same in known:
            raise UsageError(
                f"{choice.title} is chosen twice with the same settings; change one, or take it out"
            )
        known.append(same)
    return choices


def rows_of(value: str | None) -> list[Any]:
    """Return the rows of the picker's value, unchecked."""
    try:
        parsed = json.loads(value or "{}")
    except (ValueError, RecursionError):
        raise UsageError("the choice of methods cannot be read; reload the page") from None
    rows = parsed.get("chosen", []) if isinstance(parsed, dict) else []
    return rows if isinstance(rows, list) else []


def _choice(row: Any, earlier: Sequence[Any]) -> Choice:
    """Return a choice with the given settings, converted and checked; an error names the method."""
    if not isinstance(row, dict) or not isinstance(row.get("config", {}), dict):
        raise UsageError(f"{shown(row)} is not a choice of a method; reload the page")
    method, given = find(str(row.get("method"))), row.get("config", {})
    try:
        config = method.configure(given)
    except UsageError as error:
        nth = sum(other["method"] == method.key for other in earlier)
        raise FormError(control_of(method.key, error.setting, nth), f"{method.title}: {error}") from None
    prompts = further_prompts(str(row.get("prompts") or "")) if method.batched else []
    return Choice(method.key, {name: getattr(config, name) for name in given}, tuple(prompts))


def control_of(method: str, setting: str, nth: int = 0) -> str:
    """Return the id of a setting's control in the picker, for the nth run of a method from 0 on."""
    known = setting in {one.name for one in METHODS[method].settings()} or (
        setting == "prompts" and METHODS[method].batched
    )
    return f"{method}-{f'{nth + 1}-' if nth else ''}{setting}" if known else "methods"


def further_prompts(typed: str | None) -> list[str]:
    """Return the prompts in a text; blank lines separate them."""
    return [part.strip() for part in re.split(r"\n\s*\n", typed or "") if part.strip()]


def with_baselines(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices, each batch after the plain decoding of the same prompts."""
    chosen, complete = list(choices), list[Choice]()
    for choice in chosen:
        baseline = METHODS[choice.method].plain
        if choice.prompts and baseline and not choice.is_plain:
            plain = choice._replace(config={**choice.config, **baseline})
            if plain.conditions not in [one.conditions for one in (*chosen, *complete) if one.is_plain]:
                complete.append(plain)
        complete.append(choice)
    if len(complete) > MOST_RUNS:
        raise UsageError(
            f"{len(complete)} runs are needed, because each batch brings its baseline; at most {MOST_RUNS} can be "
            "compared: choose fewer methods"
        )
    return complete


def make_requests(
    values: Mapping[str, Any], messages: Sequence[Mapping[str, str]], group: str, ray: Ray | None = None
) -> list[RunRequest]:
    """Return one request per chosen method and baseline, all with the same conversation.

    Values by control: methods (see `read_choices`), temperature, top_k, top_p, seed,
    max_new_tokens, stop, runtime, profile, profile_pair, models (a pair's name, or `own`), target,
    drafting (a form of the target's weights, `usual` or `other`), drafter, head; with `server`
    servers, server_key, remote, probabilities and together in place of the methods, one request
    per server.
    """
    if values.get("models") == SERVER:
        return _of_servers(values, messages, group)
    with at("methods"):
        choices = with_baselines(read_choices(values["methods"]))
    further = [_further(choice, messages) for choice in choices]
    with at("prompt"):
        check_prompt(messages)  # for any model; the engine checks the context later
    for choice, prompts in zip(choices, further, strict=True):
        _check_size(choice, prompts)
    more = {**_generation(values), "group": group}
    with at("runtime"):
        place = _place(values, ray)
    with at("models"):
        place |= _own_models(values, choices) if values["models"] == OWN else _pair(values, choices)
    prompt = [dict(m) for m in messages]
    return [
        RunRequest(choice.method, prompt, prompts, choice.config, **more, **place)
        for choice, prompts in zip(choices, further, strict=True)
    ]


def _generation(values: Mapping[str, Any]) -> dict[str, Any]:
    with at("stop-strings", {name: name.replace("_", "-") for name in values}):
        heat, nucleus = _number(values, "temperature"), _number(values, "top_p")
        sampling = Sampling(heat, _whole(values, "top_k"), nucleus, _whole(values, "seed"))
        stop = tuple(line for line in (values["stop"] or "").split("\n") if line)
        return {"sampling": sampling, "limits": Limits(_whole(values, "max_new_tokens"), stop)}


def _of_servers(
    values: Mapping[str, Any], messages: Sequence[Mapping[str, str]], group: str
) -> list[RunRequest]:
    with at("servers", {"key": "server-key"}):
        key = str(values["server_key"] or "").strip() or None
        addresses = [Address.of(line, key or "").url for line in lines_of(values["servers"])]
        if not addresses:
            raise UsageError("no server is named; type the address of one, such as http://127.0.0.1:8080")
        if len(addresses) > MOST_SERVERS:
            raise UsageError(f"{len(addresses)} servers are named; at most {MOST_SERVERS} are compared")
    with at("prompt"):
        check_prompt(messages)
    system = [dict(m) for m in messages if m["role"] == "system"]
    further = [[*system, {"role": "user", "content": p}] for p in further_prompts(values["together"])]
    with at("together"):
        if len(further) >= MOST_REQUESTS:
            raise UsageError(f"{len(further)} more prompts are given; at most {MOST_REQUESTS - 1} are sent")
        check_prompts([messages, *further])
    prompt, more = [dict(m) for m in messages], _generation(values)
    return [
        RunRequest(
            "",
            prompt,
            tuple(further),
            runtime=SERVER,
            server=address,
            remote=bool(values["remote"]),
            key=key,
            probabilities=bool(values["probabilities"]),
            group=group,
            **more,
        )
        for address in addresses
    ]


def passes_of(values: Mapping[str, Any]) -> int:
    passes = values["passes"]
    if passes not in range(1, MOST_PASSES + 1):
        raise FormError("passes", f"passes is {passes}; it must be 1 to {MOST_PASSES}")
    virtual = values["runtime"] == VIRTUAL and values.get("models") != SERVER
    return 1 if virtual else int(passes)


def _further(choice: Choice, messages: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], ...]:
    """Return the further prompts of a batch, each after the same system prompt."""
    system = [dict(m) for m in messages if m["role"] == "system"]
    return tuple([*system, {"role": "user", "content": prompt}] for prompt in choice.prompts)


def _check_size(choice: Choice, prompts: Sequence[Any]) -> None:
    size = sum(map(characters, prompts))
    if len(prompts) >= MOST_PROMPTS or size > MOST_CHARACTERS:
        raise FormError(
            control_of(choice.method, "prompts"),
            f"{choice.title}: {len(prompts)} further prompts have {size} characters in all; there may be "
            f"{MOST_PROMPTS - 1} with {MOST_CHARACTERS}",
        )


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is empty; type a number", name)
    return value


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = _number(values, name)
    if value != int(value):
        raise UsageError(f"{name} is {value:g}; it must be a whole number", name)
    return int(value)


def _place(values: Mapping[str, Any], ray: Ray | None) -> dict[str, Any]:
    if values["runtime"] == RUNTIME:
        if ray is None:
            raise UsageError("this playground has no Ray cluster; start it with specscope play --ray")
        return {"runtime": RUNTIME, "address": ray.address}
    if values["runtime"] != VIRTUAL:
        return {"runtime": values["runtime"]}
    profile, pair = values["profile"], values["profile_pair"]
    if not profile:
        raise FormError("profile", "no cluster is chosen; choose one from the list")
    with at("profile"):
        cluster = Profile.load(profile)
    with at("profile-pair"):
        cluster.latency(pair)
    return {"runtime": VIRTUAL, "profile": profile, "profile_pair": pair}


def _own_models(values: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    target, heads = str(values["target"] or "").strip(), lines_of(values["head"])
    if not target:
        message = "the target is empty; give a model's name, folder, .gguf file or hub id, or choose a pair from the list"
        raise FormError("target", message)
    needed = any(choice.layout.needs_drafter for choice in choices)
    drafters = _drafters(values) or ((usual_form(),) if needed and values["drafting"] == USUAL else ())
    if needed and not drafters:
        message = "the drafter is empty; name a model, or choose the target's own weights in 4 or 8 bits"
        raise FormError("drafter", message)
    if not heads and (users := [choice.title for choice in choices if choice.layout.head]):
        raise FormError("heads", f"the drafting head is empty; {users[0]} needs one")
    return {"target": target, "drafter": drafters, "head": heads}


def _pair(values: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    name = values["models"]
    if name not in pairs.NAMES:
        raise UsageError("no models are chosen; choose a pair from the list")
    for choice in choices:
        if lacking := pairs.lacks(name, choice.layout):
            message = (
                f"{choice.title} needs {lacking} with these settings, and {pairs.label(name)} has none; "
                "choose another method or other models"
            )
            raise FormError("methods", message)
    if values["drafting"] == OTHER:
        raise FormError("drafting", "another drafter needs a target of your own; choose My own and name both")
    return {"pair": name, "drafter": _drafters(values)}


def _drafters(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the chosen form of the target, or the named drafters; empty for the usual one."""
    chosen = values["drafting"]
    if chosen in FORMS:
        return (chosen,)
    return lines_of(values["drafter"]) if chosen == OTHER else ()


def lines_of(typed: object) -> tuple[str, ...]:
    return tuple(line.strip() for line in str(typed or "").split("\n") if line.strip())


def check_profile(name: str, *others: str) -> None:
    """Refuse a profile by path, which would name a file of the server."""
    if name not in (*others, *profiles()):
        raise UsageError(f"there is no profile {shown(name)}; choose one of {', '.join(profiles())}")


def blame(requests: Sequence[RunRequest], failed: LiveRun) -> FormError | None:
    """Return the failure of a run as that of a control; None if no input caused it.

    `requests` are those of all panes, in the order of the picker.
    """
    request, cause = failed.request, failed.cause
    if request.server and isinstance(cause, UsageError | ServerError):
        return FormError("servers", failed.error)
    if isinstance(cause, ModelError | PairError):
        return FormError("target" if request.target else "models", failed.error)
    if not isinstance(cause, UsageError):
        return None
    earlier = requests[: requests.index(request)]
    nth = sum(one.method == request.method and not Choice(one.method, one.config).is_plain for one in earlier)
    control = control_of(request.method, cause.setting, nth)
    usual = "max-new-tokens" if cause.setting == "max_new_tokens" else "prompt"
    return FormError(usual if control == "methods" else control, failed.error)
