"""Profiles, `assets/profiles/*.toml`: devices, models with published speeds, and pairs of models.

A file either places each model on a device (`[[devices]]`, one drafter and one target), or lists
GPUs (`gpus = 8`) and leaves the placement to the method; its pairs then give each model's number of
GPUs.
"""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from specscope.engine.errors import UsageError, one_line
from specscope.engine.files import read_text
from specscope.engine.model.fields import MOST_EXPERT_LAYERS, WHOLE
from specscope.engine.schema import Range
from specscope.engine.simulate.grid import Grid
from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.records import (
    MOST_GPUS,
    Delay,
    Gpus,
    Positive,
    check_name,
    keys,
    record,
    records,
    value,
)
from specscope.engine.simulate.roofline import COPIES, SPLITS, WEIGHT_BITS, Hardware, PublishedModel
from specscope.engine.simulate.shapes import with_card, with_shape
from specscope.engine.types import check_choice

FOLDER = Path(__file__).parents[2] / "assets" / "profiles"
_LONGEST = 1 << 22


@dataclass(frozen=True, slots=True)
class ProfilePair:
    """A drafter and a target of a profile, or a target alone."""

    title: str
    target: str
    source: str
    drafter: str | None = None
    """A model of the profile; None if drafts are copied from the text (EMS-SD with LLMA)."""
    target_gpus: Gpus | None = None
    """GPUs of the target in this pair; by default the model's."""
    target_speed: Positive | None = None
    """The target's tokens per second in this pair; by default the model's."""
    drafter_gpus: Gpus | None = None
    drafter_speed: Positive | None = None
    fuzzy_ms: Delay | None = None
    """Milliseconds of the drafter's one-row fuzzy forward at layer-parallel size 4; by default a
    share of its operators is attention."""
    verify_ms: Delay | None = None
    """Milliseconds to forward the few rows of a draft on the target; by default the roofline's."""
    communicate_ms: Delay | None = None
    """As in `[step]`, which is the default."""
    sample_ms: Delay | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    role: str
    label: str
    gpus: Gpus


@dataclass(frozen=True, slots=True)
class _Step:
    """Milliseconds of a decoding step besides its forwards."""

    communicate_ms: Delay
    sample_ms: Delay
    source: str
    move_ms: Delay | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """A `[models.NAME]` table; the fields are documented at `Model`."""

    title: str
    layers: Annotated[int, Range(*WHOLE["num_hidden_layers"])]
    dim: Annotated[int, Range(*WHOLE["hidden_size"])]
    ffn: Annotated[int, Range(*WHOLE["intermediate_size"])]
    kv_heads: Annotated[int, Range(*WHOLE["num_key_value_heads"])]
    vocab: Annotated[int, Range(*WHOLE["vocab_size"])]
    dtype: str
    source: str
    gpus: Gpus = 1
    speed: Positive | None = None
    head_dim: Annotated[int, Range(*WHOLE["head_dim"])] = 128
    gated: bool = True
    split: str = "layers"
    measured: list[list[float]] | None = None
    heads: Annotated[int, Range(*WHOLE["num_attention_heads"])] = 0
    tied: bool = False
    experts: Annotated[int, Range(*WHOLE["num_experts"])] = 0
    experts_per_token: Annotated[int, Range(*WHOLE["num_experts_per_tok"])] = 1
    expert_ffn: Annotated[int, Range(*WHOLE["moe_intermediate_size"])] = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of virtual runs."""

    name: str
    title: str
    source: str
    default: str
    gpus: tuple[str, ...]
    hardware: Hardware
    models: Mapping[str, PublishedModel]
    """Those that have a speed, by key."""
    pairs: Mapping[str, ProfilePair]
    latencies: Mapping[str, Latency]

    @classmethod
    def load(cls, name: str) -> Profile:
        """Return the profile with a name, or at a path that ends in `.toml`."""
        if name.endswith(".toml"):
            return cls.read(Path(name))
        if name not in (names := profiles()):
            raise UsageError(
                f"there is no profile {reprlib.repr(name)}; choose one of {', '.join(names)}, or a path that ends in .toml"
            )
        return cls.read(FOLDER / f"{name}.toml")

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Return the profile of a file; a UsageError names file and key."""
        text = read_text(path, _LONGEST)
        try:
            return parse(path.stem, text)
        except UsageError as error:
            raise UsageError(f"the profile {path} is wrong: {error}") from None
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of thousands of digits
            raise UsageError(f"the profile {path} cannot be read: {one_line(error)}") from None

    def latency(self, pair: str | None = None) -> Latency:
        """Return the times of a pair, by default of the profile's default pair."""
        key = pair or self.default
        check_choice(f"the profile {self.name} has no pair {reprlib.repr(key)}", key, self.latencies)
        return self.latencies[key]


