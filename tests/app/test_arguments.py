"""Every public call, given a value of another type: an error of use in one line, or an answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import specscope
from specscope.engine.errors import SpecScopeError
from specscope.engine.trace.appended import Memory
from tests.app.test_calls import PLACE

ODD = (None, 3, "x", [], object())
HOT = ("span", "end", "drop")
"""Of a recorder: Python names an unknown argument, and the recorder checks the values."""


@pytest.fixture(scope="module")
def public() -> Iterator[dict[str, tuple[Callable[[], Any], dict[str, Any]]]]:
    """Return by name what makes a public call, and arguments with which it works."""
    with specscope.open("bundled", **PLACE) as cluster:
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
            name: lambda name=name: getattr(specscope, name)
            for name in specscope.__all__
            if name not in errors
        }
        for title, result in results.items():
            for name in _methods(result):
                calls[f"{title}.{name}"] = lambda result=result, name=name: getattr(result, name)
        for name in _methods(_recorder()):
            calls[f"recorder.{name}"] = lambda name=name: getattr(_recorder(), name)
        yield {
            name: (make, arguments.get(name, {})) for name, make in calls.items() if name != "cluster.close"
        }


def _recorder() -> Any:
    return specscope.record(Memory())


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
    assert {
        "open",
        "record",
        "Load",
        "cluster.run",
        "recorder.round",
        "trace.frame",
        "swept.frame",
    } <= public.keys()
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: specscope.open(memory=3), "memory of open is 3; it must be a text"),
        (lambda: specscope.open(tokens=5, profile="8xA100"), "tokens of open is 5; it must be a text or a Trace"),
        (lambda: specscope.open(head=3), "head of open is 3; it must be a text or a path or a list or None"),
        (lambda: specscope.Load(3), "arrivals of Load is 3; it must be a list of numbers"),
        (lambda: specscope.Load("x"), "arrivals of Load is 'x'; it must be a list of numbers"),
        (lambda: specscope.diff(1, 2), "first of diff is 1; it must be a Trace"),
        (lambda: specscope.compare(3, "Hi"), "methods of compare is 3; it must be a text or a list of texts"),
        (lambda: specscope.compare("pearl", "Hi", cluster=3), "cluster of compare is 3; it must be a Cluster"),
        (lambda: specscope.sweep("pearl", 3), "over of sweep is 3; it must be a mapping of names to values"),
        (lambda: specscope.Finished("x"), "texts of Finished is 'x'; it must be a list"),
    ],
)  # fmt: skip
def test_the_error_names_the_value_and_what_is_taken(call, message):
    with pytest.raises(SpecScopeError, match=message):
        call()


@pytest.mark.parametrize("name", HOT)
def test_a_recorders_hot_calls_leave_unknown_arguments_to_python(name):
    with pytest.raises(TypeError, match="'colour'"):
        getattr(_recorder(), name)(colour=3)
