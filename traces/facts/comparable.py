"""Which runs may be compared: every ratio between runs uses a baseline of `comparisons`.

A group is the runs of one method: a single run, or one run per prompt or batch of prompts. The
baseline of a group is a group that drafts nothing under the same conditions. Where there is none,
the reason names the conditions that differ, and no view shows a number. `OtherLoad` is the load of
the machine by other programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from specscope.engine.methods import METHODS
from specscope.engine.servers.checks import ACCEPTED
from specscope.engine.trace.events import MEMBER, NO_DEVICES, OTHERS, TOO_BUSY
from specscope.engine.trace.header import SERVER
from specscope.traces.facts.imported import is_foreign, origin
from specscope.traces.facts.joined import joined
from specscope.traces.facts.requests import load_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace

Group: TypeAlias = "Sequence[Trace]"
Conditions: TypeAlias = dict[str, Any]
"""The conditions of a group, by name; a ratio needs equal ones."""


class Baseline(NamedTuple):
    """The baseline of a group, or the reason why it has none."""

    baseline: int | None
    reason: str
    """Empty with a baseline, and for a group that is shown alone."""


def comparisons(groups: Sequence[Group]) -> list[Baseline]:
    """Return the baseline of each group shown together, or the reason why it has none.

    Among several baselines under the same conditions, a method that is registered as the baseline
    has priority, then the first group.
    """
    baselines = {key for key, method in METHODS.items() if method.baseline}
    plain = [i for i, group in enumerate(groups) if _is_plain(group)]
    plain.sort(key=lambda i: groups[i][0].header.method not in baselines)
    known = [conditions(group) for group in groups]
    foreign = [any(is_foreign(trace.header) for trace in group) and len(groups) > 1 for group in groups]
    return [
        Baseline(None, "a run of another engine") if foreign[i] else _comparison(i, plain, known)
        for i in range(len(groups))
    ]


def differences(mine: Conditions, theirs: Conditions) -> list[str]:
    """Return the names of the conditions that differ; one that a group lacks is skipped."""
    return [name for name in mine if name in theirs and mine[name] != theirs[name]]


def conditions(group: Group) -> Conditions:
    """Return the conditions of a group by name; a condition that does not apply is left out.

    `drafter` is left out for a run without one, because plain decoding needs none, and `threads`
    for a recording that does not know them. Virtual times depend on profile, modelled pair and
    token source, measured times on machine, threads and the numbers of devices that a target is
    split over by tensors and of nodes.
    """
    headers = [trace.header for trace in group]
    if any(header.virtual for header in headers):
        timing = {
            "profile": _distinct(h.profile for h in headers),
            "modelled pair": _distinct(h.environment.get("profile_pair") for h in headers),
            "token source": _distinct(h.environment.get("tokens") for h in headers),
        }
    else:
        timing = {
            "machine": _distinct(map(_machine, headers)),
            **({"threads": threads} if (threads := _known(headers, "threads")) else {}),
            "ranks of the target (tp)": _distinct(h.environment.get("tp", 1) for h in headers),
            "nodes": _distinct(h.environment.get("nodes", 1) for h in headers),
            "layers of the target per device": _distinct(h.environment.get("stages") for h in headers),
        }
    drafters = [path for path in _distinct(h.drafter_path for h in headers) if path]
    return {
        "prompt": [prompt for h in headers for prompt in _prompts(h)],
        "target": _distinct(h.target_path for h in headers),
        **({"drafter": drafters} if drafters else {}),
        "clock": _distinct(h.runtime for h in headers),
        **timing,
        "sampling": [_distinct(map(_rule, headers)), _seeds(headers)],
        "arrivals": _distinct(load.arrivals if (load := load_of(h)) else () for h in headers),
        "batch size": max((batch_size(trace) for trace in group), default=1),
    }


def batch_size(trace: Trace) -> int:
    """Return how many sequences a run decoded at once, at most; 1 before its first round.

    Of a run under load, it is the most sequences of a forward.
    """
    if (load := load_of(trace.header)) is not None:
        return load.batch
    sequences = Counter(step for (_, step), one in joined(trace).items() if one.round)
    return max(sequences.values(), default=1)


def drafts(trace: Trace) -> bool:
    """Return whether anything was drafted.

    True for other engines' files, and for a server that does not count its drafts.
    """
    untold = trace.header.environment.get(SERVER, {}).get("unknown", ())
    if is_foreign(trace.header) or ACCEPTED in untold:
        return True
    by_model = any(s.model == "drafter" and s.kind != "prefill" for s in trace.spans)
    return by_model or any(r.drafted for r in trace.rounds)


def _comparison(i: int, plain: list[int], known: list[Conditions]) -> Baseline:
    """Return the comparison of group i with the plain groups, best ones first."""
    found = {k: differences(known[i], known[k]) for k in plain}
    baseline = next((k for k in plain if not found[k]), None)
    if baseline is not None or len(known) == 1:
        return Baseline(baseline, "")
    if known[i]["batch size"] > 1 and all(known[k]["batch size"] == 1 for k in plain):
        return Baseline(None, "no batched plain decoding among these runs")
    if not plain:
        return Baseline(None, "no plain decoding among these runs")
    return Baseline(None, f"different {', '.join(min(found.values(), key=len))}")


def _is_plain(group: Group) -> bool:
    """Return whether the runs have decoded tokens, all of them without drafts or a failure."""
    return bool(group) and all(t.commits and t.status != "failed" and not drafts(t) for t in group)


def _prompts(header: Header) -> list[Any]:
    """Return the token ids of each prompt; of a recording without them its text, else its run."""
    both = zip(header.prompt_ids, header.prompts, strict=True)
    return [ids or text or header.run_id for ids, text in both]


def _machine(header: Header) -> list[Any]:
    facts = header.environment.get("processor"), header.environment.get("gpus") or []
    if facts[0] is None:  # of a server on another machine its address is known
        host, _, _ = header.environment.get(SERVER, {}).get("address", "").rpartition(":")
        facts = (host, *facts[1:])
    return [*facts, sorted({d.kind for d in header.devices if "target" in d.role})]


def _known(headers: Sequence[Header], name: str) -> list[Any]:
    """Return the different values of a fact; a header without it has none."""
    return _distinct(h.environment[name] for h in headers if name in h.environment)


def _rule(header: Header) -> dict[str, Any]:
    """Return the sampling settings without the seed; at temperature 0 the others do nothing."""
    if header.sampling.get("temperature") == 0:
        return {"temperature": 0}
    return {k: v for k, v in header.sampling.items() if k != "seed" or not isinstance(v, int)}


def _seeds(headers: Sequence[Header]) -> list[int]:
    """Return the seed of the group's first sequence; further ones where sequence k lacks seed + k.

    Sequence i of a run draws with the run's seed + i. At temperature 0 there is no seed.
    """
    sampled = [h for h in headers if h.sampling.get("temperature") != 0]
    starts = [(h.sampling.get("seed"), len(h.prompt_ids)) for h in sampled]
    seeds = [seed + i for seed, count in starts if isinstance(seed, int) for i in range(count)]
    return _distinct(seed - k for k, seed in enumerate(seeds))


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Return the different values, which may not be hashable, in their order."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different


class OtherLoad(NamedTuple):
    """What other programs used on average."""

    used: float
    cores: int

    @property
    def text(self) -> str:
        return f"{self.used:.1f} of {self.cores} cores"

    @property
    def warning(self) -> str:
        if self.used < TOO_BUSY:
            return ""
        return f"Other programs used {self.text} during the run: the times may be wrong."


def other_load(trace: Trace) -> OtherLoad | None:
    """Return the load by other programs; None for a run without this row, such as a virtual one."""
    share = share_of_others((row.device, row.busy, row.time) for row in trace.occupancy)
    return of_cores(share, trace.header.environment.get("cores"))


def share_of_others(rows: Iterable[tuple[str, float, int]]) -> float | None:
    """Return the share of all cores that other programs used, by (device, busy, time) of a run.

    Processes that joined a recording are none of them: the load of a row of theirs is subtracted.
    """
    found = [row for row in rows if row[0] in NO_DEVICES]
    whole = next((row for row in found if row[0] == OTHERS), None)
    if whole is None:
        return None
    _, share, end = whole
    mine = sum(busy * time for device, busy, time in found if device == MEMBER and time <= end)
    return max(0.0, share - mine / end) if end else share


def lacks_load(trace: Trace) -> bool:
    """Return whether the load by other programs of a recorded loop with times is not recorded."""
    found = origin(trace.header)
    recorded = found is not None and found.recorded and not trace.header.virtual
    return recorded and bool(trace.spans) and other_load(trace) is None


def of_cores(share: object, cores: object) -> OtherLoad | None:
    if not isinstance(share, int | float) or not isinstance(cores, int):
        return None
    return OtherLoad(share * cores, cores)
