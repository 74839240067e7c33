"""A model's own weights in fewer bits, as a drafter: `DIRECTORY/int4` and `DIRECTORY/int8`.

No such directory exists: the last part of the path names the form in which the model's files are
loaded. `int4` alone means the target's own weights.
"""

from __future__ import annotations

import os
from pathlib import Path

FORMS = {"int4": 4, "int8": 8}
"""Form -> bits of a weight of the layers; an LM head has 8."""


def is_form(model: str | Path) -> bool:
    """Return whether a name alone means the target's own weights in fewer bits."""
    return str(model) in FORMS


def split_form(model: Path) -> tuple[Path, int]:
    """Return the directory of a model's files, and the bits of its matrices; 0 for all of them."""
    bits = FORMS.get(model.name, 0) if not os.path.isdir(model) else 0
    return (model.parent if bits else model), bits


def usual_form() -> str:
    """Return the form that drafts faster on this machine.

    torch's product with int4 is faster than FBGEMM's with int8 if it has AVX-512 or a GPU; with
    AVX2 it is slower (docs/models.md has both).
    """
    import torch

    slow = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2") and not torch.cuda.is_available()
    return "int8" if slow else "int4"
