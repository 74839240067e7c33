"""The registry of methods: each file of this folder registers one, under its file name.

`registry.py` and `common.py` are no methods.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from specscope.engine.drafting.planner import Best, Plan
from specscope.engine.errors import UsageError, shown
from specscope.engine.layout import Layout, Separate
from specscope.engine.run.run import Run
from specscope.engine.schema import WORDS, bounds
from specscope.engine.types import check_choice, check_range, check_text


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts about a cluster that a method's `plan` may use."""

    context: int
    """Positions that all models of the pair support."""
    depth: int
    """Layers of the drafter; 0 without a drafter, or if no model computes its tokens."""
    devices: int
    """Devices that can share a drafter's layers."""
    drafters: int
    servers: tuple[int, ...]
    """Target servers that fit beside 0, 1, 2, ... drafters."""
    c: Callable[[], float]
    """() -> T(target) / T(drafter), one row each; the first call may measure it."""
    stages: Callable[[int], int]
    """Stages asked for (0: the default) -> devices that the target's layers are split over; raises
    UsageError if that is impossible."""
    head_levels: Callable[[str], int]
    """Head kind -> levels that the pair's head of this kind can draft, 0 for any number; raises
    UsageError without such a head."""
    planned: Callable[[Mapping[str, Any], Best], Plan | None]
    """(settings of runs that measure the method, the choice) -> the chosen draft; None if drafts
    are not planned here: in virtual time, with a toy target, or after a cancellation."""


Decode = Callable[["Run", Any], Awaitable[None]]
METHODS: dict[str, Method] = {}