def profiles() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def parse(stem: str, text: str) -> Profile:
    """Return the profile of a file's text; a UsageError names the key."""
    return profile_of(stem, tomllib.loads(text))


def profile_of(stem: str, document: Mapping[str, Any]) -> Profile:
    """Return the profile of a file's tables; a UsageError names the key."""
    texts = {"name", "title", "source", "default"}
    tables = {"hardware", "step", "models", "pairs"}
    keys(document, tables | texts, "", tables | texts | {"devices", "gpus"})
    head = {key: value(document[key], str, key) for key in texts}
    if head["name"] != stem:
        raise UsageError(f"name is {reprlib.repr(head['name'])}; it must be the file's, {stem!r}")
    hardware = record(Hardware, with_card(value(document["hardware"], dict, "hardware")), "hardware.")
    step = record(_Step, value(document["step"], dict, "step"), "step.")
    shapes, pairs = records(_Shape, document, "models", with_shape), records(ProfilePair, document, "pairs")
    places, gpus = _places(document)
    check_choice(f"default is {reprlib.repr(head['default'])}", head["default"], pairs)
    models = {name: _model(name, shape) for name, shape in shapes.items()}
    latencies = {
        name: _latency(name, pair, models, hardware, step, len(gpus)) for name, pair in pairs.items()
    }
    _check_places(places, pairs, latencies)
    return Profile(
        **head,
        gpus=gpus,
        hardware=hardware,
        models={name: model for name, model in models.items() if model.speed},
        pairs=pairs,
        latencies=latencies,
    )


def _places(document: Mapping[str, Any]) -> tuple[list[_Place], tuple[str, ...]]:
    """Return the file's `[[devices]]` (none if it lists `gpus`), and the names of all GPUs."""
    if ("devices" in document) == ("gpus" in document):
        raise UsageError("devices is missing, or gpus; a profile has one of them")
    if "gpus" in document:
        return [], _gpu_names(document["gpus"])
    rows = value(document["devices"], list, "devices")
    if len(rows) > 2:
        raise UsageError(f"devices has {len(rows)} tables; there must be one drafter and one target")
    places = [record(_Place, value(row, dict, f"devices.{i}"), f"devices.{i}.") for i, row in enumerate(rows)]
    roles = sorted(place.role for place in places)
    if roles not in (["drafter", "target"], ["target"]):
        raise UsageError(
            f"devices have the roles {', '.join(roles)}; there must be one drafter and one target"
        )
    return places, _unique(list(_device_gpu_names(places)))


def _gpu_names(gpus: Any) -> tuple[str, ...]:
    if not isinstance(gpus, list):
        return tuple(f"gpu{i}" for i in range(value(gpus, Gpus, "gpus")))
    if len(gpus) > MOST_GPUS:
        raise UsageError(f"gpus has {len(gpus)} names; there may be at most {MOST_GPUS}")
    return _unique([value(name, str, f"gpus.{i}") for i, name in enumerate(value(gpus, list, "gpus"))])


def _unique(names: list[str]) -> tuple[str, ...]:
    for name in names:
        check_name(name, "gpus")
    if len(set(names)) < len(names):
        raise UsageError(f"gpus is {reprlib.repr(names)}; each name may appear once")
    return tuple(names)


def _device_gpu_names(places: list[_Place]) -> Iterator[str]:
    number = 0
    for place in places:
        for _ in range(place.gpus):
            yield place.name if place.gpus == 1 else f"gpu{number}"
            number += 1


