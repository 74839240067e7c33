"""Let vLLM schedule asynchronously on a CPU, where it switches that off: its runner is the GPU's.

A .pth file imports this module in each process of an environment; SPECSCOPE_ASYNC switches it on.
"""

import os
import sys
from contextlib import nullcontext
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any


class Event:
    """Of a stream that has run everything when a call returns."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def record(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...


def switched_on(module: Any) -> None:
    original = module.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        original(cls, config)
        config.scheduler_config.async_scheduling = True

    module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def without_streams(module: Any) -> None:
    original = module._set_torch_accelerator_to_noop

    def replaced() -> None:
        import torch

        original()
        torch.cuda.Event = Event
        torch.cuda.current_stream = lambda *_: None
        torch.cuda.stream = lambda *_: nullcontext()

    module._set_torch_accelerator_to_noop = replaced


CHANGES = {"vllm.platforms.cpu": switched_on, "vllm.v1.worker.cpu_model_runner": without_streams}


class Finder(MetaPathFinder):
    """Changes these modules once they have run."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if (change := CHANGES.pop(name, None)) is None:
            return None
        spec = find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            change(module)

        loader.exec_module = exec_module
        return spec


if os.environ.get("SPECSCOPE_ASYNC"):
    sys.meta_path.insert(0, Finder())