Role = Literal["", "length", "lookahead", "copies", "schedule", "cut", "doubt", "picks", "devices", "shape"]
"""What a setting is to the formulas of speed (`specscope.traces.judge.advice`) and to replays.

`length`: tokens or levels of a draft; `lookahead`: tokens of a server's draft; `copies`: tokens of
a copied draft; `schedule`: adapts the length; `cut`: ends a draft after a token that is less
probable; `doubt`: ends it where all tokens are; `picks`: how tokens are chosen; `devices`: how many
work at once; `shape`: a drafted level is not one forward; empty: no formula has it.
"""


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    auto: str = "",
    lossy: tuple[str, ...] = (),
    paper: Any = None,
    role: Role = "",
) -> Any:
    """Declare one field of a Config; the playground shows it as a control.

    Args:
        default: Default value.
        doc: One sentence that describes the setting.
        low: Smallest number allowed.
        high: Largest number allowed; for free text, the largest number of characters.
        choices: Allowed texts.
        auto: Meaning of the value 0, in a word or two; the method's `plan` replaces 0.
        lossy: Choices that change the output distribution; runs with such a choice are marked.
        paper: The value that replaces a planned default where nothing is planned.
        role: See `Role`.
    """
    metadata = {"doc": doc, "low": low, "high": high, "choices": choices, "auto": auto, "lossy": lossy}
    return dataclasses.field(default=default, metadata={**metadata, "paper": paper, "role": role})


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a method's Config, with what a control for it needs."""

    name: str
    type: type
    default: Any
    doc: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    auto: str
    lossy: tuple[str, ...] = ()
    paper: Any = None
    role: Role = ""

    @property
    def free_text(self) -> bool:
        return self.type is str and not self.choices

    def parse(self, value: Any) -> Any:
        """Convert a value to the field's type and check it; UsageError if it does not fit."""
        value = self._convert(value)
        if self.choices:
            check_choice(f"{self.name} is {shown(value)}", value, self.choices)
        if self.free_text:
            self._check_text(value)
        if self.low is not None:
            check_range(self.name, value, self.low, self.high, zero=self.auto)
        return value

    def _check_text(self, text: str) -> None:
        if self.high is not None and len(text) > self.high:
            raise UsageError(
                f"{self.name} has {len(text):,} characters; it must have at most {self.high:,}; shorten it"
            )
        check_text(self.name, text)

    def _convert(self, value: Any) -> Any:
        wrong = UsageError(f"{self.name} is {shown(value)}; it must be {self.allowed}")
        if self.type is bool:
            words = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}
            if isinstance(value, bool):
                return value
            if str(value).lower() not in words:
                raise wrong
            return words[str(value).lower()]
        if isinstance(value, bool):
            raise wrong
        if self.type is str:
            if not isinstance(value, str):
                raise wrong
            return value
        try:
            number = self.type(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong from None
        if self.type is int and isinstance(value, float) and number != value:
            raise wrong
        return number

    @property
    def allowed(self) -> str:
        """What the value must be, as a message says it."""
        low = self.low if self.type in (int, float) else None
        ends = "" if low is None else f" of {bounds(low, self.high)}"
        return f"{WORDS[self.type]}{ends}{f', or 0 ({self.auto})' if self.auto else ''}"


def settings_of(config: type) -> tuple[Setting, ...]:
    """Return the fields of a dataclass that are declared by `setting`."""
    hints, declared = get_type_hints(config), [f for f in dataclasses.fields(config) if f.metadata]
    return tuple(Setting(f.name, hints[f.name], f.default, **f.metadata) for f in declared)


@dataclass(frozen=True, slots=True)
class Method:
    """One method as the rest of the program sees it."""

    key: str
    title: str
    source: str
    summary: str
    """First line of the module's docstring."""
    uses: tuple[str, ...]
    baseline: bool
    Config: type
    decode: Decode
    layout: Callable[[Any], Layout]
    batched: bool
    plain: Mapping[str, Any]
    """For a method for batches: settings with which it drafts nothing, the baseline of a batch."""
    plan: Callable[[Any, Situation], Any]
    """(Config, Situation) -> Config without `auto` values, checked against the cluster."""

    def settings(self) -> tuple[Setting, ...]:
        return settings_of(self.Config)

    @property
    def length(self) -> str:
        """The name of its draft length, that of a drafter before that of copies; may be empty."""
        names = {s.role: s.name for s in self.settings()}
        return next((names[role] for role in ("length", "lookahead", "copies") if role in names), "")

    def lossless(self, cfg: Any) -> bool:
        return not any(getattr(cfg, s.name) in s.lossy for s in self.settings())

    def configure(self, values: Mapping[str, Any]) -> Any:
        """Make a Config, with defaults for what is not given; UsageError if a value is wrong."""
        if not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"config is {shown(values)}; it must map fields of {self.key} to values")
        settings = {s.name: s for s in self.settings()}
        for name in values:
            if name not in settings:
                fields = f"its fields are {', '.join(settings)}" if settings else "it has no fields"
                raise UsageError(f"{self.key} has no field {shown(name)}; {fields}", str(name))
        parsed = dict[str, Any]()
        for name, value in values.items():
            try:
                parsed[name] = settings[name].parse(value)
            except UsageError as error:
                error.setting = name
                raise
        return self.Config(**parsed)


def method(
    *,
    title: str,
    source: str,
    config: type,
    uses: tuple[str, ...] = ("target", "drafter"),
    baseline: bool = False,
    batched: bool = False,
    plain: Mapping[str, Any] | None = None,
    layout: Callable[[Any], Layout] | None = None,
    plan: Callable[[Any, Situation], Any] | None = None,
) -> Callable[[Decode], Decode]:
    """Register the decorated coroutine as the method of its file; one method per file.

    For the arguments see `Method`. By default the models in `uses` take turns, each on a device of
    its own.
    """
    in_turns = Layout(Separate(turns=True) if "drafter" in uses else Separate(drafters=0))

    def register(decode: Decode) -> Decode:
        key = decode.__module__.rpartition(".")[2]
        if key in METHODS:
            raise ValueError(f"{key}.py registers two methods: {METHODS[key].title!r} and {title!r}")
        summary = (sys.modules[decode.__module__].__doc__ or "").strip().splitlines()[0]
        METHODS[key] = Method(
            key,
            title,
            source,
            summary,
            uses,
            baseline,
            config,
            decode,
            layout or (lambda _: in_turns),
            batched,
            plain or {},
            plan or (lambda cfg, _: cfg),
        )
        return decode

    return register


def find(key: str) -> Method:
    if key not in METHODS:
        raise UsageError(f"there is no method {shown(key)}; choose one of {', '.join(sorted(METHODS))}")
    return METHODS[key]
