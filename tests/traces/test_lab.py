"""Sweeps: axes, cells with spread, traces behind them, passes, stops, refusals, papers' points."""

from __future__ import annotations

import re
import threading
import tomllib

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import Profile
from specscope.traces.facts.closed_forms import rate_of_share, speculative_speedup
from specscope.traces.facts.comparable import comparisons
from specscope.traces.lab.axes import (
    ACCEPTANCE,
    DRAFTER,
    Axis,
    axis,
    can_be_scripted,
    names_of,
    sweepable,
)
from specscope.traces.lab.points import FILE, points_of
from specscope.traces.lab.sweep import ScriptedRunner, Sweep, SweepCell, SweepRun, best, sweep
from tests.traces.samples import sample_trace, with_header

PROFILE = "pearl-4xA100"


def plan(field: str = "gamma", values=(1, 4), rates=(0.5, 1.0), **more) -> Sweep:
    settings = {"method": "speculative", "columns": Axis(field, values), "rows": Axis(ACCEPTANCE, rates)}
    return Sweep(**{**settings, **more})


def asking(asked: list[SweepRun]):
    """Return a runner that notes its jobs and decodes nothing."""

    def run(job: SweepRun):
        asked.append(job)
        return sample_trace("autoregressive")

    return run


def test_every_value_and_rate_is_a_cell_with_a_spread_and_a_trace():
    cells = list(sweep(plan(), ScriptedRunner(PROFILE, tokens=16)))
    assert [(cell.row, cell.column) for cell in cells] == [(0.5, 1), (0.5, 4), (1.0, 1), (1.0, 4)]
    for cell in cells:
        assert len(cell.speedups) == 2
        assert cell.low <= cell.mean <= cell.high
        ((run, plain),) = cell.traces
        assert run.header.config["gamma"] == cell.column
        assert [c.baseline for c in comparisons([[run], [plain]])] == [1, 1]
        assert run.token_ids() == plain.token_ids()
        assert cell.clock == "virtual · pearl-4xA100 · llama-2-7-70"
    sure = cells[-1]
    assert sure.high == pytest.approx(sure.low)
    assert sure.spread == "±0.00"
    assert sure.mean > cells[2].mean > 1  # gamma 4 beats gamma 1 where every draft is right
    assert sure.mean < speculative_speedup(1.0, 4, 100)


def test_a_stop_ends_the_sweep_without_the_cell_of_a_run_in_progress():
    stop, ran = threading.Event(), list[SweepRun]()

    def run(job: SweepRun):
        if len(ran) == 3:
            stop.set()
        return asking(ran)(job)

    cells = list(sweep(plan(rates=(0.5,), samples=1, values=(1, 2, 3)), run, stop))
    assert [cell.column for cell in cells] == [1, 2]
    assert len(ran) == 4  # plain decoding once, and three values


def test_a_value_that_the_method_refuses_is_a_cell_with_the_reason():
    refused = plan("lookahead", (1,), (0.5,), method="dsi")
    (cell,) = sweep(refused, ScriptedRunner(PROFILE, tokens=4))
    assert "lookahead is 1; with" in cell.error
    assert cell.speedups == ()


def measured(drafters: Axis | None = None, **more) -> Sweep:
    return plan(rows=drafters, measured=True, samples=1, **more)


def test_every_drafter_is_a_row_with_plain_decoding_of_its_own():
    asked = list[SweepRun]()
    drafters = axis(METHODS["speculative"], DRAFTER, "int4, usual,int4, /models/small")
    assert drafters.values == ("int4", "usual", "/models/small")
    cells = list(sweep(measured(drafters=drafters), asking(asked)))
    assert [(cell.row, cell.column) for cell in cells] == [(d, g) for d in drafters.values for g in (1, 4)]
    assert [job.drafter for job in asked] == [d for d in drafters.values for _ in range(4)]
    assert [job.method for job in asked[:2]] == ["autoregressive", "speculative"]
    assert len({job.group for job in asked}) == 3
    assert all("drafter" not in job.config for job in asked)


def test_passes_of_a_measured_sweep_alternate_and_every_cell_has_its_own_baseline():
    asked = list[SweepRun]()
    (first, _) = sweep(measured(passes=3), asking(asked))
    one = ["autoregressive", "speculative", "speculative", "autoregressive", "autoregressive", "speculative"]
    assert [job.method for job in asked] == one * 2
    assert ([len(passes) for passes in first.speedups], len(first.traces)) == ([3], 3)


EMS = [{"batch": 2, "base": "plain"}, {"batch": 2}, {"batch": 4, "base": "plain"}, {"batch": 4}]
GREEDY = {"drafts": "greedy"}
TREE = [{}, *({**GREEDY, "width": width, "depth": 4} for width in (2, 3))]


