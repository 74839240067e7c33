"""When functions of a model are compiled: as they are first needed, or in the pauses of the runs.

Compiling takes seconds. A run that waits for nothing begins with static forwards, and the functions
that it asked for are compiled after it; the next run has them. So all forwards of a run that have
one size are of one kind, and its text does not depend on a compiler's time.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch

from specscope.engine.files import cache_folder

QUIET_S = 1.0
"""Seconds without a forward of this process that make a pause."""

MOST_SHAPES = 512
"""Shapes of one function; torch's own bound of 8 is below the numbers of rows of two models."""
PROCESSES = 4
"""In which torch compiles kernels at most; its own choice is one for each core, up to 32."""
BUSY = threading.Lock()
"""At any time this process captures one CUDA graph, or compiles one function."""


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch compiles once for each shape of its arguments.

    The kernels are kept in SpecScope's cache folder: torch runs what it finds there, and its own
    choice is a folder of /tmp.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(PROCESSES))
    from torch._dynamo import config  # takes a second

    config.recompile_limit = config.accumulated_recompile_limit = MOST_SHAPES
    return torch.compile(function, dynamic=False)


class Compiler:
    """Compiles the functions of one model on its device.

    Args:
        device: The model's.
        waits: Whether a function is compiled when it is first needed.
    """

    last_used = 0.0
    """When a forward of any model of this process began, by `time.monotonic`."""

    def __init__(self, device: torch.device, *, waits: bool) -> None:
        self._device, self.waits = device, waits
        self._ready, self._made = dict[Hashable, Any](), dict[Hashable, Any]()
        self._asked: dict[Hashable, Callable[[], Any]] = {}
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self.version = 0
        """Changes when functions become ready; steps made before do not use them."""
        self.failed = ""
        """Why a function could not be compiled; static forwards go on."""

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned, which compiles a function; None before it has run.

        It runs now, or in a pause; after a failure of any function never again.
        """
        if key in self._ready or self.failed:
            return self._ready.get(key)
        if self.waits:
            self._make(key, make)
            self._ready |= self._made
        elif key not in self._made:
            self._asked.setdefault(key, make)
        return self._ready.get(key)

    @property
    def made(self) -> list[Any]:
        """The keys of all functions that have been compiled."""
        return list(self._made)

    def begin(self) -> None:
        """Begin a run: what was compiled since the last one is ready."""
        if len(self._made) > len(self._ready):
            self._ready |= self._made
            self.version += 1

    def used(self) -> None:
        """Note that a forward begins; start the thread that compiles once it was the last one."""
        Compiler.last_used = time.monotonic()
        if self._asked and self._thread is None:
            self._thread = threading.Thread(target=self._compile_asked, name="compiler", daemon=True)
            atexit.register(self.close)  # a thread must not compile while the interpreter ends
            self._thread.start()

    def close(self) -> None:
        """Compile nothing more; wait for what is being compiled."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _compile_asked(self) -> None:
        while not self._over.is_set() and self._asked and not self.failed:
            if (left := Compiler.last_used + QUIET_S - time.monotonic()) > 0:
                self._over.wait(left)
                continue
            key = next(iter(self._asked))
            self._make(key, self._asked.pop(key))
        atexit.unregister(self.close)
        self._thread = None

    def _make(self, key: Hashable, make: Callable[[], Any]) -> None:
        here = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        try:
            with BUSY, here, torch.inference_mode():
                self._made[key] = make()
        except Exception as error:  # noqa: BLE001 - of any part of torch's compiler
            text, *_ = f"{type(error).__name__}: {error}".split("Set TORCHDYNAMO_VERBOSE")
            self.failed = " ".join(text.split())[:300]
            sys.stderr.write(f"specscope: layers are not compiled, static forwards go on: {self.failed}\n")
