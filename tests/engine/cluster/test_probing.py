"""Drafts planned from measurements: the facts in a trace, the stored file, and real runs."""

import json
import threading
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster import measurements, probing
from specscope.engine.cluster.measurements import (
    measured_path,
    read_curve,
    read_probe,
    write_curve,
    write_probe,
)
from specscope.engine.cluster.probing import orders_of, probe_of, rates_of
from specscope.engine.drafting.pace import Probe
from specscope.engine.drafting.static import tree
from specscope.engine.trace.events import Decision, Header, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.engine.worker.jobs import Measure
from specscope.engine.worker.measuring import measure
from tests.engine.heads.random_heads import make_heads
from tests.engine.methods.head_runs import drifting
from tests.engine.methods.pairs import save_with_tokenizer

PROBE = Probe(
    verify=((1, 0.1), (2, 0.1)),
    first=((2, 0.01),),
    later=((1, 0.02),),
    outside=0.001,
    rates=((0.5, 0.25), (0.125,)),
    orders=((0.5,), (0.5, 0.25)),
    rounds=16,
)
QUIET = lambda: 0.0  # noqa: E731
"""No other program uses a core."""
PROMPT, LIMITS = [5, 9, 23, 4], Limits(16)


def draft(*nodes, step=1, position=4, q=None):
    """Return the rows of a draft of (parent, outcome) nodes."""
    levels, rows = {-1: -1}, list[Decision]()
    for node, (parent, outcome) in enumerate(nodes):
        levels[node] = levels[parent] + 1
        place = (step, 0, node, parent, position + levels[node], 7)
        rows.append(Decision(*place, None, q[node] if q else 0.5, None, "match", outcome, 1, 2))
    return rows


FIRST = draft((-1, "rejected"), (-1, "accepted"), (0, "discarded"), (1, "accepted"))
SECOND = draft((-1, "accepted"), (-1, "discarded"), (0, "rejected"), (0, "rejected"))


@pytest.mark.parametrize("prior", [0.0, probing.PRIOR])
def test_rates_and_orders_of_accepted_nodes(monkeypatch, prior):
    """A rate of few observations is drawn towards its rank over all levels."""
    monkeypatch.setattr(probing, "PRIOR", prior)
    # level 1: ranks 0 and 1 were accepted once each in two drafts; level 2 was reached in both:
    # rank 0 was accepted once in two, rank 1 was offered once and rejected
    rates = rates_of([FIRST, SECOND])
    assert rates[0][0] == rates[1][0] == pytest.approx((1 + prior * 0.5) / (2 + prior))
    if not prior:
        assert rates == ((0.5, 0.5), (0.5, 0.0))
    likely = draft((-1, "accepted"), (-1, "discarded"), (0, "accepted"), q=(0.6, 0.5, 0.5))
    other = draft((-1, "rejected"), (-1, "accepted"), (0, "discarded"), q=(0.6, 0.1, 0.9))
    # by probability of the path: 0, 1, 2 (0.6, 0.5, 0.3) and 0, 2, 1 (0.6, 0.54, 0.1)
    assert orders_of([likely, other]) == ((0.5, 0.5), (0.5, 0.0, 1.0))


def trace_of(*drafts):
    """Return a trace in which the draft of step s takes 10 s and 20 s, its verification 50 s."""
    limits, prompt = {"max_new_tokens": 9}, (("",), ((1, 2, 3, 4),))
    header = Header("id", "", "eagle", "EAGLE", {}, *prompt, {}, limits, "", "", (), "", "")
    trace, second = Trace(header), 1_000_000_000
    for step, nodes in enumerate(drafts, 1):
        start = 100 * step * second
        times = [("draft", 0, 10, 3), ("draft", 10, 30, 2), ("verify", 30, 80, 5), ("sample", 80, 81, 4)]
        for number, (kind, begun, ended, rows) in enumerate(times):
            work = (start + begun * second, start + ended * second)
            trace.add(Span(10 * step + number, "cpu", kind, *work, "", step, 0, rows, 9, "done"))
        for row in nodes:
            trace.add(replace(row, step=step))
        trace.add(Round(step, 0, "verify", len(nodes), 0, 1, start + 100 * second, 0))
    return trace


def test_a_trace_gives_the_times_of_drafting_by_forward():
    probe = probe_of(((1, 1.0),), [trace_of(FIRST, SECOND)])
    assert (probe.first, probe.later, probe.rounds) == (((2, 10.0),), ((2, 20.0),), 2)
    assert probe.outside == pytest.approx(100 - 80), "seconds of a round outside of its forwards"
    cut = draft((-1, "accepted"), position=4 + 8)  # by the end of the output: no shallow tree
    assert probe_of(((1, 1.0),), [trace_of(FIRST, cut)]).orders == orders_of([FIRST])
    assert probe_of(((1, 1.0),), [trace_of()]) is None, "nothing was drafted"


