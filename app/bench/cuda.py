"""Decoding on a GPU: how near a forward is to the time that reading the weights takes.

Models have random weights and the shapes of real ones, so nothing is downloaded. Without a GPU the
same figures are measured for small shapes on one CPU core.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import specscope
from specscope.app.bench.figures import Measurement, Note
from specscope.app.bench.speed import one_core
from specscope.engine.drafting.tree import Wide
from specscope.engine.model.clock import Clock
from specscope.engine.model.compiled import compile_layers
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.fused import DraftInputs, FusedDrafts
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.model.static import StaticSteps
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts import waiting

NOT_ON_A_GPU = "not run on a GPU: small shapes on one CPU core"
PROMPT = "Tell me a story about a fox who lost its hat."
CACHED = 512
"""Cached rows before each timed forward."""
DRAFTS = 5
"""Drafted tokens, and forwards of a drafter beside one verification of DRAFTS + 1 rows."""


class LlamaShape(NamedTuple):
    """A Llama shape."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=32000,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=2048,
            architectures=["LlamaForCausalLM"],
        )


GPU = (
    LlamaShape("7B", 32, 4096, 11008, 32, 32),
    LlamaShape("1B", 16, 2048, 8192, 32, 8),
    LlamaShape("160M", 12, 768, 3072, 12, 12),
)
CPU = (LlamaShape("160M", 12, 768, 3072, 12, 12), LlamaShape("40M", 8, 512, 1536, 8, 8))
"""The first shape of each list is the target of `colocated_gain`, the second its drafter."""


