"""The bench of forwards over the time of reading the weights. Times are not tested."""

from __future__ import annotations

import argparse
import json

from app.bench import cuda
from app.cli import bench


def run_bench(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(argv))


def test_all_kinds_of_forwards_give_the_same_tokens(monkeypatch, capsys):
    sizes = (cuda.Size("large", 2, 64, 128, 4, 2), cuda.Size("small", 1, 64, 128, 4, 4))
    monkeypatch.setattr(cuda, "CPU", sizes)
    monkeypatch.setattr(cuda, "CACHED", 24)
    monkeypatch.setattr(cuda.torch.cuda, "is_available", lambda: False)
    assert run_bench("--cuda", "--quick", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "not run on a GPU: small shapes on one CPU core"
    assert result["bars"] == {}, "the bars are a GPU's"
    kinds = ("decode", "eager", "transformers")
    for key in (
        f"{kind}_over_floor{rows}_{size.name}"
        for kind in kinds
        for rows in ("", "_16_rows")
        for size in sizes
    ):
        assert result[key]["same_tokens"] == 1, key
        assert result[key]["median"] > 0
    assert result["colocated_gain"]["target"] == "large"
    for size in sizes:
        assert result[f"chain_gain_{size.name}"]["same_tokens"] == 1
    assert 0 < result["orchestration_toy"]["median"] < 1
    assert 0 < result["orchestration"]["median"] < 1