@pytest.mark.parametrize(
    ("asks", "configs"),
    [
        (Sweep("tree", Axis("width", (2, 3)), Axis("depth", (4,)), config=GREEDY, samples=1), TREE),
        (Sweep("ems", Axis("batch", (2, 4)), samples=1), EMS),  # compared with the same batch
    ],
    ids=["two axes", "a batch"],
)
def test_two_settings_can_be_the_axes_and_a_batch_has_its_own_plain_one(asks, configs):
    asked = list[SweepRun]()
    list(sweep(asks, asking(asked)))
    assert [job.config for job in asked] == configs


def test_runs_of_different_clocks_are_never_compared():
    def run(job: SweepRun):
        trace = sample_trace("autoregressive")
        fast = job.method == "speculative"
        return with_header(trace, runtime="local-process", profile="") if fast else trace

    cells = list(sweep(measured(), run))
    assert [cell.speedups for cell in cells] == [(), ()]
    assert "different clock" in cells[0].error


def test_the_spread_is_half_of_the_range_and_the_range_of_passes():
    seeds, passes = (
        SweepCell(0.5, 1, ((1.2,), (1.4,)), ()),
        SweepCell(None, 1, ((1.2, 1.5, 1.4), (2.0, 2.0, 2.6)), ()),
    )
    assert SweepCell(0.5, 1, ((1.2,),), ()).spread == "1 run"
    assert (seeds.mean, seeds.spread) == (pytest.approx(1.3), "±0.10")
    assert (passes.mean, passes.spread) == (pytest.approx((1.4 + 2.0) / 2), "1.20 to 2.60")


def test_no_measured_cell_is_the_best_within_the_spread():
    def cell(*passes: float) -> SweepCell:
        return SweepCell(None, 1, (passes,), ())

    slow, near, fast = cell(1.0, 1.1), cell(1.1, 1.3), cell(1.2, 1.4)
    assert best([slow, near, fast], measured=True) is None
    assert best([slow, fast], measured=True) is fast
    assert best([slow, cell(1.9)], measured=True) is None, "one pass has no spread"
    assert best([slow, near, fast], measured=False) is fast
    assert best([SweepCell(None, 1, (), (), "refused")], measured=False) is None


MANY = {"values": tuple(range(1, 33)), "rates": tuple(i / 10 for i in range(10))}
INT4 = {"rows": Axis(DRAFTER, ("int4",))}
WRONG = [
    ({"method": "tree"}, "tree has no sweep over 'gamma'; it has width, depth"),
    ({"method": "autoregressive"}, "autoregressive has no sweep over 'gamma'; choose one of"),
    ({"field": "width"}, "speculative has no sweep over 'width'"),
    ({"field": "drafts", "method": "easyspec"}, "easyspec has no sweep over 'drafts'"),
    ({"values": ()}, "gamma has no values"),
    ({"rates": ()}, "acceptance_rate has no values"),
    ({"values": (99,)}, "gamma is 99; it must be a whole|gamma is 99; it must be at"),
    ({"rates": (1.5,)}, r"acceptance rate is 1\.5"),
    ({"rows": Axis("gamma", (1,))}, "gamma is on both axes"),
    ({"config": {"gamma": 2}}, "gamma is an axis of the sweep and a setting"),
    ({"measured": True}, "have no models to measure"),
    ({"passes": 2}, "passes is 2"),
    (MANY, "number of cells is 320"),
    (INT4, "the same for every drafter; measure"),
    (
        {"field": "copy", "values": (4,), "method": "llma", "measured": True, **INT4},
        "no sweep over 'drafter'",
    ),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_sweeps_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        next(sweep(plan(**settings), ScriptedRunner(PROFILE)))


@pytest.mark.parametrize(
    ("runner", "seeds", "message"),
    [
        (ScriptedRunner(PROFILE, tokens=0), 1, "tokens is 0"),
        (ScriptedRunner(PROFILE), 9, "seeds is 9"),
        (ScriptedRunner("none"), 1, "there is no profile 'none'"),
        (ScriptedRunner(PROFILE, "none"), 1, "has no pair 'none'"),
    ],
)
def test_wrong_scripts_are_refused(runner, seeds, message):
    with pytest.raises(UsageError, match=message):
        runner.check(seeds)


def test_every_numeric_field_is_an_axis_and_only_chains_are_scripted():
    for method in METHODS.values():
        fields = {s.name for s in method.settings() if s.type in (int, float)}
        assert set(names_of(method)) - {ACCEPTANCE, DRAFTER} == fields
        assert (DRAFTER in names_of(method)) == method.layout(method.Config()).needs_drafter
        assert (method.key in sweepable()) == bool(fields)
    scripted = [
        can_be_scripted(METHODS[key]) for key in ("speculative", "pearl", "dflash", "eagle", "llma", "tree")
    ]
    assert scripted == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("method", "field", "text", "values"),
    [
        ("speculative", "gamma", "1-3, 8,2", (1, 2, 3, 8)),
        ("speculative", "gamma", "1:3,8", (1, 2, 3, 8)),
        ("speculative", "gamma", "1:8:3,9", (1, 4, 7, 9)),
        ("speculative", ACCEPTANCE, "0.5, 1,0.5", (0.5, 1.0)),
        ("speculative", ACCEPTANCE, "0.5:0.9:0.2", (0.5, 0.7, 0.9)),
        ("medusa", "epsilon", "0.1, 0.25", (0.1, 0.25)),
        ("medusa", "epsilon", "0.1:0.4:0.1,0.9", (0.1, 0.2, 0.3, 0.4, 0.9)),
        ("medusa", "epsilon", "1e-2:3e-2:1e-2", (0.01, 0.02, 0.03)),
    ],
)
def test_values_are_lists_and_ranges(method, field, text, values):
    assert axis(METHODS[method], field, text).values == values


