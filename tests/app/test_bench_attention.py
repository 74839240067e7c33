"""The bench of attention over sequences of different lengths. Times are not tested."""

from __future__ import annotations

import json

import pytest
import torch

from app.bench import attention
from app.bench.cuda import Size
from engine.model.attention import attend
from tests.app.test_bench_cuda import run_bench

CASES = (attention.Case(3, 1), attention.Case(3, 4), attention.Case(3, 6, tree=True))
SIZE = Size("small", 2, 64, 128, 4, 2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few cached rows and a small model, without a GPU."""
    for name, value in (("SHORTEST", 5), ("LONGEST", 40), ("CASES", CASES), ("CPU", (SIZE, SIZE))):
        monkeypatch.setattr(attention, name, value)
    monkeypatch.setattr(attention.torch.cuda, "is_available", lambda: False)


def test_all_ways_have_one_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench("--attention", "--quick", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "not run on a GPU: small shapes on one CPU core"
    for case in CASES:
        for way in ("loop", "masked"):
            figure = result[f"attention_{way}_{case.name}"]
            assert figure["median"] > 0
            assert figure["largest_difference"] < 1e-4
        assert result["fastest"][case.name] in ("loop", "masked")


def test_the_fastest_way_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench("--attention", "--quick") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not run on a GPU")
    assert [line.split(":")[0] for line in lines[-3:]] == ["3x1", "3x4", "3x6_tree"]
    assert all(" is the fastest; " in line for line in lines[-3:])


def test_a_way_with_another_result_is_never_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    ragged = attention.Ragged(SIZE, CASES[1], torch.device("cpu"))
    monkeypatch.setattr(ragged, "masked", lambda: None)
    times = ragged.times(1)
    assert times["loop"].valid
    assert not times["masked"].valid


def variable_lengths(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, **more):
    """Stand in for `varlen_attn` of torch on the CPU: causal, aligned at the end."""
    assert (scale, window_size) == (1.0, (-1, 0))
    assert max_q == int(cu_seq_q.diff().max())
    assert max_k == int(more["seqused_k"].max())
    out, bounds = list[torch.Tensor](), cu_seq_q.tolist()
    for i, used in enumerate(more["seqused_k"].tolist()):
        q, first = query[bounds[i] : bounds[i + 1]], int(cu_seq_k[i])
        keys, values = (t[first : first + used].transpose(0, 1)[None] for t in (key, value))
        mask = torch.full((len(q), used), -torch.inf).triu(used - len(q) + 1)
        rows = attend(q.transpose(0, 1)[None], keys, values, mask, 0.0, grouped=more["enable_gqa"])
        out.append(rows[0].transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("case", CASES[:2])
def test_the_lengths_of_varlen_are_those_of_the_sequences(case: attention.Case) -> None:
    ragged = attention.Ragged(SIZE, case, torch.device("cpu"))
    way = attention.VariableLengths(ragged._cache, ragged._buffers, ragged._rows, variable_lengths)
    expected = ragged._output(ragged.loop)
    torch.testing.assert_close(ragged._output(way.run), expected, atol=1e-5, rtol=1e-5)
    assert expected.abs().max() > 0.1
