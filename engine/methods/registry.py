"""The list of methods: one file each in this folder, its name the key everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from engine.errors import UsageError, shown
from engine.types import Layout, Separate, check_range, check_text, number

if TYPE_CHECKING:
    from pathlib import Path

    from engine.run.run import Run


class Situation(Protocol):
    """What a method may know of where it will run, to choose what was left to it."""

    @property
    def c(self) -> float:
        """T(target) / T(drafter), one row each."""
        ...

    @property
    def depth(self) -> int:
        """Layers of the drafter; 0 without one, or where it has none."""
        ...

    @property
    def context(self) -> int:
        """Positions that the models know."""
        ...

    @property
    def devices(self) -> int:
        """How many devices may share a drafter's layers."""
        ...

    @property
    def drafters(self) -> int:
        """How many different drafters there are."""
        ...

    def servers(self, drafters: int) -> int:
        """Return how many target servers there is room for beside so many drafters."""
        ...

    def stages(self, asked: int) -> int:
        """Return over how many devices a target is split by its layers: as many as asked for, or a usual number for 0.

        Raises:
            UsageError: There are fewer devices or layers, or no target can be split here.
        """
        ...

    def head(self, kind: str) -> HeadLimits:
        """Return the drafting head of a kind.

        Raises:
            UsageError: There is none, or it does not fit the target.
        """
        ...


class HeadLimits(Protocol):
    """What a method may know of a drafting head."""

    @property
    def levels(self) -> int:
        """Tokens it was trained to draft one after the other; 0 where any number will do."""
        ...

    @property
    def path(self) -> Path:
        """Where it lies."""
        ...


Decode = Callable[["Run", Any], Awaitable[None]]
METHODS: dict[str, Method] = {}


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    auto: str = "",
    lossy: tuple[str, ...] = (),
) -> Any:
    """Declare one field of a Config; it becomes a control in the playground.

    Args:
        default: Its value unless set.
        doc: One sentence in the words of the field.
        low: Smallest number allowed.
        high: Largest number allowed; for a text without choices, the most characters.
        choices: The texts allowed.
        auto: What the value 0 stands for, in a word or two: the method's plan replaces it.
        lossy: Those of the choices that change the distribution of the text; runs with one are marked.
    """
    metadata = {"doc": doc, "low": low, "high": high, "choices": choices, "auto": auto, "lossy": lossy}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a method's Config, as the playground and the command line see it."""

    name: str
    type: type
    default: Any
    doc: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    auto: str
    lossy: tuple[str, ...] = ()

    @property
    def free_text(self) -> bool:
        """Whether a person writes what they like."""
        return self.type is str and not self.choices

    def parse(self, value: Any) -> Any:
        """Return the value in the field's type, checked.

        Raises:
            UsageError: It is of another type or out of range.
        """
        value = self._convert(value)
        if self.choices and value not in self.choices:
            raise UsageError(f"{self.name} is {shown(value)}; choose one of {', '.join(self.choices)}")
        if self.free_text:
            self._check_text(value)
        if self.low is not None and not (self.auto and value == 0):
            check_range(self.name, value, self.low, self.high)
        return value

    def _check_text(self, text: str) -> None:
        if self.high is not None and len(text) > self.high:
            raise UsageError(
                f"{self.name} has {len(text):,} characters; it must have at most {self.high:,}; shorten it"
            )
        check_text(self.name, text)

    def _convert(self, value: Any) -> Any:
        wrong = UsageError(f"{self.name} is {shown(value)}; it must be {self._wanted()}")
        if self.type is bool:
            named = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}
            if isinstance(value, bool):
                return value
            if str(value).lower() not in named:
                raise wrong
            return named[str(value).lower()]
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

    def _wanted(self) -> str:
        """Return what a value must be, in words."""
        kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[self.type]
        bounds = [
            f"{side} {number(bound)}"
            for side, bound in (("at least", self.low), ("at most", self.high))
            if bound is not None and self.type in (int, float)
        ]
        return " ".join([kind, *(["of", " and ".join(bounds)] if bounds else [])])


@dataclass(frozen=True, slots=True)
class Method:
    """Everything the app, the tests and the docs may know about one method."""

    key: str
    title: str
    source: str
    summary: str
    """First line of the module's docstring."""
    uses: tuple[str, ...]
    """The models it runs: `target`, `drafter`."""
    baseline: bool
    """Whether speed-ups are taken over it."""
    Config: type
    decode: Decode
    layout: Callable[[Any], Layout]
    """From a Config to the workers it runs on."""
    batched: bool
    """Whether one run decodes several prompts at once."""
    plan: Callable[[Any, Situation], Any]
    """Replaces what a Config leaves open."""

    def settings(self) -> tuple[Setting, ...]:
        """The fields of its Config, in order."""
        hints = get_type_hints(self.Config)
        return tuple(
            Setting(name=f.name, type=hints[f.name], default=f.default, **f.metadata)
            for f in dataclasses.fields(self.Config)
        )

    def lossless(self, cfg: Any) -> bool:
        """Whether a Config keeps the target's distribution: none of its fields is at a lossy choice."""
        return not any(getattr(cfg, s.name) in s.lossy for s in self.settings())

    def configure(self, values: Mapping[str, Any]) -> Any:
        """Return a Config with these fields set.

        Raises:
            UsageError: A field is unknown, of the wrong type or out of range.
        """
        known = {s.name: s for s in self.settings()}
        for name in values:
            if name not in known:
                fields = f"its fields are {', '.join(known)}" if known else "it has no fields"
                raise UsageError(f"{self.key} has no field {shown(name)}; {fields}")
        return self.Config(**{name: known[name].parse(value) for name, value in values.items()})


def method(
    *,
    title: str,
    source: str,
    config: type,
    uses: tuple[str, ...] = ("target", "drafter"),
    baseline: bool = False,
    batched: bool = False,
    layout: Callable[[Any], Layout] | None = None,
    plan: Callable[[Any, Situation], Any] | None = None,
) -> Callable[[Decode], Decode]:
    """Register the coroutine below under its file's name; a file holds exactly one.

    `layout` is what it runs on, given its Config; without one, a device for each model it uses. `plan` completes a
    Config whose settings have an `auto` value.
    """
    one_each = Layout(Separate(drafters=int("drafter" in uses)))

    def register(decode: Decode) -> Decode:
        import sys

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
            layout or (lambda _: one_each),
            batched,
            plan or (lambda cfg, _: cfg),
        )
        return decode

    return register


def find(key: str) -> Method:
    """Return the method of that key.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    if key not in METHODS:
        raise UsageError(f"there is no method {shown(key)}; choose one of {', '.join(sorted(METHODS))}")
    return METHODS[key]