WHOLE = "gamma must be a whole number of at least 1"


@pytest.mark.parametrize(
    ("method", "field", "text", "message"),
    [
        ("speculative", "gamma", "8:1", f"the range '8:1' of gamma does not rise; {WHOLE}"),
        ("speculative", "gamma", "1:8:-1", "'1:8:-1' is no whole number or range"),
        ("speculative", "gamma", "1:8:0", f"does not rise; {WHOLE} and at most 32"),
        ("speculative", "gamma", "1:2:3:4", "a range has its step"),
        ("speculative", "gamma", "1:999", "gamma is 999; it must be at least 1 and at most 32"),
        *(("speculative", "gamma", text, "is no whole number or range") for text in ("a", "3-", "1.5")),
        *(("speculative", "gamma", text, "gamma") for text in ("9-3", "1-999", "99", "")),
        (
            "speculative",
            ACCEPTANCE,
            "0.5:0.9",
            "0.1, 0.5 or 0.1:0.5:0.1: a range has its step",
        ),
        ("speculative", ACCEPTANCE, "0:1:0.001", "'0:1:0.001' has more than 60 values; give a longer step"),
        ("speculative", ACCEPTANCE, "half", "'half' is no number or range"),
        ("pearl", DRAFTER, " , ", "no values; write for example int4, int8"),
        ("medusa", "epsilon", "0.4:0.1:0.1", "epsilon does not rise; epsilon must be a number of at least 0"),
        ("medusa", "epsilon", "0.1:0.4:nan", "does not rise"),
        ("medusa", "epsilon", "nan:1:0.1", "epsilon is nan; it must be at least 0"),
    ],
)
def test_other_values_are_refused(method, field, text, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        axis(METHODS[method], field, text)


def test_points_belong_to_existing_methods_fields_and_pairs():
    for series in tomllib.loads(FILE.read_text())["series"]:
        assert series["pair"] in Profile.load(series["profile"]).pairs
        for row in series["points"]:
            if "value" in row:
                METHODS[series["method"]].configure({series["field"]: row["value"]})
            assert "value" in row or "rate" in row
            assert len({"speed", "seconds", "over"} & set(row)) == 1


@pytest.mark.parametrize(
    ("method", "pair", "profile", "speedup"),
    [
        ("pearl", "codellama-7-34", "pearl-3xA100", 2.48),
        ("pearl", "codellama-7-70", PROFILE, 4.43),
        ("pearl", "llama-2-7-70", PROFILE, 3.29),
        ("speculative", "deepseek-6.7-33", "pearl-3xA100", 1.94),
    ],
)
def test_the_best_published_points_are_the_papers_speedups(method, pair, profile, speedup):
    """Table 1 of PEARL has the same speed-ups as its tables by gamma."""
    points = points_of(plan(method=method), profile, pair)
    found = max(p.speedup for p in points if p.speedup and p.source.startswith("PEARL"))
    assert found == pytest.approx(speedup, abs=0.005)


def test_points_say_their_source_and_what_the_paper_does_not_print():
    easy, *_ = points_of(plan(), "8xA100", "llama-3-8-70-tp8")
    assert (easy.value, round(easy.rate or 0, 3), easy.speedup) == (5, 0.818, pytest.approx(7.57 / 5.67))
    assert easy.rate == rate_of_share(0.57, 5)
    for words in ("EasySpec (2025), Table 2", "gamma follows from the drafting times"):
        assert words in easy.label
    pearl = points_of(plan(method="pearl"), PROFILE, "")
    assert [p.value for p in pearl] == [3, 4, 5, 6, 7]
    assert all("acceptance not printed" in p.label for p in pearl)
    (dsi,) = points_of(plan("lookahead", method="dsi"), "8xA100", "vicuna-13b-cnndm")
    assert (dsi.value, dsi.rate, dsi.speedup) == (None, 0.63, None)
    assert "1.47 times speculative decoding, lookahead not printed" in dsi.label
    models = plan("lookahead", method="dsi", rows=None)  # they have an acceptance of their own
    for given in ((plan(), "mine.toml", None), (plan(), None, None), (models, "8xA100", "vicuna-13b-cnndm")):
        assert points_of(*given) == []
