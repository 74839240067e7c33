"""Methods on a pair of a real shape with random weights: a GPU's times, without a download.

The drafter is the target's first layers. The further layers change the target's tokens a little, so
that a share of the drafts is accepted; what a forward costs does not depend on the weights. The
texts mean nothing. In bf16 logits lie on a coarse grid, so texts may part at near ties: `gap` is
the difference of the two logits there.

`python -m tests.bench.shapes [--quick] [--size 7B] [--runtime local-thread]
[--forward compiled] [--json]`.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaForCausalLM

import specscope
from specscope.app.bench.cuda import CPU, GPU, NOT_ON_A_GPU, PROMPT, LlamaShape, on_device
from specscope.app.bench.figures import Measurement, Note
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import BASELINE
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.facts.metrics import measure as metrics
from tests.bench import script

METHODS: dict[str, dict[str, Any]] = {
    BASELINE: {},
    "speculative": {"gamma": 4},
    "pearl": {},
    "dsi": {},
    "specbranch": {},
    "ssd": {},
    "tree": {},
}
DRAFTER_LAYERS = 2
AGREEMENT = 0.9
"""Share of random contexts in which both models have the same most probable token."""
SHARP = 12.0
"""Factor of the LM head, so that its distributions have a clear best token."""
DEEP = 4.0
"""Factor of the drafter's layers, so that the text depends on more than the last token."""
TIE = 0.5
"""Largest difference of two logits of a near tie: two steps of bf16 between 32 and 64."""


@torch.inference_mode()
def write_pair(folder: Path, size: LlamaShape, device: torch.device) -> float:
    """Write `target` and `drafter` into a folder; return the agreement that was reached."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    with on_device(device, kind):
        target = LlamaForCausalLM(size.config()).eval()
        drafter = LlamaForCausalLM(size._replace(layers=DRAFTER_LAYERS).config()).eval()
        contexts = torch.randint(3, size.config().vocab_size, (4, 96))
    _scale(target, range(DRAFTER_LAYERS), DEEP)
    target.lm_head.weight.mul_(SHARP)
    shared = target.state_dict()
    drafter.load_state_dict({name: shared[name] for name in drafter.state_dict()})
    wanted, rest = drafter(contexts).logits.argmax(-1), range(DRAFTER_LAYERS, size.layers)
    low, high, factor, agreement = -8.0, 3.0, 1.0, 0.0
    for _ in range(9):  # the exponent of the further layers' factor
        middle = (low + high) / 2
        _scale(target, rest, 2**middle / factor)
        factor = 2**middle
        agreement = float((target(contexts).logits.argmax(-1) == wanted).float().mean())
        low, high = (middle, high) if agreement > AGREEMENT else (low, middle)
    for name, model in (("target", target), ("drafter", drafter)):
        model.save_pretrained(folder / name)
        for file in Pair.find("bundled").target_path.glob("token*"):
            shutil.copy(file, folder / name)
    return agreement


def _scale(model: LlamaForCausalLM, layers: Sequence[int], factor: float) -> None:
    """Multiply what layers add to the hidden states."""
    for i in layers:
        layer = model.model.layers[i]
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)


def race(cluster: specscope.Cluster, rounds: int, tokens: int, note: Note) -> dict[str, Measurement]:
    """Run all methods in turns, after a first round that captures graphs and plans drafts."""
    traces: dict[str, list[Trace]] = {key: [] for key in METHODS}
    for number in range(rounds + 1):
        for key, config in METHODS.items():
            note(f"round {number}: {key}")
            traces[key].append(cluster.run(key, PROMPT, config=config, limits=Limits(tokens)))
    plain = traces.pop(BASELINE)[1:]
    return {f"{key}_over_{BASELINE}": _figure(runs[1:], plain) for key, runs in traces.items()}


def _figure(runs: Sequence[Trace], plain: Sequence[Trace]) -> Measurement:
    speeds = [[metrics(trace).tokens_per_second or 0.0 for trace in each] for each in (runs, plain)]
    parts = parting(runs[-1], plain[-1])
    detail = {
        "tokens_per_second": round(median(speeds[0]), 1),
        "plain_tokens_per_second": round(median(speeds[1]), 1),
        "acceptance_rate": metrics(runs[-1]).acceptance_rate,
        "config": runs[-1].header.config,
        "parts_at": parts and parts[0],
        "gap": parts and round(parts[1], 3),
    }
    valid = parts is None or parts[1] <= TIE
    return Measurement(tuple(a / b for a, b in zip(*speeds, strict=True)), "ratio", valid, detail)


def parting(trace: Trace, plain: Trace) -> tuple[int, float] | None:
    """Return the first token that differs, and the difference of the two logits there."""
    pairs = enumerate(zip(trace.token_ids(), plain.token_ids(), strict=True))
    found = next(((i, ours, theirs) for i, (ours, theirs) in pairs if ours != theirs), None)
    if found is None:
        return None
    number, ours, theirs = found
    position = len(plain.header.prompt_ids[0]) + number
    likely = dict(next(d for d in plain.decisions if d.position == position).top_p)
    return number, math.log(likely[theirs] / likely[ours]) if ours in likely else math.inf


def measure(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    on_gpu = torch.cuda.is_available()
    sizes = {size.name: size for size in (GPU if on_gpu else CPU)}
    size = sizes.get(args.size) or next(iter(sizes.values()))
    device = torch.device("cuda:0" if on_gpu else "cpu")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        note(f"weights of {size.name}")
        agreement = write_pair(folder, size, device)
        models = {name: folder / name for name in ("target", "drafter")}
        forward = args.forward if on_gpu else "eager"
        options = {"runtime": args.runtime, "device": device.type, "forward": forward}
        with specscope.open(**models, **options) as cluster:
            found = race(cluster, *((1, 64) if args.quick else (3, 192)), note)
    name = torch.cuda.get_device_name(0) if on_gpu else NOT_ON_A_GPU
    facts = {"device": name, "on_gpu": on_gpu, "size": size.name, "agreement": round(agreement, 3)}
    return found, facts | {"runtime": args.runtime, "forward": forward}


if __name__ == "__main__":
    options = script.options(__doc__)
    options.add_argument("--size", metavar="NAME", default="", help="7B, 1B or 160M on a GPU (the largest)")
    options.add_argument("--runtime", metavar="NAME", default="local-thread", help="or local-process")
    options.add_argument("--forward", metavar="NAME", default="compiled", help="on a GPU (compiled)")
    script.main(options, measure, {})
