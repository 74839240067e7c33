"""The bench of a target's drafters. Times are not tested."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from specscope.app.bench import drafters
from specscope.app.bench.drafters import (
    Agreement,
    Answer,
    Size,
    Times,
    agreement,
    answers,
    drafters_of,
    load_noisy,
    with_noise,
)
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.planner import LONGEST
from specscope.engine.model.slots import Rows
from specscope.engine.training.measure import LoadedPair
from specscope.engine.types import Sampling
from specscope.traces.closed_forms import pearl_speedup, speculative_speedup
from tests.app.commands import run_bench

PROMPTS = ("Tell me a story about a whale.", "Hi!", "Why is the sky blue?")


@pytest.fixture(scope="module")
def loaded() -> LoadedPair:
    return LoadedPair.load(Pair.find())


def test_answers_of_a_batch_are_those_of_one_prompt_at_a_time(loaded):
    prompts = [loaded.pair.encode(text) for text in PROMPTS]
    written = answers(loaded.target, loaded.pair, prompts, 40)
    alone = [loaded.write(prompt, 40, Sampling())[0] for prompt in prompts]
    assert [answer.ids for answer in written] == alone
    assert len({len(ids) for ids in alone}) > 1, "some answers end before the others"


def test_a_target_agrees_with_itself_and_less_with_its_drafter_as_defined(loaded):
    prompts = [loaded.pair.encode(text) for text in PROMPTS]
    written = answers(loaded.target, loaded.pair, prompts, 24)
    same = agreement(loaded.target, loaded.target, loaded.pair, written)
    assert same == (1, pytest.approx(1, abs=1e-5), sum(len(answer.ids) for answer in written))
    other = agreement(loaded.target, loaded.drafter, loaded.pair, written)
    assert 0.3 < other.agreement < 0.95
    assert 0.3 < other.overlap < 0.95
    prompt, ids = loaded.pair.encode("Hi!"), loaded.pair.encode_text("Hello, how are you?")
    found = agreement(loaded.target, loaded.drafter, loaded.pair, [Answer(prompt, ids)])
    p, q = (
        loaded.read(model, [*prompt, *ids])[len(prompt) - 1 : -1].softmax(1)
        for model in (loaded.target, loaded.drafter)
    )
    assert found.agreement == pytest.approx((q.argmax(1) == torch.tensor(ids)).float().mean().item())
    assert found.overlap == pytest.approx(torch.minimum(p, q).sum(1).mean().item(), abs=1e-5)


def test_noise_is_at_most_half_a_step_and_changes_layers_only(loaded):
    matrix = torch.randn(4, 64)
    noisy = with_noise(matrix, "a")
    groups = matrix.unflatten(1, (2, 32))
    half = (groups.amax(2) - groups.amin(2)) / 30
    moved = (noisy - matrix).abs().unflatten(1, (2, 32)).amax(2)
    assert (moved <= half + 1e-6).all()
    assert (moved > 0.5 * half).all()
    assert torch.equal(noisy, with_noise(matrix, "a"))
    assert not torch.equal(noisy, with_noise(matrix, "b"))
    odd = torch.randn(4, 48)
    assert with_noise(odd, "a") is odd
    noisy = load_noisy(loaded.pair.target_path)
    assert torch.equal(noisy.embedding, loaded.target.embedding)
    rows, want = Rows.chain(0, [5, 6, 7], 0), np.array([2])
    one, other = (model.forward(model.new_cache(1, 3), rows, want).logits for model in (noisy, loaded.target))
    assert 0 < (one - other).abs().max() < 20


@pytest.mark.parametrize(("rate", "c"), [(0.5, 3.0), (0.8, 5.0), (0.95, 2.0)])
def test_with_free_rows_the_predictions_are_the_closed_forms(rate, c):
    """Forwards of one to sixteen rows take the same time, as the closed forms assume."""
    verify, target, drafter = ((1, 0.2), (32, 0.2)), Times(90, 100), Times(1, 100 / c)
    speculative, pearl = drafters._plans(verify, target, drafter, Agreement(rate, rate, 1))
    gammas = range(1, LONGEST + 1)
    assert speculative.speedup == pytest.approx(max(speculative_speedup(rate, g, c) for g in gammas))
    assert pearl.speedup == pytest.approx(max(pearl_speedup(rate, g, c) for g in gammas))


def test_a_pairs_own_drafter_is_listed_after_the_forms_of_its_target(tmp_path):
    pair = Pair.find()
    target = pair.target_path
    assert drafters_of(pair) == {
        "int8": target / "int8",
        "int4": target / "int4",
        "drafter": pair.drafter_path,
    }
    forms = Pair.of(target, "int4", pair.drafter_path / "int8")
    assert list(drafters_of(forms)) == ["int8", "int4", "drafter/int8"]


def test_the_command_measures_each_drafter(capsys, monkeypatch):
    monkeypatch.setattr(drafters, "QUICK", Size(6, 2))
    assert run_bench("--drafters", "--quick", "--json", "--noise", "--limit", "2") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["pair"], result["prompts"], result["quick"]) == ("bundled", 2, True)
    rows = {(row["drafter"], row["noise"]): row for row in result["drafters"]}
    assert list(rows) == [
        ("int8", False),
        ("int4", False),
        ("drafter", False),
        ("int8", True),
        ("int4", True),
    ]
    for row in rows.values():
        assert 0 < row["bytes"] < result["target_bytes"]
        assert 0 < row["ms_min"] <= row["ms_median"]
        assert row["c"] == pytest.approx(row["target_ms_median"] / row["ms_median"])
        assert row["positions"] <= 12
        assert row["speculative"]["speedup"] > 0
    assert rows["int8", False]["agreement"] >= rows["drafter", False]["agreement"]


def test_the_table_has_a_line_for_each_drafter(capsys, monkeypatch):
    monkeypatch.setattr(drafters, "QUICK", Size(4, 2))
    assert run_bench("--drafters", "--quick", "--limit", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bundled · fp32 target of ")
    assert [line.split()[0] for line in lines[2:]] == ["drafter", "int8", "int4", "drafter"]