def measure(repeats: int, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Return the figures, and facts of the device; each kind of forward repeats."""
    on_gpu = torch.cuda.is_available()
    device, sizes = (torch.device("cuda:0"), GPU) if on_gpu else (torch.device("cpu"), CPU)
    figures = dict[str, Measurement]()
    with contextlib.nullcontext("") if on_gpu else one_core():
        note("memory bandwidth")
        speed = bandwidth(device)
        figures["bandwidth_gb_s"] = Measurement((speed / 1e9,), "GB/s")
        models = list[Timed]()
        for size in sizes:
            note(f"{size.name}: one row, 16 rows and a chain")
            models.append(Timed(size, device))
            figures |= models[-1].over_floor(speed, repeats)
            figures[f"chain_gain_{size.name}"] = models[-1].chain_gain(repeats)
            figures[f"int4_gain_{size.name}"] = models[-1].int4_gain(repeats)
        note("drafts beside a verification")
        figures["colocated_gain"], round_s = colocated(models[0], models[1], repeats)
    note("a run's time outside models")
    figures |= orchestration("cuda" if on_gpu else "cpu", round_s)
    name = torch.cuda.get_device_name(0) if on_gpu else NOT_ON_A_GPU
    return figures, {"device": name, "on_gpu": on_gpu}


def bandwidth(device: torch.device) -> float:
    """Return how fast the device reads memory, in bytes per second: the best of several sums."""
    count = (1 << 30 if device.type == "cuda" else 1 << 28) // 4
    numbers = torch.ones(count, device=device)
    times = [seconds(lambda: numbers.sum().item()) for _ in range(8)]
    return numbers.nbytes / min(times)


def colocated(target: Timed, drafter: Timed, repeats: int) -> tuple[Measurement, float]:
    def draft() -> None:
        for _ in range(DRAFTS):
            drafter.compiled(1)

    def verify() -> None:
        target.compiled(DRAFTS + 1)

    values, rounds = list[float](), list[float]()
    with ThreadPoolExecutor(2) as pool:

        def at_once() -> None:
            for job in [pool.submit(_on_own_stream(work)) for work in (draft, verify)]:
                job.result()

        at_once()  # to warm up, and to capture graphs
        for _ in range(repeats):
            rounds.append(seconds(lambda: (draft(), verify())))
            values.append(rounds[-1] / seconds(at_once))
    detail = {"target": target.name, "drafter": drafter.name, "drafts": DRAFTS}
    return Measurement(tuple(values), "x", detail=detail), median(rounds)


def orchestration(device: str, round_s: float) -> dict[str, Measurement]:
    """Return which share of `speculative`'s rounds is outside spans of models.

    The time outside of them is that of rounds of the bundled pair, a toy, on the device. It is a
    share of the toy's rounds, and of rounds whose models take `round_s` seconds, as the shapes'. On
    a GPU the toy's figure has the host's waits for the device per round, drafting and judging.
    """
    shares, hosts, waits = list[float](), list[float](), list[float]()
    forward = "compiled" if device == "cuda" else "static"
    with specscope.open("bundled", runtime="local-thread", device=device, forward=forward) as cluster:
        for _ in range(4):
            with _counted_waits(device) as counted:
                trace = cluster.run("speculative", PROMPT, config={"gamma": DRAFTS}, limits=Limits(64))
            start, end = waiting.decode_window(trace)
            idle = sum(band.end - band.start for band in waiting.band(trace) if band.kind == "none")
            shares.append(idle / (end - start))
            hosts.append(idle / len(trace.rounds) / 1e9)
            waits.append(len(counted) / len(trace.rounds))
    detail = {"waits_per_round": round(median(waits[1:]), 2)} if device == "cuda" else {}
    of_shapes = tuple(host / (host + round_s) for host in hosts[1:])
    spent = {"host_ms": round(median(hosts[1:]) * 1e3, 3), "models_ms": round(round_s * 1e3, 3)}
    return {  # without the first run, which makes the steps
        "orchestration": Measurement(of_shapes, "of a round", detail=spent),
        "orchestration_toy": Measurement(tuple(shares[1:]), "of decoding", detail=detail),
    }


@contextlib.contextmanager
def _counted_waits(device: str) -> Generator[list[warnings.WarningMessage]]:
    """Collect CUDA's warnings of calls that wait for the device."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def _on_own_stream(work: Callable[[], None]) -> Callable[[], None]:
    if not torch.cuda.is_available():
        return work

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            work()
            torch.cuda.current_stream().synchronize()

    return run


class Cached:
    """A decoder after CACHED rows."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.cache = decoder.new_cache(1, CACHED + 64)
        self._steps = {kind: StaticSteps(decoder) for kind in ("static", "compiled")}
        compile_layers(decoder, waits=True)
        self._compiled = decoder.compiler, decoder.compiled
        decoder.compiler = decoder.compiled = None
        ids = np.ones(CACHED, dtype=np.int64)
        decoder.forward(self.cache, Rows.chain(0, ids, 0), np.empty(0, dtype=np.int64))

    def back(self) -> None:
        """Keep the first CACHED rows."""
        self.cache.keep(0, np.arange(CACHED))

    def logits(self, ids: Sequence[int], after: int = 0) -> torch.Tensor:
        """Forward a chain, `after` rows that follow the cached ones; return its logits, (T, V)."""
        rows = Rows.chain(0, np.array(ids, dtype=np.int64), CACHED + after)
        return self.decoder.forward(self.cache, rows, np.arange(len(ids))).logits

    def forward(self, rows: int) -> list[int]:
        """Forward `rows` rows after the cached ones; return the most probable next tokens."""
        self.back()
        return self.logits([1] * rows).argmax(-1).tolist()

    @contextlib.contextmanager
    def in_steps(self, kind: str = "compiled") -> Generator[None]:
        """Run forwards as `--forward` static or compiled does; others are eager."""
        decoder = self.decoder
        decoder.steps = self._steps[kind]
        if kind == "compiled":
            decoder.compiler, decoder.compiled = self._compiled
        try:
            yield
        finally:
            decoder.steps = decoder.compiler = decoder.compiled = None

    def static(self, rows: int) -> list[int]:
        with self.in_steps("static"):
            return self.forward(rows)

    def compiled(self, rows: int) -> list[int]:
        with self.in_steps():
            return self.forward(rows)


class Timed:
    """A model of a shape with random weights, in the engine (bf16 on a GPU) and transformers."""

    def __init__(self, size: LlamaShape, device: torch.device) -> None:
        self.name = size.name
        config = size.config()
        with on_device(device, torch.bfloat16 if device.type == "cuda" else torch.float32):
            self._reference = LlamaForCausalLM(config).eval()
        weights = self._reference.state_dict()
        self.bytes = (
            sum(weight.nbytes for weight in weights.values()) - weights["model.embed_tokens.weight"].nbytes
        )
        """Bytes that a forward reads: all weights without the embeddings."""
        shape = ModelShape.of(config, Path(size.name))
        self._ours = Cached(Decoder(shape, weights.__getitem__))
        self._in_int4 = Cached(Decoder(shape, weights.__getitem__, bits=4))
        self.forward, self.static, self.compiled = self._ours.forward, self._ours.static, self._ours.compiled
        self._fused = FusedDrafts(self._ours.decoder)
        self._clock = Clock.of(device)
        self._prefill()

    @torch.inference_mode()
    def _prefill(self) -> None:
        self._past = DynamicCache()
        inputs = torch.ones((1, CACHED), dtype=torch.int64, device=self._ours.decoder.device)
        self._reference(inputs, None, None, self._past, use_cache=True, logits_to_keep=1)

    def drafts(self) -> list[int]:
        """Draft DRAFTS tokens by static forwards of one row; the host reads each token."""
        token, tokens = 1, list[int]()
        self._ours.back()
        with self._ours.in_steps():
            for step in range(DRAFTS):
                token = int(self._ours.logits([token], step).argmax(-1).item())
                tokens.append(token)
        return tokens

    def chain(self) -> list[int]:
        """Draft the same tokens in one step after the first forward (`engine.model.fused`)."""
        self._ours.back()
        with self._ours.in_steps():
            first = self._ours.logits([1])
        plans, given = Wide(1, DRAFTS).plans(DRAFTS), DraftInputs([0], first, [])
        with self._ours.in_steps():
            found = self._fused.draft(self._ours.cache, plans, given, Sampling(), self._clock, argmax=True)
        self._clock.read()
        return [int(level.ids[0, 0, 0]) for level in found.levels]

    def chain_gain(self, repeats: int) -> Measurement:
        """Return the time of DRAFTS forwards whose tokens the host reads over that of a chain."""
        same = [self.drafts(), self.chain(), self.chain()]  # to warm up
        times = [(seconds(self.drafts), seconds(self.chain)) for _ in range(repeats)]
        detail = {"drafter": self.name, "drafts": DRAFTS, "same_tokens": round(_agreement(same), 3)}
        return Measurement(tuple(single / chain for single, chain in times), "x", detail=detail)

    def int4_gain(self, repeats: int) -> Measurement:
        """Return the time of a static forward of one row over that of the same model in int4."""
        kinds = (self._ours.compiled, self._in_int4.compiled)
        for forward in kinds * 2:  # to warm up
            forward(1)
        times = [[seconds(partial(forward, 1)) for forward in kinds] for _ in range(repeats)]
        detail = {"int4_ms": round(median(int4 for _, int4 in times) * 1e3, 3)}
        return Measurement(tuple(whole / int4 for whole, int4 in times), "x", detail=detail)

    @torch.inference_mode()
    def reference(self, rows: int) -> list[int]:
        inputs = torch.ones((1, rows), dtype=torch.int64, device=self._ours.decoder.device)
        logits = self._reference(inputs, None, None, self._past, use_cache=True).logits
        self._past.crop(-rows)
        return logits[0].argmax(-1).tolist()

    def over_floor(self, speed: float, repeats: int) -> dict[str, Measurement]:
        floor, figures = self.bytes / speed, dict[str, Measurement]()
        kinds = {
            "decode": self.compiled,
            "static": self.static,
            "eager": self.forward,
            "transformers": self.reference,
        }
        for rows, suffix in ((1, ""), (16, "_16_rows")):
            texts = [forward(rows) for forward in kinds.values() for _ in range(2)]  # to warm up
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(repeats):
                for kind, forward in kinds.items():
                    times[kind].append(seconds(partial(forward, rows)))
            for kind, taken in times.items():
                detail = {
                    "ms": round(median(taken) * 1e3, 3),
                    "floor_ms": round(floor * 1e3, 3),
                    "same_tokens": round(_agreement(texts), 3),
                }
                values = tuple(each / floor for each in taken)
                figures[f"{kind}_over_floor{suffix}_{self.name}"] = Measurement(values, "x", detail=detail)
        return figures


def _agreement(texts: list[list[int]]) -> float:
    """Return the share of tokens that equal those of the first text."""
    pairs = [a == b for text in texts for a, b in zip(texts[0], text, strict=True)]
    return sum(pairs) / len(pairs)


@contextlib.contextmanager
def on_device(device: torch.device, dtype: torch.dtype) -> Generator[None]:
    """Make new tensors of this device and dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(before)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
