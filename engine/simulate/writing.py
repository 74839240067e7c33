"""Writes a calibration as a profile file, which `Profile.read` loads."""

from __future__ import annotations

import json
from collections.abc import Iterator

from engine.simulate.calibrate import DRAFTS, READ, Calibration, Times


def profile_text(calibration: Calibration, name: str) -> str:
    """Return a calibration as the text of a profile file, `NAME.toml`."""
    origin = f"measured on {calibration.processor} on {calibration.date}"
    source = f"source = {json.dumps(origin)}"
    drafts = "drafter" in calibration.shapes
    lines = [
        f"# Times of {calibration.pair.name} on this machine, {origin} with `specscope calibrate`.",
        "# A time is the median of several turns; its smallest and largest are in the comment. Times between the points of a",
        "# table are interpolated linearly; see docs/profiles.md.",
        "",
        f"name = {json.dumps(name)}",
        f"title = {json.dumps(f'{calibration.processor}: {calibration.pair.name}, measured here')}",
        source,
        'default = "pair"',
        f"gpus = {json.dumps(list(calibration.devices))} # the devices of this machine",
        "",
        "[hardware]",
        f"name = {json.dumps(calibration.processor)}",
        f"link_gb_s = {calibration.link_gb_s:.4g} # a copy in memory",
        source,
        "",
        "[step]",
        f"communicate_ms = {calibration.hop.median / 1e3:.4g} # a job to a worker and back; {_range(calibration.hop)}",
        f"sample_ms = {calibration.sample.median / 1e3:.4g} # judging {DRAFTS} drafts at temperature 1; {_range(calibration.sample)}",
        f"move_ms = {calibration.hop.median / 1e3:.4g} # the same hop",
        source,
        *(line for model in calibration.shapes for line in _model_text(calibration, model, source)),
        "",
        "[pairs.pair]",
        f"title = {json.dumps(calibration.pair.name)}",
        'target = "target"',
        *(['drafter = "drafter"'] if drafts else []),
        source,
    ]
    return "\n".join(lines) + "\n"


def _model_text(calibration: Calibration, model: str, source: str) -> Iterator[str]:
    shape = calibration.shapes[model]
    yield from ("", f"[models.{model}]", f"title = {json.dumps(f'{model} of {calibration.pair.name}')}")
    sizes = {
        "layers": shape.layers,
        "dim": shape.width,
        "ffn": shape.inner,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
    }
    yield from (f"{key} = {size} # config.json" for key, size in sizes.items())
    yield f"dtype = {json.dumps(calibration.dtype)} # of a worker on this machine"
    yield source
    yield f"measured = [ # rows and cached rows per sequence, sequences, microseconds; up to {READ} rows with logits"
    for cell, us in calibration.forwards[model].items():
        yield f"    [{cell.rows}, {cell.context}, {cell.batch}, {us.median:.1f}], # {_range(us)}"
    yield "]"


def _range(us: Times) -> str:
    return f"{us.least:.1f} to {us.most:.1f} us"
