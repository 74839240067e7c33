"""A virtual cluster: devices, models with published speeds, and the pairs that run on it, from `assets/profiles/*.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from engine.errors import UsageError
from engine.runtime.events import Device
from engine.simulate.latency import ELEMENT_BYTES, Hardware, Latency, Model

FOLDER = Path(__file__).parents[2] / "assets" / "profiles"
"""Where the profiles are; a new file there is a new profile."""

Record = TypeVar("Record")
Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A drafter and a target of a profile."""

    title: str
    drafter: str
    """A model of the profile."""
    target: str
    """A model of the profile."""
    source: str


@dataclass(frozen=True, slots=True)
class _Place:
    """A device as the file has it: one or more GPUs that one model lives on."""

    name: str
    role: str
    label: str
    gpus: int


@dataclass(frozen=True, slots=True)
class _Step:
    """What a decoding step costs besides its forwards, in milliseconds."""

    communicate_ms: float
    sample_ms: float
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Where times come from in a virtual run."""

    name: str
    """The file's name without `.toml`."""
    title: str
    source: str
    default: str
    """The pair to use unless another is asked for."""
    devices: tuple[Device, ...]
    """One per model: the drafter's, the target's (a device of several GPUs is drawn as one)."""
    hardware: Hardware
    models: Mapping[str, Model]
    pairs: Mapping[str, Pair]
    """By key, in the file's order."""
    sample_us: int
    communicate_us: int

    @classmethod
    def load(cls, name: str) -> Profile:
        """Return the profile of that name.

        Raises:
            UsageError: There is none (the message lists those there are), or its file is broken.
        """
        if name not in (known := profiles()):
            raise UsageError(f"there is no profile {name!r}; choose one of {', '.join(known)}")
        return cls.read(FOLDER / f"{name}.toml")

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Return the profile of a file.

        Raises:
            UsageError: The file cannot be read; the message names it and the key.
        """
        try:
            return _profile(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"the profile {path} cannot be read: {error}") from None
        except UsageError as error:
            raise UsageError(f"the profile {path} is wrong: {error}") from None

    def latency(self, pair: str | None = None) -> Latency:
        """Return the times of a pair; of the default one unless another is named.

        Raises:
            UsageError: The profile has no such pair.
        """
        key = pair or self.default
        if key not in self.pairs:
            raise UsageError(
                f"the profile {self.name} has no pair {key!r}; choose one of {', '.join(self.pairs)}"
            )
        target, drafter = self.models[self.pairs[key].target], self.models[self.pairs[key].drafter]
        return Latency(key, target, drafter, self.hardware, self.sample_us, self.communicate_us)


def profiles() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _profile(stem: str, document: dict[str, Any]) -> Profile:
    tables = {"devices", "hardware", "step", "models", "pairs"}
    texts = {"name", "title", "source", "default"}
    _keys(document, tables | texts, "")
    head = {key: _value(document[key], str, key) for key in texts}
    if head["name"] != stem:
        raise UsageError(f"name is {head['name']!r}; it must be the file's, {stem!r}")
    places = [
        _record(_Place, row, f"devices.{i}.")
        for i, row in enumerate(_value(document["devices"], list, "devices"))
    ]
    step = _record(_Step, _value(document["step"], dict, "step"), "step.")
    models = _records(Model, document, "models")
    pairs = _records(Pair, document, "pairs")
    _check(head["default"], places, models, pairs)
    return Profile(
        **head,
        devices=tuple(Device(p.name, p.role, p.label, "virtual") for p in places),
        hardware=_record(Hardware, _value(document["hardware"], dict, "hardware"), "hardware."),
        models=models,
        pairs=pairs,
        sample_us=round(1e3 * step.sample_ms),
        communicate_us=round(1e3 * step.communicate_ms),
    )


def _records(kind: type[Record], document: Table, key: str) -> dict[str, Record]:
    rows = _value(document[key], dict, key)
    return {
        name: _record(kind, _value(row, dict, f"{key}.{name}"), f"{key}.{name}.")
        for name, row in rows.items()
    }


def _record(kind: type[Record], table: Table, where: str) -> Record:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)]  # pyright: ignore[reportArgumentType] - always one of the dataclasses above
    _keys(table, set(names), where)
    return kind(**{name: _value(table[name], hints[name], where + name) for name in names})


def _keys(table: Table, expected: set[str], where: str) -> None:
    if missing := sorted(expected - set(table)):
        raise UsageError(f"{where}{missing[0]} is missing")
    if unknown := sorted(set(table) - expected):
        raise UsageError(f"{where}{unknown[0]} is not a key; those there are: {', '.join(sorted(expected))}")


def _value(value: Any, kind: type[Any], where: str) -> Any:
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise UsageError(f"{where} is {value!r}; it must be of type {kind.__name__}")
    if isinstance(value, (int, float)) and not 0 < value < float("inf"):
        raise UsageError(f"{where} is {value}; it must be more than 0")
    if value in ("", [], {}):
        raise UsageError(f"{where} is empty")
    return value


def _check(
    default: str, places: list[_Place], models: Mapping[str, Model], pairs: Mapping[str, Pair]
) -> None:
    """Hold what no single value shows: names that refer to each other, and who lives where."""
    roles = sorted(place.role for place in places)
    if roles != ["drafter", "target"]:
        raise UsageError(
            f"devices have the roles {', '.join(roles)}; there must be one drafter and one target"
        )
    for name, model in models.items():
        if model.dtype not in ELEMENT_BYTES:
            raise UsageError(
                f"models.{name}.dtype is {model.dtype!r}; choose one of {', '.join(ELEMENT_BYTES)}"
            )
    if default not in pairs:
        raise UsageError(f"default is {default!r}; choose one of {', '.join(pairs)}")
    for name, pair in pairs.items():
        for place in places:
            model = pair.drafter if place.role == "drafter" else pair.target
            if model not in models:
                raise UsageError(f"pairs.{name}.{place.role} is {model!r}; choose one of {', '.join(models)}")
            if models[model].gpus != place.gpus:
                raise UsageError(
                    f"pairs.{name}.{place.role} is {model}, on {models[model].gpus} GPUs; {place.name} has {place.gpus}"
                )