def _model(name: str, shape: _Shape) -> PublishedModel:
    for key, choices in (("dtype", tuple(WEIGHT_BITS)), ("split", (*SPLITS, COPIES))):
        chosen = getattr(shape, key)
        check_choice(f"models.{name}.{key} is {reprlib.repr(chosen)}", chosen, choices)
    _check_experts(f"models.{name}", shape)
    grid = None
    if shape.measured is not None:
        try:
            grid = Grid.of(shape.measured)
        except UsageError as error:
            raise UsageError(f"models.{name}.measured: {error}") from None
        if shape.speed is not None:
            raise UsageError(f"models.{name} has measured times and a speed; leave the speed out")
    speed = 1e6 / grid.one_row if grid else shape.speed or 0.0
    fields: dict[str, Any] = asdict(shape) | {"measured": grid, "speed": speed}
    return PublishedModel(**fields)


def _check_experts(where: str, shape: _Shape) -> None:
    experts, used = shape.experts, shape.experts_per_token
    if experts and not shape.expert_ffn:
        raise UsageError(f"{where}.expert_ffn is missing; the model has {experts} experts in a layer")
    if used > max(1, experts):
        raise UsageError(
            f"{where}.experts_per_token is {used}; it must be at most {max(1, experts)}, the experts"
        )
    if experts * shape.layers > MOST_EXPERT_LAYERS:
        raise UsageError(
            f"{where}.experts is {experts} in {shape.layers} layers; all layers together may have at most "
            f"{MOST_EXPERT_LAYERS}"
        )


def _latency(
    key: str,
    pair: ProfilePair,
    models: Mapping[str, PublishedModel],
    hardware: Hardware,
    step: _Step,
    gpus: int,
) -> Latency:
    def resolve(role: str, name: str, width: int | None, speed: float | None) -> PublishedModel:
        where = f"pairs.{key}.{role}"
        check_choice(f"{where} is {reprlib.repr(name)}", name, models)
        model = models[name]
        if role == "target" and model.split == COPIES:
            raise UsageError(f"{where} is {name}, split in copies; only a drafter may be")
        model = replace(model, gpus=width or model.gpus, speed=speed or model.speed)
        if model.gpus > gpus:
            raise UsageError(f"{where} is {name}, on {model.gpus} GPUs; there are {gpus}")
        if not model.speed and hardware.layer_us is None:
            raise UsageError(
                f"{where}_speed is missing; the model {name} has no speed of its own, and the hardware no layer_us to "
                "compute it"
            )
        if not model.speed:
            model = replace(model, speed=1e6 / model.computed_us(hardware), computed=True)
        if model.measured is None and (least := model.roofline_us(hardware, 1, 0)) > 1e6 / model.speed:
            raise UsageError(
                f"{where} is {name}, with {model.speed:g} tokens/s; this hardware allows at most {1e6 / least:.4g}"
            )
        return model

    target = resolve("target", pair.target, pair.target_gpus, pair.target_speed)
    drafter = (
        resolve("drafter", pair.drafter, pair.drafter_gpus, pair.drafter_speed) if pair.drafter else None
    )
    times = {name: getattr(pair, name) for name in ("sample_ms", "communicate_ms")}
    sample, communicate = (getattr(step, name) if ms is None else ms for name, ms in times.items())
    move = None if step.move_ms is None else round(1e3 * step.move_ms)
    latency = Latency(key, target, drafter, hardware, round(1e3 * sample), round(1e3 * communicate), move)
    try:
        return latency.fitted(pair.verify_ms, pair.fuzzy_ms)
    except UsageError as error:
        raise UsageError(f"pairs.{key}.{error}") from None


def _check_places(
    places: list[_Place], pairs: Mapping[str, ProfilePair], latencies: Mapping[str, Latency]
) -> None:
    for key, latency in latencies.items():
        for place in places:
            name, model = (
                (pairs[key].target, latency.target)
                if place.role == "target"
                else (pairs[key].drafter, latency.drafter)
            )
            if model and model.gpus != place.gpus:
                raise UsageError(
                    f"pairs.{key}.{place.role} is {name}, on {model.gpus} GPUs; {place.name} has {place.gpus}"
                )
