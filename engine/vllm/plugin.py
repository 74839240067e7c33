"""The entry point of vLLM: SPECSCOPE_RECORD=FOLDER switches the recording on.

vLLM calls `register` in each of its processes. Nothing is hooked there but the call by which a
worker is given a step: at the first one the worker's model runner exists, and its warm-up is over.
"""

from __future__ import annotations

import logging
import os
import re
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from specscope.engine.environment import release
from specscope.engine.errors import UsageError, one_line
from specscope.engine.trace.record import environment
from specscope.engine.vllm.clock import Events, HostClock
from specscope.engine.vllm.sender import Sender
from specscope.engine.vllm.watch import Watch

log = logging.getLogger("vllm.specscope")
"""vLLM shows what its own loggers say."""
RELEASES = ("0.32",)
"""Releases whose runners were read; of another one nothing is hooked."""
WATCH = "_specscope_watch"


def register() -> None:
    """Hook this process, if SPECSCOPE_RECORD names a folder; never raise."""
    if not os.environ.get("SPECSCOPE_RECORD"):
        return
    try:
        _hook(release("vllm"))
    except Exception as error:  # noqa: BLE001 - a server starts with or without its recording
        if parent_process() is None:  # one line, although vLLM has several processes
            log.warning("SpecScope records nothing: %s", one_line(error))


def _hook(version: str) -> None:
    if re.match(r"\d+\.\d+|", version)[0] not in RELEASES:  # type: ignore[index] - it always matches
        raise UsageError(f"this is vLLM {version}; it records {', '.join(RELEASES)}")
    from vllm.v1.worker.worker_base import WorkerWrapperBase as Wrapper  # type: ignore[import-not-found]

    hook(Wrapper)


def hook(wrapper: Any) -> None:
    """Have a class of workers begin its recording with the first step."""
    original = wrapper.execute_model
    if hasattr(original, WATCH):
        return

    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if WATCH not in self.__dict__:
            self.__dict__[WATCH] = _watch(self)
        return original(self, *args, **kwargs)

    setattr(execute_model, WATCH, True)
    wrapper.execute_model = execute_model


def _watch(worker: Any) -> Watch | None:
    """Return what watches the worker's runner; None if it is not recorded."""
    try:
        config = worker.vllm_config
        if worker.global_rank != _first_of_the_last_stage(config.parallel_config):
            return None
        folder = Path(os.environ["SPECSCOPE_RECORD"])
        runner = worker.worker.model_runner
        Watch.check(runner)
        cuda = getattr(runner.device, "type", "cpu") == "cuda"
        sender = Sender(folder, about(config, "cuda:0" if cuda else "cpu"), Events() if cuda else HostClock())
        return Watch(runner, sender)
    except Exception as error:  # noqa: BLE001
        log.warning("SpecScope records nothing: %s", one_line(error))
        return None


def _first_of_the_last_stage(parallel: Any) -> int:
    """Return the rank that has the sampled tokens and answers the engine."""
    return parallel.world_size - parallel.tensor_parallel_size * parallel.prefill_context_parallel_size


def about(config: Any, device: str) -> dict[str, Any]:
    """Return what all requests' files say: models, settings, machine."""
    spec, model, parallel = config.speculative_config, config.model_config, config.parallel_config
    settings: dict[str, Any] = {"max_num_seqs": config.scheduler_config.max_num_seqs}
    rule = lossless = ""
    if spec is not None:
        settings = {"gamma": spec.num_speculative_tokens, "drafts": spec.draft_sample_method} | settings
        if spec.rejection_sample_method == "standard":
            rule = "ratio" if spec.draft_sample_method == "probabilistic" else "match"
        lossless = spec.rejection_sample_method
    if parallel.world_size > 1:
        settings |= {"tensor_parallel": parallel.tensor_parallel_size, "world_size": parallel.world_size}
    return {
        "title": f"vLLM · {spec.method if spec else 'plain'}",
        "config": settings,
        "device": device,
        "target": model.model,
        "drafter": (spec.model or "") if spec else "",
        "searches": bool(spec) and spec.method in ("ngram", "ngram_gpu", "suffix"),
        "tokenizer": model.tokenizer if os.environ.get("SPECSCOPE_TEXT") != "0" else "",
        "most": model.max_model_len,
        "rule": rule,
        "lossless": lossless != "synthetic",
        "environment": environment() | {"vllm": release("vllm")},
    }
