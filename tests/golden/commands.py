"""What the commands print: JSON of runs in virtual time, and tables of text."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from specscope.app.main import main
from specscope.traces.database.store import Store
from tests.golden.runs import PROMPTS, recorded
from tests.golden.texts import Outputs, flat, without_ids
from tests.traces.samples import KINDS, sample_trace

VIRTUAL = "--pair bundled --profile 8xA100 --tokens bernoulli:0.8"
SWEEP = "gamma=1:3 --over acceptance_rate=0.5,0.9"
SHORT = "--tokens bernoulli:0.8 --max-new-tokens 24 --pair bundled"
COMMANDS = {
    "methods": "methods --json",
    "run": f"run --method speculative --prompt Hi {VIRTUAL} --db DB --json",
    "compare": f"compare --methods speculative,pearl,dsi --prompt Hi {VIRTUAL} --db DB --json",
    "sweep": f"sweep --method pearl --over {SWEEP} --profile pearl-3xA100 --max-new-tokens 32 --db DB --json",
    "load": f"load --methods speculative,ems --rate 4 --requests 6 --batch 1,4 --profile A100-40G {SHORT} --db DB --json",
    "policies": "load --methods speculative --policy by-batch,survival,minedraft --requests 6 --batch 2,4 "
    f"--profile pearl-4xA100 {SHORT} --db DB --json",
    "methods, table": "methods",
    "papers, table": "papers --paper parallelspec --rows",
    "run, table": f"run --method ems --prompt-file PROMPTS.jsonl --profile A100-40G {SHORT} --db DB",
    "compare, table": f"compare --methods speculative,tree --prompt-file PROMPTS.jsonl --profile 8xA100 {SHORT} --db DB",
    "sweep, table": f"sweep --method speculative --over {SWEEP} --seeds 1 --profile pearl-3xA100 "
    "--max-new-tokens 24 --db DB",
    "load, table": "load --methods speculative --rate 4 --requests 3 --batch 1,2 --profile A100-40G "
    f"{SHORT} --db DB",
    "runs, table": "runs --db SAMPLES",
    "runs, search": "runs pearl --limit 1 --db SAMPLES",
    "diff, table": "diff sample-speculative sample-pearl --db SAMPLES",
    "whatif, table": "whatif recorded --set gamma=2 --profile pearl-4xA100 --db SAMPLES",
    "whatif, over": "whatif recorded --over gamma=1:4 --db SAMPLES",
    "plan, table": "plan --pair bundled --device cuda --memory 0=4GiB,1=2GiB --context 1000",
    "plan, too small": "plan --pair bundled --device cuda --memory 0=20MiB,1=1MiB --context 2000",
    "models, table": "models",
}
"""Their outputs depend on no float of a model."""


def commands() -> Outputs:
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / name.lower()) for name in ("DB", "SAMPLES", "PROMPTS.jsonl")}
        prompts = (json.dumps({"prompt": prompt}) for prompt in PROMPTS)
        Path(files["PROMPTS.jsonl"]).write_text("\n".join(prompts), encoding="utf-8")
        with Store(files["SAMPLES"]) as store:
            store.insert(recorded(), *map(sample_trace, KINDS))
        for name, command in COMMANDS.items():
            code, out, err = _printed([files.get(word, word) for word in command.split()])
            text = flat(json.loads(out)) if "--json" in command else without_ids(out)
            yield name, f"$ specscope {command}\n{text}\n{without_ids(err)}exit code {code}"


def _printed(words: list[str]) -> tuple[Any, str, str]:
    """Return the exit code of a command, its standard output and its standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()
