"""Settings of all methods: those out of range are refused in one line, with value and range."""

from __future__ import annotations

from typing import Any

import pytest

from specscope.engine.drafting.planner import Plan
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS, Setting, Situation, find

SETTINGS = [(key, setting) for key, method in METHODS.items() for setting in method.settings()]


def refused(setting: Setting) -> dict[Any, str]:
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
    within = f"it must be at least {low:g} and at most {high:g}" + (
        f", or 0 ({setting.auto})" if setting.auto else ""
    )
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
        ("tree", {"width": 13, "depth": 5}, "13 times depth 5 is 65 nodes; .* at this width depth is at most 4"),
        ("easyspec", {"width": 8, "gamma": 9}, "width 8 times gamma 9 is 72 nodes; .* gamma is at most 8"),
        ("specbranch", {"branches": 16, "length": 8}, "16 times length 8 is 128 nodes; it must be at most 64"),
        ("eagle2", {"top": 16, "depth": 8}, "with this top depth is at most 6"),
        ("llma", {"reference": "x" * 100_001}, "has 100,001 characters; it must have at most 100,000; shorten"),
        ("llma", {"reference": "PK\0\1"}, r"^character 2 of reference, '\\x00', is not text; remove it$"),
        ("llma", {"reference": "a\ud800"}, r"^character 1 of reference, '\\ud800', is not valid Unicode; rem"),
        ("medusa", {"oak": 1}, "medusa has no field 'oak'; its fields are tree, heads"),
        ("medusa", {"epsilon": "1.5"}, "epsilon is 1.5; it must be at least 0 and at most 1"),
        ("medusa", {"delta": "much"}, "delta is 'much'; it must be a number of at least 0 and at most 1"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together_are_refused(method, config, message):
    with pytest.raises(UsageError, match=message):
        find(method).configure(config)


# Plans: the settings that are 0, and what does not fit the cluster.


def situation(*, c: float = 4.0, **facts: object) -> Situation:
    """Return facts of a cluster of four devices and a drafter of four layers, unless given."""
    defaults: dict[str, object] = {
        "context": 2048,
        "depth": 4,
        "devices": 4,
        "drafters": 1,
        "servers": tuple(4 - drafters for drafters in range(5)),
        "stages": lambda asked: asked or 3,
        "head_levels": lambda kind: 0,
        "planned": lambda settings, best: None,
    }
    return Situation(**{**defaults, **facts, "c": lambda: c})  # type: ignore[arg-type]


NINE_DEVICES = {"c": 3, "drafters": 3, "servers": tuple(9 - drafters for drafters in range(9))}


@pytest.mark.parametrize(
    ("method", "asked", "facts", "planned"),
    [
        ("tree", {}, {}, {"width": 4, "depth": 5}),
        ("tree", {"width": 16}, {}, {"width": 16, "depth": 4}),
        ("tree", {"depth": 20}, {}, {"width": 3, "depth": 20}),
        ("easyspec", {}, {}, {"gamma": 5}),
        ("easyspec", {"width": 16}, {}, {"gamma": 4}),  # 16 times 5 would be more than 64 nodes
        ("easyspec", {}, {"depth": 32, "devices": 8}, {"devices": 4}),
        ("easyspec", {}, {"depth": 32, "devices": 2}, {"devices": 2}),
        ("easyspec", {}, {"devices": 1}, {"devices": 1}),
        ("easyspec", {"size": 5}, {"depth": 0, "devices": 8}, {"devices": 5}),
        ("easyspec", {"devices": 3}, {"depth": 32, "devices": 8}, {"devices": 3}),
        ("pearl", {"placement": "pipeline"}, {}, {"stages": 3}),
        ("pearl", {"placement": "pipeline", "stages": 2}, {}, {"stages": 2}),
        ("pearl", {}, {}, {"stages": 0, "gamma": 4}),
        ("dsi", {}, {"c": 14.8, "servers": (7, 7)}, {"lookahead": 3, "sp": 5}),
        ("dsi", {}, {"c": 7, "servers": (7, 7)}, {"lookahead": 1, "sp": 7}),
        # too few for a guarantee over speculative: the least that keeps up
        ("dsi", {}, {"c": 3.05, "servers": (1, 1)}, {"lookahead": 4, "sp": 1}),
        ("dsi", {"lookahead": 6}, {"c": 3.05, "servers": (1, 1)}, {"lookahead": 6, "sp": 1}),
        ("dsi", {"sp": 2}, {"c": 5, "servers": (7, 7)}, {"lookahead": 3, "sp": 2}),
        ("dsi", {"lookahead": 2}, {"c": 5, "servers": (7, 7)}, {"lookahead": 2, "sp": 3}),
        ("dsi", {}, NINE_DEVICES, {"lookahead": 1, "sp": 3}),
        ("dsi", {"drafters": 2}, NINE_DEVICES, {"lookahead": 1, "sp": 6}),
        ("dsi", {"drafters": 3}, NINE_DEVICES, {"lookahead": 1, "sp": 6}),  # all that fit
        ("dsi", {"drafters": 2, "lookahead": 2}, NINE_DEVICES, {"lookahead": 2, "sp": 4}),
        ("dsi", {"drafters": 2, "sp": 2}, NINE_DEVICES, {"lookahead": 2, "sp": 2}),
        ("specbranch", {}, {"c": 5.4}, {"gamma": 5, "length": 5}),
        ("specbranch", {"branches": 16, "gamma": 2}, {"c": 5.4}, {"gamma": 2, "length": 4}),
        ("lookahead", {"level": 5, "window": 16}, {"context": 20}, {"window": 16}),
        ("ouroboros", {"level": 5, "window": 16}, {"context": 20}, {"window": 16}),
    ],
)
def test_settings_of_0_follow_the_cluster(method, asked, facts, planned):
    found = find(method)
    cfg = found.plan(found.configure(asked), situation(**facts))
    assert {name: getattr(cfg, name) for name in planned} == planned


@pytest.mark.parametrize(
    ("method", "asked", "planned", "measured"),
    [
        ("tree", {}, (2, 3), (4, 6)),
        ("tree", {"depth": 12}, (2, 12), (4, 12)),
        ("tree", {"depth": 32}, (2, 32), (2, 32)),
        ("tree", {"width": 16}, (2, 3), (16, 4)),
        ("tree", {"width": 3, "depth": 7}, (3, 7), None),
        ("easyspec", {}, (1, 3), (1, 8)),
        ("easyspec", {"width": 16}, (16, 3), (16, 4)),
        ("easyspec", {"gamma": 5}, (1, 5), None),
    ],
)
def test_the_shape_of_drafts_is_planned_where_it_is_0(method, asked, planned, measured):
    """Width and levels of the planned tree, and of the runs that measure for the plan."""
    seen, names = [], ("width", "depth" if method == "tree" else "gamma")

    def plan(settings, best):
        seen.append(tuple(settings[name] for name in names))
        return Plan(3, 6, 2.0, 1.5, width=2)

    found = find(method)
    cfg = found.plan(found.configure(asked), situation(planned=plan))
    assert tuple(getattr(cfg, name) for name in names) == planned
    assert seen == ([measured] if measured else [])


@pytest.mark.parametrize(
    ("method", "config", "facts", "message"),
    [
        ("easyspec", {"size": 5}, {}, "size is 5; with a drafter of 4 layers it must be at least 1 and at most 4"),
        ("easyspec", {"devices": 3}, {"devices": 2}, "devices is 3; it must be at least 0 and at most 2"),
        ("easyspec", {"size": 1, "devices": 2}, {"devices": 2}, "devices is 2; it must be at least 0 and at most 1"),
        ("dsi", {"lookahead": 1, "sp": 2}, {"c": 5, "servers": (7, 7)}, r"lookahead is 1; with 2 target server\(s\) .* at least 3 \(or sp at least 5\)"),
        ("dsi", {"lookahead": 1}, {"c": 5, "servers": (2, 2)}, "lookahead is 1; .* it must be at least 3$"),
        ("dsi", {"drafters": 4}, NINE_DEVICES, "drafters is 4; it must be at most 3: .* name more with --drafter"),
        ("dsi", {"drafters": 2, "acceptance": "rejection"}, NINE_DEVICES, "acceptance is rejection; with 2 drafters it must be match"),
        ("dsi", {"drafters": 2, "sp": 8}, NINE_DEVICES, "sp is 8; beside 2 drafters there is room for 1 to 7 target"),
        ("dsi", {"drafters": 2, "sp": 2, "lookahead": 1}, NINE_DEVICES, r"lookahead is 1; .* at least 2 \(or sp at least 3\)"),
        ("dsi", {"drafters": 2}, {"drafters": 3, "servers": (2, 1, 0, -1)}, "drafters is 2; it must be at most 1: the pair has 3"),
        ("lookahead", {"window": 17}, {"context": 20}, "window is 17; with level 5 and a context of 20 tokens it must be at least 1 and at most 16"),
        ("ouroboros", {"window": 17}, {"context": 20}, "window is 17; with level 5 and a context of 20 tokens it must be at least 1 and at most 16"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_cluster_are_refused(method, config, facts, message):
    found = find(method)
    with pytest.raises(UsageError, match=message):
        found.plan(found.configure(config), situation(**facts))
