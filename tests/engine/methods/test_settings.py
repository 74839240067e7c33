"""Settings of all methods: those out of range are refused in one line, with value and range."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UsageError
from engine.methods import METHODS, Setting, find
from tests.engine.methods.situations import situation

SETTINGS = [(key, setting) for key, method in METHODS.items() for setting in method.settings()]


def refused(setting: Setting) -> dict[Any, str]:
    """Return values that a setting refuses, and the messages."""
    name, low, high = setting.name, setting.low, setting.high
    if setting.choices:
        return {"none of them": f"'none of them'; choose one of {', '.join(setting.choices)}"}
    if setting.type is bool:
        return {"maybe": "'maybe'; it must be true or false"}
    if setting.free_text:
        return {7: "7; it must be a text", None: "None; it must be a text"}
    assert low is not None, f"{name} has a range"
    assert high is not None, f"{name} has a range"
    below = -1 if setting.auto else low - 1
    within = f"it must be at least {low:g} and at most {high:g}"
    values = {value: f"{value:g}; {within}" for value in (below, high + 1)}
    return values | {"nan": f"nan; {within}"} if setting.type is float else values


@pytest.mark.parametrize(("method", "setting"), SETTINGS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_values_out_of_range_are_refused(method: str, setting: Setting) -> None:
    for value, message in refused(setting).items():
        with pytest.raises(UsageError) as caught:
            find(method).configure({setting.name: value})
        assert str(caught.value) == f"{setting.name} is {message}"


@pytest.mark.parametrize(
    ("method", "config", "message"),
    [
        (
            "tree",
            {"width": 13, "depth": 5},
            "13 times depth 5 is 65 nodes; .* at this width depth is at most 4",
        ),
        ("easyspec", {"width": 8, "gamma": 9}, "width 8 times gamma 9 is 72 nodes; .* gamma is at most 8"),
        ("eagle2", {"top": 16, "depth": 8}, "with this top depth is at most 6"),
        (
            "llma",
            {"reference": "x" * 100_001},
            "has 100,001 characters; it must have at most 100,000; shorten",
        ),
        ("llma", {"reference": "PK\0\1"}, r"^character 2 of reference, '\\x00', is not text; remove it$"),
        (
            "llma",
            {"reference": "a\ud800"},
            r"^character 1 of reference, '\\ud800', is not valid Unicode; rem",
        ),
        ("medusa", {"oak": 1}, "medusa has no field 'oak'; its fields are tree, heads"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(method, config, message):
    with pytest.raises(UsageError, match=message):
        find(method).configure(config)


@pytest.mark.parametrize("method", ["lookahead", "ouroboros"])
def test_a_window_larger_than_the_context_is_refused(method):
    found, small = find(method), situation(context=20)
    found.plan(found.configure({"level": 5, "window": 16}), small)
    message = "window is 17; with level 5 and a context of 20 tokens it must be at least 1 and at most 16"
    with pytest.raises(UsageError, match=message):
        found.plan(found.configure({"level": 5, "window": 17}), small)
