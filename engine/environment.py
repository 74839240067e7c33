"""The machine and the software versions, stored with every run."""

from __future__ import annotations

import functools
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("specscope", "torch", "transformers", "accelerate", "numpy")


@functools.cache
def _fixed() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    return facts | {package: release(package) for package in PACKAGES}


def release(package: str) -> str:
    """Return a package's installed version, or `from source`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"


def environment() -> dict[str, Any]:
    return dict(_fixed())


@functools.cache
def processor() -> str:
    """Return the processor's name, for example `AMD EPYC 7R32`."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
