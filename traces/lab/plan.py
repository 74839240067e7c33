"""What a map covers: methods, places and devices, and what its numbers assume.

A target may take several devices. c is that of the target as it lies on them, so no time changes,
only the devices that are counted. `assets/examples/map.toml` has the usual plan.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from specscope.engine.drafting.pace import Rate
from specscope.engine.errors import UsageError
from specscope.engine.methods import find
from specscope.engine.simulate.profile import Profile
from specscope.engine.types import check_range
from specscope.traces.lab.axes import drafts_at_once
from specscope.traces.lab.sweep import ScriptedRunner

FILE = Path(__file__).resolve().parents[2] / "assets" / "examples" / "map.toml"


class Entrant(NamedTuple):
    """A method of the map."""

    key: str
    short: str
    form: str
    """Name of its closed form in `FORMS`."""
    drafters: int = 0
    """Devices of the drafter beside the target's; 0: it shares the target's."""
    given: Mapping[str, Any] = {}
    """Settings that are the same everywhere."""
    search: Mapping[str, int | str] = {}
    """Settings that are best by the closed form, see `best_settings`."""
    share: str = ""
    """Setting that gets what more devices are used for: targets, or devices of a drafter that
    shares the target's."""
    most: int = 0
    """Most of them; 0 for any number."""
    asked: bool = False
    """Whether it is raced only where it is named."""

    @property
    def title(self) -> str:
        return find(self.key).title

    def settings(self, share: int) -> dict[str, Any]:
        """Return the settings that are not searched, with this value of `share`."""
        return {**self.given, **({self.share: share} if self.share else {})}

    def shares(self, devices: int, target: int) -> int:
        """Return the value of `share` on so many devices, `target` for a target; 0: no room."""
        room = (devices - self.drafters) // target
        if not self.share:
            return min(room, 1)
        return min(room if self.drafters else devices * (room > 0), self.most or devices)

    def devices(self, shares: int, target: int) -> int:
        """Return the devices that it uses."""
        if self.share and not self.drafters:
            return max(shares, target)
        return shares * target + self.drafters


@dataclass(frozen=True, slots=True)
class MapPlan:
    """What the map covers."""

    profile: str
    ratios: tuple[int, ...]
    rates: tuple[float, ...]
    devices: tuple[int, ...]
    target_devices: int
    doubt: float
    misses: float
    later: float
    """Acceptance of a block's later places over that of its first one."""
    tokens: int
    seeds: int
    methods: tuple[Entrant, ...]
    recorded: tuple[str, ...] = ()
    """Runs whose drafts are replayed in place of drafts at a rate."""

    def check(self) -> None:
        for name, values in (("ratios", self.ratios), ("rates", self.rates), ("devices", self.devices)):
            check_range(f"the number of {name}", len(values), 1, 20)
        pairs, gpus = Profile.load(self.profile).pairs, len(Profile.load(self.profile).gpus)
        for ratio in self.ratios:
            if f"c{ratio}" not in pairs:
                known = ", ".join(name.removeprefix("c") for name in pairs)
                raise UsageError(f"c is {ratio}; the profile {self.profile} has drafters for c = {known}")
        for rate in self.rates:
            check_range("acceptance rate", rate, 0.01, 0.99)
        check_range("the target's devices", self.target_devices, 1, gpus)
        for count in self.devices:
            check_range("devices", count, max(2, self.target_devices), gpus * self.target_devices)
        check_range("doubt", self.doubt, 0, 1)
        check_range("misses", self.misses, 0.01, 10)
        check_range("later", self.later, 0, 1)
        self.script(self.ratios[0]).check(self.seeds)

    def script(self, c: int) -> ScriptedRunner:
        return ScriptedRunner(self.profile, f"c{c}", self.tokens, doubt=self.doubt, misses=self.misses)

    def rate(self, key: str, first: float) -> Rate:
        """Return the rates of a method's drafts, whose first place has this one."""
        return (first, first * self.later) if drafts_at_once(find(key)) else first

    @property
    def races(self) -> list[tuple[Entrant, int]]:
        """The methods of a place, each once for each value of its `share` that has room."""
        target = self.target_devices
        sizes = self.devices if target == 1 else (target, *self.devices)  # EasySpec on the target's own
        counts = ({e.shares(n, target): None for n in sizes} for e in self.methods)
        return [(e, n) for e, shares in zip(self.methods, counts, strict=True) for n in shares if n]

    @property
    def places(self) -> list[tuple[int, float]]:
        return [(ratio, rate) for ratio in self.ratios for rate in self.rates]


@cache
def default() -> MapPlan:
    plan = whole()
    return replace(plan, methods=tuple(entrant for entrant in plan.methods if not entrant.asked))


@cache
def whole() -> MapPlan:
    """Return the plan with the methods that must be named, too."""
    return plan_of(tomllib.loads(FILE.read_text(encoding="utf-8")))


def plan_of(given: Mapping[str, Any]) -> MapPlan:
    """Return the plan of a map's JSON, or of the file."""
    plan = dict[str, Any](given)
    for name in ("ratios", "rates", "devices", "recorded"):
        plan[name] = tuple(given.get(name, ()))
    plan["methods"] = tuple(Entrant(**row) for row in given["methods"])
    return MapPlan(**plan)


def assumptions(plan: MapPlan) -> list[str]:
    """Return what the numbers of a map assume, a sentence each."""
    target = "one device" if plan.target_devices == 1 else f"{plan.target_devices} devices"
    if plan.recorded:
        drafts = "Drafts, doubts and second choices are those of the recorded runs."
    else:
        drafts = (
            f"Each position is accepted independently, at one rate a, in {plan.seeds} runs of {plan.tokens} tokens. "
            f"Where the drafter is wrong, the target's token is not among its next F choices in (1 + F)^-{plan.misses:g} "
            f"of the cases. The drafter doubts at 1 - {1 - plan.doubt:g} a of its errors, "
            f"which is {1 - (1 - plan.doubt) * 0.8:.0%} at a = 0.8."
        )
    blocks = [find(e.key).title for e in plan.methods if drafts_at_once(find(e.key))]
    given = [f"{find(e.key).title} has {k} {v}" for e in plan.methods for k, v in e.given.items()]
    return [
        "Virtual time: a forward takes the same time for any number of rows; judging and sending cost nothing.",
        *drafts.replace(". ", ".\n").split("\n"),
        *(
            f"{title} drafts all places in one forward of 1 / c; the first is accepted at the rate a, later ones at "
            f"{plan.later:g} a."
            for title in blocks
        ),
        f"The target takes {target}; c is that of the target as it lies there. EasySpec's fuzzy drafts are as good as "
        "exact ones.",
        "; ".join([*given, "other settings are the best by the closed form, at the rate and c of the place"])
        + ".",
    ]
