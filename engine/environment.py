"""The machine and the software versions, stored with every run."""

from __future__ import annotations

import functools
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The folder in which Python finds the package `specscope`."""
PACKAGES = ("specscope", "torch", "transformers", "accelerate", "numpy")


@functools.cache
def _fixed() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return machine() | {"gpus": gpus} | {package: release(package) for package in PACKAGES}


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": processor(),
        "cores": os.cpu_count() or 1,
    }


def release(package: str) -> str:
    """Return a package's installed version, or `from source`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"


def environment() -> dict[str, Any]:
    return dict(_fixed())


def command(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of the package in a process of its own.

    `-P` keeps the working directory off its path: a `torch.py` there is no part of SpecScope.
    """
    return [sys.executable, "-P", "-m", module, *words]


def variables(**more: str) -> dict[str, str]:
    """Return the variables of such a process, which finds this very package first.

    An empty or relative entry of PYTHONPATH, which would mean the working directory, is left out.
    """
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(ROOT.absolute()), *(path for path in others if os.path.isabs(path))]
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(paths)}


@functools.cache
def processor() -> str:
    """Return the processor's name, for example `AMD EPYC 7R32`."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
