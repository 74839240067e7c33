"""The Python API: one rule for profile and runtime, plain keywords, and no bare TypeError."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specscope
from specscope import Limits, Load, Sampling, UsageError
from specscope.engine.cluster.prompts import Plain
from specscope.engine.errors import SpecScopeError
from specscope.engine.trace.appended import KeptLines

PLACE = {"profile": "pearl-3xA100", "tokens": "bernoulli:0.8"}


@pytest.fixture(scope="module")
def cluster():
    with specscope.open("bundled", **PLACE) as opened:
        yield opened


def test_a_profile_alone_is_a_virtual_cluster_in_every_call(cluster):
    assert cluster.placement.runtime == "virtual"
    found = specscope.compare("pearl", "Hi", pair="bundled", **PLACE, max_new_tokens=8, progress=False)
    assert found.to_dict()["clock"].startswith("virtual · pearl-3xA100")
    with pytest.raises(UsageError, match="the runtime local-process measures; the profile 'pearl-3xA100' is"):
        specscope.open("bundled", runtime="local-process", **PLACE)
    with pytest.raises(UsageError, match="needs a profile"):
        specscope.open("bundled", runtime="virtual")


def test_plain_keywords_are_the_fields_of_limits_and_sampling_and_reach_every_run(cluster):
    assert set(Plain.__annotations__) == {f.name for kind in (Limits, Sampling) for f in fields(kind)}
    plain = {"max_new_tokens": 8, "temperature": 1.0, "top_k": 5, "top_p": 0.9, "seed": 3}
    short = cluster.run("pearl", "Hi", **plain, stop="~")
    sampling = Sampling(**{name: plain[name] for name in plain if name != "max_new_tokens"})
    same = cluster.run("pearl", "Hi", sampling=sampling, limits=Limits(8, ("~",)))
    assert short.token_ids() == same.token_ids()
    for name in ("sampling", "limits"):
        assert getattr(short.header, name) == getattr(same.header, name)
    assert short.header.limits["stop"] == ["~"], "one text, and not its characters"
    alone = cluster.run("pearl", "Hi", max_new_tokens=5, sampling=Sampling(seed=2))
    assert (len(alone.token_ids()), alone.header.sampling["seed"]) == (5, 2)
    given = {"cluster": cluster, "progress": False, "max_new_tokens": 6, "seed": 4}
    found = specscope.compare("pearl", ["Hi", "Ho"], **given)
    traces = [trace for by_prompt in found.traces.values() for trace in by_prompt.values()]
    assert {len(trace.token_ids()) for trace in traces} == {6}
    assert {trace.header.sampling["seed"] for trace in traces} == {4, 5}
    swept = specscope.sweep("pearl", {"gamma": "2:3"}, "Hi", **given)
    assert all(cell.speedups for cell in swept.cells)
    drawn = specscope.sweep("pearl", {"acceptance_rate": [0.5]}, profile="pearl-3xA100", max_new_tokens=6)
    assert drawn.cells[0].speedups


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limits": Limits(3), "max_new_tokens": 8}, "limits and max_new_tokens were given; leave one out"),
        ({"sampling": Sampling(), "seed": 3, "top_k": 2}, "sampling and top_k, seed were given"),
        ({"max_tokens": 8}, "Cluster.run has no argument 'max_tokens'; did you mean max_new_tokens"),
        ({"prompt": "Hi"}, r"did you mean \*prompts\? it takes method, \*prompts, config, sampling, limits"),
        ({"max_new_tokens": "8"}, "max_new_tokens is '8'; it must be a whole number"),
        ({"max_new_tokens": 8.5}, "max_new_tokens is 8.5; it must be a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens is True; it must be a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"top_p": None}, "top_p is None; it must be a number"),
        ({"limits": 48}, "limits is of type int; it must be a specscope.Limits"),
        ({"sampling": {"seed": 1}}, "sampling is of type dict; it must be a specscope.Sampling"),
        ({"stop": 7}, "stop is 7; it must be a list of texts"),
        ({"eos": ["a"]}, r"eos is \['a'\]; it must be a list of token ids"),
        ({"config": 3}, "config is 3; it must map fields of pearl to values"),
    ],
)
def test_wrong_keywords_of_a_run_are_errors_of_use(cluster, given, message):
    with pytest.raises(UsageError, match=message):
        cluster.run("pearl", "Hi", **given)


@pytest.mark.parametrize("prompt", [5, None, ["Hi"], [1, "Hi"], {"role": "user"}, [{"role": "user"}, 3]])
def test_a_prompt_of_no_kind_is_an_error_of_use(cluster, prompt):
    kinds = "must be a text, a list of messages with role and content, or a list of token ids"
    with pytest.raises(UsageError, match=kinds):
        cluster.run("pearl", prompt)
    with pytest.raises(UsageError):
        cluster.count(prompt)


def test_a_type_error_inside_of_a_call_stays_one_and_ids_may_be_numpys(cluster):
    """Only wrong arguments become errors of use; a listener's own fault does not."""

    def listener(event):
        raise TypeError("of the listener")

    with pytest.raises(Exception, match="of the listener") as caught:
        cluster.run("pearl", "Hi", listener=listener)
    assert not isinstance(caught.value, UsageError)
    assert "method" in signature(specscope.Cluster.run).parameters, "help() shows the arguments"
    ids = cluster.run("pearl", "Hi", max_new_tokens=3).header.prompt_ids[0]
    assert cluster.run("pearl", [*np.array(ids)], max_new_tokens=3).header.prompt_ids[0] == ids
    with pytest.raises(UsageError, match="or a list of token ids"):
        cluster.run("pearl", np.array(ids))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: specscope.open(profil="x"), "open has no argument 'profil'; did you mean profile"),
        (lambda: specscope.open("bundled", "x"), "open: too many positional arguments; it takes pair, target"),
        (lambda: specscope.open("bundled", threads="2"), "threads is '2'; it must be a whole number"),
        (lambda: specscope.open("bundled", tp="2"), "tp is '2'; it must be a whole number"),
        (lambda: specscope.compare(), "compare: missing a required argument: 'methods'; it takes methods, prompts"),
        (lambda: specscope.compare("pearl", "Hi", profil="x"), "compare has no argument 'profil'; did you mean profile"),
        (lambda: specscope.sweep("pearl", {}, max_tokens=3), "sweep has no argument 'max_tokens'; did you mean max_new"),
        (lambda: specscope.diff(1), "diff: missing a required argument: 'second'"),
        (lambda: specscope.record(None, metod="x"), "record has no argument 'metod'; did you mean method"),
        (lambda: specscope.watch(modell=1), "watch has no argument 'modell'; did you mean model"),
        (lambda: Limits(max_tokens=3), "Limits has no argument 'max_tokens'; did you mean max_new_tokens"),
        (lambda: Sampling(temp=1), "Sampling has no argument 'temp'; it takes temperature, top_k, top_p, seed"),
        (lambda: Load((0.0,), bach=2), "Load has no argument 'bach'; did you mean batch"),
        (lambda: specscope.open(memory=3), "memory of open is 3; it must be a text"),
        (lambda: specscope.open(tokens=5, profile="8xA100"), "tokens of open is 5; it must be a text or a Trace"),
        (lambda: specscope.open(head=3), "head of open is 3; it must be a text or a path or a list or None"),
        (lambda: Load(3), "arrivals of Load is 3; it must be a list of numbers"),
        (lambda: Load("x"), "arrivals of Load is 'x'; it must be a list of numbers"),
        (lambda: specscope.diff(1, 2), "first of diff is 1; it must be a Trace"),
        (lambda: specscope.compare(3, "Hi"), "methods of compare is 3; it must be a text or a list of texts"),
        (lambda: specscope.compare("pearl", "Hi", cluster=3), "cluster of compare is 3; it must be a Cluster"),
        (lambda: specscope.sweep("pearl", 3), "over of sweep is 3; it must be a mapping of names to values"),
        (lambda: specscope.Finished("x"), "texts of Finished is 'x'; it must be a list"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_what_is_taken(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_the_documents_have_every_field_and_the_code_there_runs():
    text = (Path(__file__).parents[2] / "docs" / "notebook.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(Limits|Sampling)` \| `(\w+)` \| `(.+?)` \|", text, re.MULTILINE)
    assert rows == [(k.__name__, f.name, repr(f.default)) for k in (Limits, Sampling) for f in fields(k)]
    (block,) = (code for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    names: dict = {}
    exec(compile(block, "docs/notebook.md", "exec"), names)
    assert len(names["short"].token_ids()) == len(names["story"].token_ids()) == 48


# Every public call, given a value of another type: an error of use in one line, or an answer.


ODD = (None, 3, "x", [], object())
HOT = ("span", "end", "drop")
"""Of a recorder: Python names an unknown argument, and the recorder checks the values."""


@pytest.fixture(scope="module")
def public(cluster) -> dict[str, tuple[Callable[[], Any], dict[str, Any]]]:
    """Return by name what makes a public call, and arguments with which it works."""
    given = {"cluster": cluster, "max_new_tokens": 2, "progress": False}
    trace = cluster.run("pearl", "Hi", max_new_tokens=2)
    results = {
        "comparison": specscope.compare("pearl", "Hi", **given),
        "swept": specscope.sweep("pearl", {"gamma": "2"}, "Hi", **given),
        "difference": specscope.diff(trace, trace),
        "cluster": cluster,
        "finished": specscope.Finished(),
        "trace": trace,
    }
    arguments = {
        "open": {"pair": "bundled", **PLACE},
        "compare": {"methods": "pearl", "prompts": "Hi", **given},
        "sweep": {"method": "pearl", "over": {"gamma": "2"}, "prompts": "Hi", **given},
        "record": {"path": None},
        "watch": {"model": None},
        "diff": {"first": trace, "second": trace},
        "Load": {"arrivals": (0.0,)},
        "Cluster": {"pair": cluster.pair, "placement": cluster.placement},
        "cluster.run": {"method": "pearl", "max_new_tokens": 2},
        "cluster.check": {"method": "pearl"},
        "cluster.head": {"kind": "eagle"},
        "cluster.stages": {"asked": 0},
        "cluster.count": {"prompt": "Hi"},
        "finished.add": {"text": [1], "most": 4},
        "finished.tree": {"depth": 2, "most": 4},
        "trace.new_footer": {"status": "done"},
        "trace.of": {"events": trace.events()},
        "recorder.add": {"kind": "verify", "start": 1, "end": 2},
        "recorder.span": {"kind": "verify"},
        "recorder.end": {"work": None},
        "recorder.discard": {"drafted": [1]},
    }
    errors = ("SpecScopeError", "UsageError")
    calls = {
        name: lambda name=name: getattr(specscope, name) for name in specscope.__all__ if name not in errors
    }
    for title, result in results.items():
        for name in _methods(result):
            calls[f"{title}.{name}"] = lambda result=result, name=name: getattr(result, name)
    for name in _methods(_recorder()):
        calls[f"recorder.{name}"] = lambda name=name: getattr(_recorder(), name)
    return {name: (make, arguments.get(name, {})) for name, make in calls.items() if name != "cluster.close"}


def _recorder() -> Any:
    return specscope.record(KeptLines())


def _methods(result: object) -> list[str]:
    return [
        name for name, _ in inspect.getmembers(type(result), inspect.isfunction) if not name.startswith("_")
    ]


def _odd_calls(call: Callable[..., Any], given: dict[str, Any]) -> Iterator[tuple[str, Any, list, dict]]:
    for name, parameter in inspect.signature(call).parameters.items():
        for value in ODD:
            if value is parameter.default:
                continue
            if parameter.kind == parameter.VAR_POSITIONAL:
                yield name, value, [*given.values(), value][: len(given) + 1], {}
            elif parameter.kind != parameter.VAR_KEYWORD:
                yield name, value, [], {**given, name: value}


def test_a_value_of_another_type_is_an_error_of_use_in_one_line(public, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    faults, refused = [], 0
    assert {"open", "record", "Load", "cluster.run", "recorder.round", "trace.frame"} <= public.keys()
    for title, (make, given) in public.items():
        for name, value, args, kwargs in _odd_calls(make(), given):
            try:
                result = make()(*args, **kwargs)
            except SpecScopeError as error:
                refused += 1
                if "\n" in str(error) or len(str(error)) > 500:
                    faults.append(f"{title}({name}={value!r}): {error}")
            except Exception as error:  # noqa: BLE001 - any is a fault
                faults.append(f"{title}({name}={value!r}): {type(error).__name__}: {error}")
            else:
                if isinstance(result, specscope.Cluster) and title == "open":
                    result.close()
    assert faults == []
    assert refused > 200


@pytest.mark.parametrize("name", HOT)
def test_a_recorders_hot_calls_leave_unknown_arguments_to_python(name):
    with pytest.raises(TypeError, match="'colour'"):
        getattr(_recorder(), name)(colour=3)
