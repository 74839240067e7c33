"""`specscope runs`, `diff`, `--version` and `completion`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from specscope.app.cli import COMMANDS
from specscope.traces.store import Store
from tests.app.commands import VIRTUAL, answer, call
from tests.traces.samples import sample_trace

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("shared_clusters")
def test_runs_have_ids_models_methods_speed_ups_and_times(capsys, db):
    words = ["--prompt", "Tell me a story.", *VIRTUAL, *db]
    compared = json.loads(call(capsys, "compare", "--methods", "speculative,llma", *words, "--json")[1])
    alone = json.loads(call(capsys, "run", "--method", "speculative", *words, "--json")[1])
    code, out, _ = call(capsys, "runs", *db, "--json")
    result = json.loads(out)
    assert (code, result["total"]) == (0, 4)
    rows = {row["run_id"]: row for row in result["runs"]}
    assert result["runs"][0]["run_id"] == alone["run_id"], "newest first"
    assert (result["runs"][0]["speedup"], result["runs"][0]["prompt"]) == (None, "Tell me a story.")
    for key, figures in compared["methods"].items():
        row = rows[figures["runs"][0]]
        assert (row["method"], row["models"], row["clock"]) == (key, "bundled", compared["clock"])
        assert row["speedup"] == pytest.approx(figures["speedup"])
        assert row["created"][:2] == "20"
    code, out, _ = call(capsys, "runs", compared["methods"]["speculative"]["runs"][0], *db)
    _, line, count = out.splitlines()
    cells = line.split()
    assert (code, cells[0], cells[3], cells[4]) == (
        0,
        compared["methods"]["speculative"]["runs"][0],
        "speculative",
        "8",
    )
    assert cells[6] == f"{compared['methods']['speculative']['speedup']:.2f}×"
    assert line.endswith(f"bundled · {compared['clock']}")
    assert count == "1 of 1 runs"
    assert call(capsys, "runs", "--limit", "2", *db)[1].splitlines()[-1] == "2 of 4 runs"


def test_the_version_is_the_packages(capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert call(capsys, "--version")[:2] == (0, f"specscope {version}\n")


def test_bash_completes_commands_and_options(capsys, tmp_path):
    file = tmp_path / "specscope.bash"
    file.write_text(call(capsys, "completion", "bash")[1], encoding="utf-8")
    script = f"""source {file}
        COMP_WORDS=(specscope ''); COMP_CWORD=1; _shtab_specscope; echo ${{COMPREPLY[@]}}
        COMP_WORDS=(specscope run --pro); COMP_CWORD=2; _shtab_specscope; echo ${{COMPREPLY[@]}}"""
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    commands, options = shell.stdout.splitlines()
    assert set(COMMANDS) <= set(commands.split())
    assert set(options.split()) == {"--prompt", "--prompt-file", "--profile", "--profile-pair"}
    assert call(capsys, "completion", "zsh")[1].startswith("#compdef specscope\n")


def test_fish_completes_commands_and_options(capsys, tmp_path):
    """The script has every command and option; where fish is installed, fish completes with it."""
    script = call(capsys, "completion", "fish")[1]
    assert "complete -c specscope" in script
    for command in COMMANDS:
        assert re.search(rf"-a '?{command}\b", script), command
    for option in ("profile-pair", "max-new-tokens", "drafter-tp"):
        assert re.search(rf"-l '?{option}\b", script), option
    if shutil.which("fish") is None:
        return
    file = tmp_path / "specscope.fish"
    file.write_text(script, encoding="utf-8")
    (tmp_path / "prompts.jsonl").touch()
    asked = {
        "specscope ": set(COMMANDS),
        "specscope run --prompt-file prom": {"prompts.jsonl"},
        "specscope plan --target prom": {"prompts.jsonl"},
        "specscope run --pro": {"--prompt", "--prompt-file", "--profile", "--profile-pair"},
        "specscope completion ": {"bash", "zsh", "fish"},
        "specscope --pro": set(),
    }
    lines = [f"source {file}", *(f'complete -C "{line}"; echo --' for line in asked)]
    shell = subprocess.run(
        ["fish", "--no-config", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
    )
    answers = shell.stdout.split("--\n")
    for words, text in zip(asked.values(), answers, strict=False):
        found = {line.split("\t")[0] for line in text.splitlines()}
        assert words <= found if len(words) > 5 else found == words, (words, text)


@pytest.fixture
def stored(db: list[str]) -> list[str]:
    """Return the option for a database with two runs."""
    with Store(Path(db[1])) as store:
        store.insert(sample_trace("speculative", tokens=24), sample_trace("pearl", tokens=24))
    return db


def test_json_sums_the_changes_of_each_device_and_the_text_names_runs_and_the_first_differing_token(
    capsys, stored
):
    found = answer(capsys, "diff", "sample-speculative", "sample-pearl", "--json", *stored)
    assert found["runs"] == ["sample-speculative", "sample-pearl"]
    assert [w["role"] for w in found["waterfalls"]] == ["target", "drafter"]
    for waterfall in found["waterfalls"]:
        assert sum(step["change_ns"] for step in waterfall["steps"]) == found["difference_ns"]
    code, out, _ = call(capsys, "diff", "sample-speculative", "sample-pearl", *stored)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("sample-speculative: Speculative decoding · sample · virtual · sample-2xGPU")
    assert "sum" in {line.split()[0] for line in lines if line}
    assert any(line.startswith(("first differing token", "no token is known")) for line in lines)
