"""The doubt of a comparison's speed-ups, its ranking, and the bounds that CI asks for."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from specscope.app.experiments import doubt
from specscope.app.experiments.floors import (
    above_baseline,
    above_bounds,
    check_baseline,
    given_bounds,
    read_baseline,
)
from specscope.app.main import main
from specscope.engine.errors import UsageError
from tests.app.commands import answer, call

pytestmark = pytest.mark.usefixtures("shared_clusters")
WORDS = ["compare", "--pair", "bundled", "--methods", "pearl,ssd", "--profile", "8xA100"]
WORDS += ["--tokens", "bernoulli:0.8", "--max-new-tokens", "24", "--limit", "3"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> str:
    """What a comparison writes as JSON."""
    file = tmp_path_factory.mktemp("compared") / "traces.db"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*WORDS, "--db", str(file), "--json"]) == 0
    return out.getvalue()


# Doubt and order.


@pytest.fixture
def speeds(monkeypatch):
    """Runs are (tokens, tokens per second)."""
    monkeypatch.setattr(
        doubt, "measure", lambda run: SimpleNamespace(tokens=run[0], tokens_per_second=run[1])
    )


def test_the_range_over_prompts_is_two_standard_errors_by_leaving_out_each(speeds):
    """By hand, equal tokens, plain decoding 1 token/s: without each prompt 4/3, 12/7 and 2."""
    mine, plain = {0: (6, 3.0), 1: (6, 1.5), 2: (6, 1.2)}, dict.fromkeys(range(3), (6, 1.0))
    seconds = [1 / 3, 1 / 1.5, 1 / 1.2]
    without = [2 / (sum(seconds) - one) for one in seconds]
    mean = sum(without) / 3
    error = 2 * (2 / 3 * sum((one - mean) ** 2 for one in without)) ** 0.5
    found = doubt.doubt_of(mine, plain, ((), ()))
    assert (found.low, found.high) == pytest.approx((3 / sum(seconds) - error, 3 / sum(seconds) + error))
    assert found.source == "two standard errors over 3 prompts"
    assert doubt.by_prompt(mine, plain) == pytest.approx({0: 3.0, 1: 1.5, 2: 1.2})


def test_runs_give_a_range_by_prompts_by_passes_or_six_percent(speeds):
    run, plain = {0: (6, 2.0)}, {0: (6, 1.0)}
    assert doubt.doubt_of(run, plain, ((), ())) is None, "one prompt in virtual time"
    single = doubt.doubt_of(run, plain, ([2.0], [1.0]))
    assert (single.low, single.high) == pytest.approx((2 * 0.94 / 1.06, 2 * 1.06 / 0.94))
    assert single.source == "6% for a single pass"
    several = doubt.doubt_of(run, plain, ([2.0, 2.4, 2.2], [1.0, 1.1, 1.25]))
    assert (several.low, several.high) == pytest.approx((2.0 / 1.25, 2.4 / 1.0))
    both = doubt.doubt_of({0: (6, 2.0), 1: (6, 2.0)}, {0: (6, 1.0), 1: (6, 1.0)}, ([2.0, 2.2], [1.0, 1.0]))
    assert (both.low, both.high) == pytest.approx((2.0, 2.2))
    assert both.source == "two standard errors over 2 prompts and the range of 2 passes"
    assert doubt.doubt_of({0: (6, 2.0), 1: (1, None)}, {0: (6, 1.0), 1: (6, 1.0)}, ((), ())) is None
    assert doubt.doubt_of({0: (6, 2.0)}, {}, ([], [])) is None


def test_the_fastest_is_first_and_its_order_by_prompt_is_counted():
    methods = {
        "plain": {"speedup": 1.0, "speedup_by_prompt": {0: 1.0, 1: 1.0, 2: 1.0}},
        "none": {"speedup": None, "speedup_by_prompt": {}},
        "a": {"speedup": 1.5, "speedup_by_prompt": {0: 1.4, 1: 1.7, 2: 0.9}},
        "b": {"speedup": 1.6, "speedup_by_prompt": {0: 1.5, 1: 1.6, 2: 1.9}},
    }
    assert doubt.ranked(methods) == ["b", "a", "plain", "none"]
    assert [(o["first"], o["second"], o["faster"], o["prompts"]) for o in doubt.orders(methods)] == [
        ("b", "a", 2, 3),
        ("a", "plain", 2, 3),
    ]


def test_virtual_compare_shows_doubt_settings_and_rank(capsys, db, compared):
    compared = json.loads(compared)
    methods = compared["methods"]
    assert compared["ranking"] == sorted(methods, key=lambda key: -methods[key]["speedup"])
    for key in ("pearl", "ssd"):
        one = methods[key]
        assert one["speedup_low"] < one["speedup"] < one["speedup_high"]
        assert one["speedup_from"] == "two standard errors over 3 prompts"
        assert len(one["speedup_by_prompt"]) == 3
        assert one["settings"] == f"γ {one['config']['gamma']}"
    assert methods["autoregressive"]["speedup_low"] is None
    code, out, _ = call(capsys, *WORDS, *db)
    lines = out.splitlines()
    assert (code, [line.split()[0] for line in lines[2:5]]) == (0, compared["ranking"])
    ssd = next(line for line in lines if line.startswith("ssd "))
    low, high = methods["ssd"]["speedup_low"], methods["ssd"]["speedup_high"]
    assert f"identical · γ 2 · {low:.2f} to {high:.2f}×" in ssd
    assert "range of the speed-up (pearl, ssd): two standard errors over 3 prompts" in lines
    first, second = (methods[key]["speedup_by_prompt"].values() for key in compared["ranking"][:2])
    faster = sum(a > b for a, b in zip(first, second, strict=True))
    order = f"{compared['ranking'][0]} over {compared['ranking'][1]} on {faster} of 3"
    assert any(line.startswith("faster by prompt: ") and order in line for line in lines)


# Bounds.


def test_a_bound_that_is_missed_is_a_line_and_exit_code_1(capsys, db):
    bounds = ["--fail-below", "ssd=1.01", "--fail-below"]
    code, out, err = call(capsys, *WORDS, *db, *bounds, "pearl=9")
    (line,) = [line for line in err.splitlines() if "pearl" in line]
    assert line.startswith("specscope: pearl: the speed-up over plain decoding is ")
    assert "--fail-below asks for at least 9" in line
    assert (code, out.startswith("bundled · 3 prompts")) == (1, True), "the table is printed all the same"
    met = answer(capsys, *WORDS, *db, *bounds, "pearl=0.5", "--json")["bounds"]
    assert [(bound["method"], bound["met"]) for bound in met] == [("ssd", True), ("pearl", True)]


def test_a_method_that_is_left_out_cannot_be_bounded():
    with pytest.raises(UsageError, match="--fail-below names eagle, which is left out: it has no head"):
        given_bounds(["eagle=1.3"], ["pearl"], {"eagle": "it has no head"})


def figures(speedup: float | None = 1.5, low: float | None = 1.4, high: float | None = 1.6, **more) -> dict:
    found = {"acceptance_rate": 0.5, "acceptance_rate_tested": 0.8, "tokens_per_target_forward": 2.5}
    found |= {"speedup": speedup, "speedup_low": low, "speedup_high": high, "speedup_from": "two passes"}
    return {**found, "not_comparable": None, "equal_to_autoregressive": True, "drafted": 9, **more}


@pytest.mark.parametrize(
    ("mine", "bound", "met", "doubtful", "words"),
    [
        (figures(1.5), 1.3, True, False, ""),
        (figures(1.5), 1.45, True, True, "its range of 1.4 to 1.6 (two passes) holds the bound"),
        (figures(1.5), 1.55, False, True, "holds the bound"),
        (figures(1.5), 1.7, False, False, "at least 1.7"),
        (figures(1.5), 1.5, True, True, ""),
        (figures(1.29999, None, None), 1.3, False, False, "is 1.29999; --fail-below asks for at least 1.3"),
        (figures(None, None, None, not_comparable="different prompt"), 1.3, False, False, "(different prompt)"),
    ],
)  # fmt: skip
def test_the_figure_decides_and_a_range_with_the_bound_is_said(mine, bound, met, doubtful, words):
    (found,) = above_bounds({"methods": {"pearl": mine}}, {"pearl": bound})
    assert (found.met, found.doubtful, words in found.text) == (met, doubtful, True), found.text


# A baseline.


def result(**methods) -> dict:
    same = {"models": "m", "runtime": "virtual", "profile": "p", "prompts": 3, "conditions": {"prompt": "ab"}}
    return {**same, "methods": methods, "left_out": {}}


def missed(before: dict, after: dict, tolerance: float = 0.05) -> list[str]:
    found = above_baseline(result(pearl=after), result(pearl=before), tolerance)
    return [verdict.figure for verdict in found if not verdict.met]


@pytest.mark.parametrize(
    "name", ["speedup", "acceptance_rate", "acceptance_rate_tested", "tokens_per_target_forward"]
)
def test_a_ratio_that_falls_by_more_than_the_tolerance_is_missed(name: str):
    before = figures()
    assert missed(before, before) == []
    assert missed(before, {**before, name: before[name] * 0.96}) == []
    assert missed(before, {**before, name: before[name] * 0.94}) == [name]
    assert missed(before, {**before, name: before[name] * 0.94}, 0.1) == []
    assert missed(before, {**before, name: before[name] * 1.5}) == []
    assert missed(before, {**before, name: None}) == [name]


def test_absolute_times_are_not_compared_and_a_text_that_differs_or_a_lost_method_is_missed():
    assert missed(figures(tokens_per_second=100.0), figures(tokens_per_second=1.0)) == []
    assert missed(figures(), figures(equal_to_autoregressive=False)) == ["equal_to_autoregressive"]
    assert missed(figures(equal_to_autoregressive=False), figures(equal_to_autoregressive=False)) == []
    now = {**result(), "left_out": {"pearl": "it needs a drafter"}}
    (found,) = above_baseline(now, result(pearl=figures()), 0.05)
    assert (found.met, "it needs a drafter" in found.text) == (False, True)


@pytest.mark.parametrize(("runtime", "doubtful"), [("virtual", False), ("local-process", True)])
def test_the_same_prompts_leave_no_doubt_in_virtual_time(runtime: str, doubtful: bool):
    now = {**result(pearl=figures(1.5)), "runtime": runtime}
    found = above_baseline(now, result(pearl=figures(1.5)), 0.05)
    assert [verdict.doubtful for verdict in found if verdict.figure == "speedup"] == [doubtful]


def test_a_baseline_is_an_earlier_output_which_exists(capsys, db, compared, tmp_path):
    file = tmp_path / "baseline.json"
    file.write_text(compared)
    words = [*WORDS, *db, "--baseline", str(file)]
    code, _, err = call(capsys, *words)
    assert (code, err) == (0, "specscope: The answers have 24 tokens, and " + err.partition(", and ")[2])
    before = json.loads(compared)
    before["methods"]["pearl"]["speedup"] *= 1.2
    file.write_text(json.dumps(before))
    code, _, err = call(capsys, *words)
    assert (code, "\nspecscope: pearl: the speed-up over plain" in f"\n{err}") == (1, True)
    for more, message in (
        (["--seed", "7"], "was made with other sampling"),
        (["--tolerance", "1.5"], "tolerance is 1.5; it must be at least 0 and at most 1"),
        (["--baseline", "nowhere.json"], "cannot read nowhere.json"),
    ):
        code, _, err = call(capsys, *words, *more)
        assert (code, message in err.splitlines()[-1]) == (2, True), err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": "other"}, "was made with other models; make it again"),
        ({"profile": None, "prompts": 1}, "was made with other profile, prompts"),
        ({"conditions": {"prompt": "cd"}}, "was made with other prompt;"),
        ({"methods": {"autoregressive": figures(drafted=0)}}, "has none of the compared methods"),
    ],
)
def test_a_baseline_of_something_else_is_refused(changes, message):
    now = result(pearl=figures(), autoregressive=figures(drafted=0))
    with pytest.raises(UsageError, match=message):
        check_baseline(Path("b.json"), {**now, **changes}, now)


def test_methods_of_one_side_only_are_named():
    now, before = result(pearl=figures(), ssd=figures()), result(pearl=figures(), dsi=figures())
    assert check_baseline(Path("b"), before, now) == [
        "dsi is in the baseline only",
        "ssd is not in the baseline",
    ]
    assert check_baseline(Path("b"), {**now, "conditions": {}}, now) == [], "an older file has none"


STRANGE = ("", "[]", "null", "{}", '{"methods": []}', '{"methods": {"pearl": 3}}', "[" * 100_000)
SPEEDUPS = ('"fast"', "true", "-1", "1e999", "NaN")


@pytest.mark.parametrize(
    "content",
    [
        *STRANGE,
        *(json.dumps(result(pearl={})).replace("{}", f'{{"speedup": {value}}}', 1) for value in SPEEDUPS),
        json.dumps({**result(), "conditions": 3}),
    ],
    ids=lambda content: content[-60:],
)
def test_another_file_is_no_baseline(content: str, tmp_path):
    file = tmp_path / "b.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="is no output of `specscope compare --json`"):
        read_baseline(file)


def test_the_documents_example_for_ci_runs(capsys, db, tmp_path, monkeypatch):
    """Its first command writes the baseline of the second, whose line is the one shown."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^- run: specscope (.+)$", page, re.MULTILINE)
    made, _, name = first.partition(" > ")
    (tmp_path / name).write_text(json.dumps(answer(capsys, *shlex.split(made), *db)))
    code, _, err = call(capsys, *shlex.split(second), *db)
    shown = re.search(r"^    (specscope: pearl: .+)\n    (.+)$", page, re.MULTILINE)
    assert (code, err.strip()) == (0, f"{shown[1]} {shown[2]}")
    assert "With `pearl=1.6` the exit code is 1" in page
    assert 1.3 < float(re.search(r"is ([\d.]+)", shown[0])[1]) < 1.6