def test_a_stored_measurement_is_read_again_and_a_broken_one_is_not(tmp_path):
    path = tmp_path / "new" / "probe.json"
    assert read_probe(path, QUIET) is None
    write_probe(path, PROBE)
    assert read_probe(path, QUIET) == PROBE
    whole = path.read_text()
    wrong = ({"verify": [[1, "a"]]}, {"verify": [[1, float("nan")]]}, {"rates": []})
    others = [json.dumps({**json.loads(whole), **part}) for part in wrong]
    for broken in ("", "[]", '{"verify": 3}', "nonsense", whole[:-20], *others):
        path.write_text(broken)
        assert read_probe(path, QUIET) is None, broken
    path = tmp_path / "more" / "curve.json"
    assert read_curve(path, QUIET) == ((), 0.0)
    write_curve(path, PROBE.verify, 0.25)
    assert read_curve(path, QUIET) == (PROBE.verify, 0.25)
    rows = ("3", "[[1]]", '[[1, "a"]]', "[[1, NaN]]", "[[1, 0]]")
    for broken in ("", "{}", "[[1, 1]]", *(f'{{"verify": {row}, "others": 0}}' for row in rows)):
        path.write_text(broken)
        assert read_curve(path, QUIET) == ((), 0.0), broken


@pytest.mark.parametrize(("then", "now", "serves"), [(0.2, 0.0, True), (1.0, 0.0, False), (1.0, 1.0, True)])
def test_a_disturbed_measurement_serves_as_long_as_other_programs_go_on(tmp_path, then, now, serves):
    probe = replace(PROBE, others=then)
    write_probe(tmp_path / "probe.json", probe)
    write_curve(tmp_path / "curve.json", PROBE.verify, then)
    assert read_probe(tmp_path / "probe.json", lambda: now) == (probe if serves else None)
    assert read_curve(tmp_path / "curve.json", lambda: now)[0] == (PROBE.verify if serves else ())


def test_the_file_depends_on_models_method_and_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("a")
    path = measured_path({"method": "eagle"}, [model])
    assert path == measured_path({"method": "eagle"}, [model])
    assert path.is_relative_to(tmp_path / "cache")
    assert path != measured_path({"method": "hydra"}, [model])
    (model / "weights").write_text("ab")
    assert path != measured_path({"method": "eagle"}, [model])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny target that is its own drafter, with random heads."""
    folder = tmp_path_factory.mktemp("planned")
    save_with_tokenizer(drifting("llama"), folder / "target")
    heads = make_heads(folder / "heads", folder / "target", scale=0.5)
    return replace(Pair.of(folder / "target", folder / "target"), heads_path=heads)


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Measure a few rounds and store them in a folder of the test."""
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    for name, value in (("BUDGET_S", 0.0), ("FEWEST", 16), ("VERIFY_S", 0.0)):
        monkeypatch.setattr(probing, name, value)


def opened(pair, **more):
    return specscope.open(pair, runtime="local-thread", device="cpu", **more)


@pytest.fixture
def cluster(pair, quick):
    with opened(pair, plans=True) as cluster:
        yield cluster


def planned(cluster, method, **config):
    return cluster.run(method, PROMPT, config=config, limits=LIMITS)


@pytest.mark.parametrize("method", ["eagle", "eagle2", "parallelspec_eagle", "pearl", "speculative"])
def test_a_planned_run_writes_the_greedy_text_and_is_repeated_by_its_config(method, cluster):
    expected = planned(cluster, "autoregressive").token_ids()
    trace = planned(cluster, method)
    header, plan = trace.header, trace.header.environment["planned"]
    assert trace.token_ids() == expected
    assert plan["nodes"] >= plan["levels"] >= 1
    if "tree" in header.config:
        assert len(tree(header.config["tree"]).paths) == plan["nodes"]
    again = planned(cluster, method, **header.config)
    assert again.header.config == header.config
    assert "planned" not in again.header.environment, "an explicit draft is not a prediction's"
    assert [(r.drafted, r.accepted) for r in again.rounds] == [(r.drafted, r.accepted) for r in trace.rounds]


@pytest.mark.parametrize(
    ("method", "setting", "count"), [("medusa", "heads", 2), ("parallelspec_medusa", "masks", 1)]
)
def test_a_planned_tree_of_several_levels_sets_the_heads_that_draft(
    method, setting, count, cluster, monkeypatch
):
    likely = replace(PROBE, verify=((1, 0.1), (5, 0.1)), later=(), rates=((0.9, 0.5), (0.8,)))
    monkeypatch.setattr(measurements, "measure_probe", lambda *_: likely)
    trace = planned(cluster, method)
    config = trace.header.config
    assert (config["tree"], config[setting]) == ("[[0],[1],[0,0],[1,0]]", count)
    assert trace.header.environment["planned"]["nodes"] == max(r.drafted for r in trace.rounds) == 4
    assert trace.token_ids() == planned(cluster, "autoregressive").token_ids()


