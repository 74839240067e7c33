"""A model's own weights in fewer bits, as a drafter: `DIRECTORY/int4` and `DIRECTORY/int8`.

No such directory exists: the last part of the path names the form in which the model's files are
loaded. `int4` alone means the target's own weights.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path, PurePath

FORMS = {"int4": 4, "int8": 8}
"""Form -> bits of a weight of the layers; an LM head has 8."""


def is_form(model: str | Path) -> bool:
    return str(model) in FORMS


def split_form(model: Path) -> tuple[Path, int]:
    """Return the directory of a model's files, and the bits of its matrices; 0 for all of them."""
    bits = FORMS.get(model.name, 0) if not os.path.isdir(model) else 0
    return (model.parent if bits else model), bits


def model_name(path: str) -> str:
    """Return a model's path as a name: `int4 of smollm2`; of other folders the last two parts."""
    folder = PurePath(path).parent
    if (form := form_of(path)) and folder.name:
        return f"{form} of {_name_of(folder)}"
    return "/".join(PurePath(path).parts[-2:]) if PurePath(path).is_absolute() else path


def _name_of(folder: PurePath) -> str:
    """Return the name of a target's folder, also in a bundled pair and in the hub's cache."""
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.parent.name if folder.name == "target" else folder.name


def form_title(form: str) -> str:
    return f"The target's own weights in {FORMS[form]} bits ({form}), no training"


def form_of(path: str) -> str:
    """Return the form in which a path names a model, `int4` or `int8`; empty for all its bits."""
    name = PurePath(path).name
    return name if name in FORMS else ""


def reads_rows_of(target: Path, drafter: Path) -> bool:
    """Return whether a drafter can draft from the target's KV rows: its own ones only round them.

    A rotated int8 model has other values, see `specscope.engine.model.int8`.
    """
    return drafter == target / "int4"


def usual_form() -> str:
    """Return the form that drafts faster on this machine: int4, but not on an x86 without AVX2.

    There torch multiplies with int4 one weight at a time.
    """
    import torch

    slow = torch.backends.cpu.get_cpu_capability() == "DEFAULT" and platform.machine() in ("x86_64", "AMD64")
    return "int8" if slow and not torch.cuda.is_available() else "int4"
