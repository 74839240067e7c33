"""A calibration as the text of a profile file, for people to read and `Profile.read` to load."""

from __future__ import annotations

import json
from collections.abc import Iterator

from engine.simulate.calibrate import DRAFTS, READ, Calibration, Times


def profile_text(found: Calibration, name: str) -> str:
    """Return a calibration as the text of a profile file, `NAME.toml`."""
    said = f"measured on {found.processor} on {found.date}"
    source = f"source = {json.dumps(said)}"
    drafts = "drafter" in found.shapes
    lines = [
        f"# Times of {found.pair.name} on this machine, {said} with `specscope calibrate`.",
        "# A time is the median of several turns; its smallest and largest are in the comment. Between the points of a table",
        "# times lie on straight lines; see docs/profiles.md.",
        "",
        f"name = {json.dumps(name)}",
        f"title = {json.dumps(f'{found.processor}: {found.pair.name}, measured here')}",
        source,
        'default = "pair"',
        f"gpus = {json.dumps(list(found.devices))} # the devices there are",
        "",
        "[hardware]",
        f"name = {json.dumps(found.processor)}",
        f"link_gb_s = {found.link_gb_s:.4g} # a copy in memory",
        source,
        "",
        "[step]",
        f"communicate_ms = {found.hop.median / 1e3:.4g} # a job to a worker and back; {_range(found.hop)}",
        f"sample_ms = {found.sample.median / 1e3:.4g} # judging {DRAFTS} drafts at temperature 1; {_range(found.sample)}",
        f"move_ms = {found.hop.median / 1e3:.4g} # the same hop",
        source,
        *(line for model in found.shapes for line in _model_text(found, model, source)),
        "",
        "[pairs.pair]",
        f"title = {json.dumps(found.pair.name)}",
        'target = "target"',
        *(['drafter = "drafter"'] if drafts else []),
        source,
    ]
    return "\n".join(lines) + "\n"


def _model_text(found: Calibration, model: str, source: str) -> Iterator[str]:
    shape = found.shapes[model]
    yield from ("", f"[models.{model}]", f"title = {json.dumps(f'{model} of {found.pair.name}')}")
    sizes = {
        "layers": shape.layers,
        "dim": shape.width,
        "ffn": shape.inner,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
    }
    yield from (f"{key} = {size} # config.json" for key, size in sizes.items())
    yield f"dtype = {json.dumps(found.dtype)} # what a worker here computes with"
    yield source
    yield f"measured = [ # rows and cached rows per sequence, sequences, microseconds; up to {READ} rows with logits"
    for cell, us in found.forwards[model].items():
        yield f"    [{cell.rows}, {cell.context}, {cell.batch}, {us.median:.1f}], # {_range(us)}"
    yield "]"


def _range(us: Times) -> str:
    return f"{us.least:.1f} to {us.most:.1f} us"