def test_the_targets_rows_are_timed_once_for_all_methods_and_never_cost_less_than_fewer(cluster, monkeypatch):
    noisy, seen, measured = cycle([0.2, 0.1, 0.3]), list[object](), list[object]()
    monkeypatch.setattr("specscope.engine.worker.measuring.seconds_of", lambda *_: next(noisy))
    monkeypatch.setattr(probing, "VERIFY_S", 60.0)
    monkeypatch.setattr(measurements, "ROWS", (1, 2, 4))
    curve = probing.measure_rows(cluster.placement, threading.Event(), "target", (1, 2, 4))
    assert curve == ((1, 0.2), (2, 0.2), (4, 0.3))
    monkeypatch.setattr(measurements, "measure_rows", lambda *_: measured.append(1) or curve)
    monkeypatch.setattr(measurements, "measure_probe", lambda verify, *_: seen.append(verify) or PROBE)
    for method in ("eagle", "speculative", "pearl"):
        planned(cluster, method)
    assert (seen, measured) == ([curve] * 3, [1])


def test_a_measurement_is_made_once_and_serves_later_clusters(cluster, pair, monkeypatch):
    def draft(opened):
        plan = planned(opened, "hydra").header.environment["planned"]
        return [plan[fact] for fact in ("nodes", "levels", "tokens_per_forward")]

    first = draft(cluster)
    monkeypatch.setattr(measurements, "measure_probe", Mock(side_effect=AssertionError("measured again")))
    assert draft(cluster) == first
    with opened(pair, plans=True) as other:
        assert draft(other) == first
        with pytest.raises(AssertionError, match="measured again"):
            planned(other, "hydra", heads=1)


def test_a_method_measured_beside_other_programs_is_measured_again_on_a_quiet_machine(cluster, monkeypatch):
    used, measured = [1.5], list[str]()
    programs = SimpleNamespace(cores=lambda: used[0], row=lambda time: None)
    monkeypatch.setattr(measurements, "other_programs", lambda workers: programs)
    monkeypatch.setattr(measurements, "LOOK_S", 0.0)
    for cores, facts in ((1.5, {"others": 1.5}), (1.5, {"others": 1.5}), (0.0, {}), (1.5, {})):
        used[0] = cores
        run = cluster.run("hydra", PROMPT, limits=LIMITS, measuring=lambda: measured.append("x"))
        plan = run.header.environment["planned"]
        assert {name: plan[name] for name in ("others",) if name in plan} == facts
    assert len(measured) == 2, "once beside other programs, once without"


def test_stop_during_the_measurement_ends_the_run_and_stores_nothing(cluster, tmp_path):
    cancel, measured = threading.Event(), list[str]()
    cancel.set()
    more = {"cancel": cancel, "measuring": lambda: measured.append("eagle")}
    trace = cluster.run("eagle", PROMPT, limits=LIMITS, **more)
    assert (trace.status, measured) == ("cancelled", ["eagle"])
    assert "planned" not in trace.header.environment
    assert not list(tmp_path.rglob("*.json"))
    assert planned(cluster, "eagle").status == "done"


def test_toys_and_virtual_clusters_use_the_papers_values(pair, monkeypatch):
    monkeypatch.setattr(measurements, "measure_probe", None)
    eagle2 = {"top": 10, "depth": 6, "total": 59}
    papers = {"eagle": {"tree": "eagle"}, "eagle2": eagle2, "speculative": {"gamma": 5}}
    with opened(pair) as toy:
        for method, values in papers.items():
            trace = toy.run(method, PROMPT, limits=Limits(2))
            assert values.items() <= trace.header.config.items()
            assert "planned" not in trace.header.environment
    with specscope.open(profile="8xA100", runtime="virtual") as virtual:
        assert virtual.run("speculative", "Hi", limits=Limits(2)).header.config["gamma"] == 5


def test_a_method_without_a_drafter_is_refused_before_anything_is_measured(pair, quick, monkeypatch):
    monkeypatch.setattr(measurements, "measure_probe", None)
    with opened(replace(pair, drafter_path=None), plans=True) as cluster:
        with pytest.raises(specscope.UsageError, match="needs a drafter"):
            planned(cluster, "speculative")
        with pytest.raises(specscope.UsageError, match="prompt is empty"):
            cluster.run("eagle", "")


def test_forwards_of_several_numbers_of_rows_are_timed_in_turn(pair):
    model = load(pair.target_path)
    job = Measure("target", context=8, repeats=3, rows=(1, 2, 4))

    def timed(job, stopped=False):
        return measure(model, job, lambda: stopped)

    seconds = timed(job)
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert len(timed(job, stopped=True)) == 1, "it is stopped"
    assert len(timed(replace(job, seconds=-1.0))) == 1, "it is out of time"
    beyond = (1, model.context - 2, 10 * model.context)
    assert len(timed(replace(job, context=10_000, repeats=1, rows=beyond))) == 2
