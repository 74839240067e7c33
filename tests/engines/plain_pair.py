"""Write the bundled pair without int8 to a folder, for engines that do not read it: FOLDER."""

import shutil
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.model.int8 import dequantised

KEPT = ("*.json", "*.jinja")


def main(folder: str) -> None:
    for model in ("target", "drafter"):
        source, place = PAIRS / "bundled" / model, Path(folder) / model
        place.mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in KEPT for path in source.glob(pattern)):
            if "index" not in path.name:
                shutil.copy(path, place)
        stored = {}
        for path in source.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                stored |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        scales = {key: stored.pop(key) for key in [*stored] if key.endswith(".scale")}
        tensors = {
            key: dequantised(tensor, scales[f"{key}.scale"]).float().contiguous()
            if f"{key}.scale" in scales
            else tensor.float()
            for key, tensor in stored.items()
        }
        save_file(tensors, place / "model.safetensors", {"format": "pt"})


main(*sys.argv[1:])
