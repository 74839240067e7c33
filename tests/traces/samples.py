"""Small simulated traces: `sample_trace("speculative")`.

A target forward takes 10 ms and 0.2 ms per row, a drafter forward 3 ms, the host 0.05 ms between
jobs. The outcomes of drafts follow from a seed, so a sample is the same every time.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

import specscope
from specscope.engine.drafting.copy import Copier
from specscope.engine.trace import events
from specscope.engine.trace.events import Commit, Decision, Device, Event, Header, Round, Routed, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model

MS = 1_000_000
KINDS = ("autoregressive", "speculative", "pearl", "llma", "shared", "tree")
"""`shared` is speculative decoding with both models on one device."""
NO_DRAFTER = ("autoregressive", "llma")

_TEXTS = ' the| cat| sat| <b>on</b>| a| déjà| vu|\n| "mat"| 猫|,| and| purred|.|&'
WORDS = tuple(_TEXTS.split("|"))
PROMPT = (1, 12, 4, 9, 3)
DOCUMENT = (1, 2, 3, 4, 5, 10, 1, 12, 11, 8, 13, 6, 7)
SHAPE = (-1, -1, -1, 0, 0, 1, 3, 3, 4)
"""The parents of a sampled tree's nodes, three in each of three levels."""
TITLES = {
    "autoregressive": "Autoregressive",
    "speculative": "Speculative decoding",
    "pearl": "PEARL",
    "llma": "LLMA",
    "tree": "Token tree",
}


class _Draft(NamedTuple):
    """A drafted token, its span (-1 for a copy), and whether the target will accept it."""

    token: int
    span: int
    good: bool
    q: float


class _Simulation:
    def __init__(self, kind: str, tokens: int, gamma: int, acceptance: float, group: str) -> None:
        self.random = random.Random(f"{kind} {tokens} {gamma} {acceptance}")
        self.tokens, self.gamma, self.acceptance = tokens, gamma, acceptance
        self.method = "speculative" if kind == "shared" else kind
        self.drafter, self.target = ("gpu0", "gpu0") if kind == "shared" else ("gpu0", "gpu1")
        self.ids = count()
        self.step, self.now, self.position = 1, 0, len(PROMPT)
        self.known: set[int] = set()
        self.texts: list[str] = []
        self.events: list[Event] = [self.header(kind, group)]

    def header(self, kind: str, group: str) -> Header:
        if kind == "shared":
            devices = (Device("gpu0", "drafter+target", "GPU 0 · drafter and target", "virtual"),)
        else:
            roles = ("target",) if kind in NO_DRAFTER else ("drafter", "target")
            gpus = {"drafter": 0, "target": 1}
            devices = tuple(
                Device(f"gpu{gpus[role]}", role, f"GPU {gpus[role]} · {role}", "virtual") for role in roles
            )
        config = {"llma": {"copy": self.gamma}, "tree": {"width": 3, "depth": 3}, "autoregressive": {}}
        return Header(
            run_id=f"sample-{kind}",
            created="2025-01-02T03:04:05.678+00:00",
            method=self.method,
            title=TITLES[self.method],
            config=config.get(kind, {"gamma": self.gamma}),
            prompts=("Tell me about the <cat> & the mat.",),
            prompt_ids=(PROMPT,),
            sampling={"temperature": 0.8, "top_k": 0, "top_p": 1.0, "seed": 7},
            limits={"max_new_tokens": self.tokens, "stop": [], "eos": [0]},
            runtime="virtual",
            profile="sample-2xGPU",
            devices=devices,
            target_path="pairs/sample/target",
            drafter_path="" if kind in NO_DRAFTER else "pairs/sample/drafter",
            environment={"specscope": "0.1.0", "pair": "sample", "tokens": "scripted"},
            group=group,
        )

    @property
    def done(self) -> bool:
        return len(self.texts) >= self.tokens

    def work(self, kind: str, start: int, duration: int, rows: int, step: int | None = None) -> Span:
        model = "drafter" if kind == "draft" else "target"
        step = self.step if step is None else step
        device = self.drafter if model == "drafter" else self.target
        end = start + duration
        span = Span(next(self.ids), device, kind, start, end, model, step, 0, rows, self.position, "done")
        self.events.append(span)
        return span

    def prefill(self) -> None:
        self.now = self.fed(self.target, 0, 15 * MS, "target")
        if self.method not in NO_DRAFTER:
            start = self.now if self.drafter == self.target else 0
            self.now = max(self.now, self.fed(self.drafter, start, 6 * MS, "drafter"))

    def fed(self, device: str, start: int, duration: int, model: str) -> int:
        end = start + duration
        self.events.append(Span(next(self.ids), device, "prefill", start, end, model, 0, 0, 4, 0, "done"))
        return end

    def drafted(self, span: int, token: int, acceptance: float) -> _Draft:
        good = self.random.random() < acceptance
        return _Draft(token, span, good, round(self.random.uniform(0.2, 0.9), 4))

    def draft(self, start: int) -> tuple[list[_Draft], int]:
        """Draft gamma tokens from time `start`; return them and the time of the last one."""
        drafted: list[_Draft] = []
        for _ in range(self.gamma):
            span = self.work("draft", start, 3 * MS, 1)
            start = span.end
            drafted.append(self.drafted(span.id, self.random.randrange(1, len(WORDS)), self.acceptance))
        return drafted, start

    def verify(self, start: int, rows: int, kind: str = "verify") -> Span:
        return self.work(kind, start, 10 * MS + rows * MS // 5, rows)

    def judge(
        self, drafted: list[_Draft], unjudged: list[_Draft], span: Span, mode: str, bonus: bool
    ) -> bool:
        """Decide drafted tokens now, and commit; return whether all were accepted."""
        accepted = next((i for i, d in enumerate(drafted) if not d.good), len(drafted))
        for node, d in enumerate(drafted):
            fate = "accepted" if node < accepted else "rejected" if node == accepted else "discarded"
            self.decide(node, self.position + node, d, fate, span.id if fate != "discarded" else -1)
        own = "corrected" if accepted < len(drafted) else "bonus" if bonus else ""
        own = "plain" if own and not drafted else own
        new = [(d.token, "accepted") for d in drafted[:accepted]]
        if own:
            token = self.random.randrange(1, len(WORDS))
            self.decide(-1, self.position + accepted, _Draft(token, -1, True, 0.0), own, span.id)
            new.append((token, own))
        start = self.position
        emitted = self.commit(new)
        self.events.append(Round(self.step, 0, mode, len(drafted), accepted, emitted, self.now, span.id))
        if own or self.done:
            for i, d in enumerate(unjudged):
                self.decide(-1, start + len(drafted) + i, d, "discarded", -1)
        self.step += 1
        self.now += MS // 20
        return accepted == len(drafted)

    def commit(self, new: list[tuple[int, str]]) -> int:
        """Commit (token, origin) of a round; return how many there was room for."""
        emitted = new[: self.tokens - len(self.texts)]
        for token, origin in emitted:
            self.name(token)
            self.events.append(Commit(self.step, 0, self.position, token, origin, WORDS[token], self.now))
            self.texts.append(WORDS[token])
            self.position += 1
        return len(emitted)

    def decide(
        self, node: int, position: int, d: _Draft, outcome: str, verify: int, parent: int | None = None
    ) -> None:
        self.name(d.token)
        tested, copied = outcome in ("accepted", "rejected"), d.span < 0 and node >= 0
        p, rule = None if d.span >= 0 else 0.625, ""
        if tested:
            p = round(d.q * (1.05 if outcome == "accepted" else 0.3), 4)
            rule = "match" if copied else "ratio"
        elif outcome in ("corrected", "bonus", "plain"):
            rule = "target"
        if parent is None:
            parent = node - 1 if node >= 0 else -1
        other = d.token % (len(WORDS) - 1) + 1
        self.name(other)
        top, by_model = ((d.token, 0.5), (other, 0.25)), d.span >= 0
        u = round(self.random.random(), 4) if rule else None
        where = (self.step, 0, node, parent, position, d.token)
        drawn = (p, d.q if by_model else None, u, rule)
        tops = (top if rule else (), top if by_model else ())
        self.events.append(Decision(*where, *drawn, outcome, d.span, verify, *tops))

    def name(self, token: int) -> None:
        if token not in self.known:
            self.known.add(token)
            self.events.append(events.Piece(token, WORDS[token]))

    def autoregressive(self) -> None:
        while not self.done:
            span = self.verify(self.now, 1)
            self.now = span.end
            self.judge([], [], span, "plain", True)

    def speculative(self) -> None:
        while not self.done:
            drafted, ready = self.draft(self.now)
            span = self.verify(ready + MS // 20, len(drafted) + 1)
            self.now = span.end
            self.judge(drafted, [], span, "verify", True)

    def pearl(self) -> None:
        pending: list[_Draft] = []
        while not self.done:
            ahead, ready = self.draft(self.now)
            span = self.verify(self.now, len(pending) + 1, "verify" if pending else "pre-verify")
            self.now = max(ready, span.end) + MS // 20
            mode = "post-verify" if pending else "pre-verify"
            all_accepted = self.judge([*pending, *ahead[:1]], ahead[1:], span, mode, False)
            pending = ahead[1:] if all_accepted else []

    def tree(self) -> None:
        """Draft trees of one shape; of siblings, the first good one is accepted."""
        while not self.done:
            levels = [range(3), range(3, 6), range(6, 9)]
            drafted, ready = list[_Draft](), self.now
            for nodes in levels:
                span = self.work("draft", ready, 3 * MS, max(1, len(drafted) and 3))
                ready = span.end
                for token in self.random.sample(range(1, len(WORDS)), len(nodes)):
                    drafted.append(self.drafted(span.id, token, self.acceptance / 2))
            span = self.verify(ready + MS // 20, len(drafted) + 1)
            self.now = span.end
            self.judge_tree(drafted, span)

    def judge_tree(self, drafted: list[_Draft], span: Span) -> None:
        fates, path = dict[int, str](), list[int]()
        while children := [n for n, p in enumerate(SHAPE) if p == (path[-1] if path else -1)]:
            good = next((n for n in children if drafted[n].good), None)
            for node in children[: None if good is None else children.index(good)]:
                fates[node] = "rejected"
            if good is None:
                break
            fates[good] = "accepted"
            path.append(good)
        own, level = "corrected" if children else "bonus", [0, 0, 0, 1, 1, 1, 2, 2, 2]
        for node in [*fates, *(n for n in range(len(drafted)) if n not in fates)]:
            fate = fates.get(node, "discarded")
            verify = -1 if fate == "discarded" else span.id
            self.decide(node, self.position + level[node], drafted[node], fate, verify, SHAPE[node])
        token = self.random.randrange(1, len(WORDS))
        end = path[-1] if path else -1
        self.decide(-1, self.position + len(path), _Draft(token, -1, True, 0.0), own, span.id, end)
        emitted = self.commit([*((drafted[n].token, "accepted") for n in path), (token, own)])
        counts = (len(drafted), len(path), emitted)
        self.events.append(Round(self.step, 0, "verify", *counts, self.now, span.id))
        self.step += 1
        self.now += MS // 20

    def llma(self) -> None:
        """Copy from the prompt, the output and a document, after one matching token."""
        for token in (*PROMPT, *DOCUMENT):
            self.name(token)
        self.events.append(events.Document(0, DOCUMENT))
        copier = Copier([DOCUMENT], 1, self.gamma)
        while not self.done:
            out = [e.token for e in self.events if isinstance(e, Commit)]
            ids, source = copier.find(np.array([*PROMPT, *out]))
            drafted = [_Draft(t, -1, self.random.random() < self.acceptance, 0.5) for t in ids]
            span = self.verify(self.now, len(drafted) + 1)
            self.now = span.end
            if source:
                self.events.append(events.Copied(self.step, 0, *source, length=len(drafted)))
            self.judge(drafted, [], span, "verify" if drafted else "plain", True)

    def measure(self) -> None:
        """Add a load sample of every device each 20 ms; the second device has a power sensor."""
        for time in range(0, self.now, 20 * MS):
            for device in self.events[0].devices:
                share = round(self.random.random(), 3)
                power = 100 + 250 * share if device.name == "gpu1" else None
                self.events.append(events.Occupancy(device.name, time, share, 2**30 + time, power))

    def finish(self) -> list[Event]:
        ends = [e.end if isinstance(e, Span) else e.time for e in self.events if isinstance(e, Span | Commit)]
        self.events.append(events.Footer("done", ("length",), ("".join(self.texts),), max(ends)))
        return self.events


def sample_events(
    kind: str = "speculative", tokens: int = 24, gamma: int = 4, acceptance: float = 0.75, group: str = ""
) -> list[Event]:
    """Return the events of a sample in a run's order: header first, footer last."""
    simulation = _Simulation(kind, tokens, gamma, acceptance, group)
    simulation.prefill()
    getattr(simulation, simulation.method)()
    simulation.measure()
    return simulation.finish()


def sample_trace(
    kind: str = "speculative", tokens: int = 24, gamma: int = 4, acceptance: float = 0.75, group: str = ""
) -> Trace:
    """Return a sample; `kind` is one of KINDS."""
    return Trace.of(sample_events(kind, tokens, gamma, acceptance, group))


def read_file(path, **options):
    """Return the one trace of a file."""
    (trace,) = read_traces(path, **options).traces
    return trace


def recorded_loop(
    path, rounds, *, first="prefill", verify=6.0, draft=1.0, other=0.0, sequences=1, title="loop", **given
):
    """Record a loop on a made-up clock, and read it; times are in milliseconds.

    Args:
        path: The file.
        rounds: How many tokens each drafts, and how many are accepted.
        first: What decides the prompt's own token: `prefill`; `draft in the prefill`, which judges
            two drafts, too; or `decoding`.
        verify: Of a target forward.
        draft: Of a drafter forward.
        other: Of other work after each round.
        sequences: A round has one for each.
        title: The loop's name.
        given: Arguments of `round`.
    """
    sampling = {"temperature": 0 if not given else 0.7}
    rule = "match" if given else ""
    roles = ["drafter+target"]
    with specscope.record(path, method=title, devices=roles, sampling=sampling, rule=rule, target="t") as rec:
        for _ in range(sequences):
            rec.prompt("Hi", ids=[1, 2])
        rec.start(0)
        now, token = 10 * MS, count(10)
        prefill = rec.add("prefill", 0, now, rows=2, context=0, sequence=-1 if sequences > 1 else 0)
        ids = [next(token) for _ in range(3)]
        if first != "decoding":
            for i in range(sequences):
                judged = {"drafted": ids[:2], "accepted": 2} if "draft" in first else {}
                rec.round(emitted=ids if judged else ids[:1], verify=prefill, time=now, sequence=i, **judged)
        for drafted, accepted in rounds:
            many = {"sequence": -1} if sequences > 1 else {}
            for _ in range(drafted):
                rec.add("draft", now, now + int(draft * MS), rows=sequences, context=2, **many)
                now += int(draft * MS)
            end = now + int(verify * MS)
            rec.add("verify", now, end, rows=sequences * (drafted + 1), context=2, **many)
            now = end
            for i in range(sequences):
                ids = [next(token) for _ in range(accepted + 1)]
                judged = {"drafted": [*ids[:accepted], *[0] * (drafted - accepted)], "accepted": accepted}
                more = {name: [value] * drafted for name, value in given.items()}
                rec.round(**judged, emitted=ids, time=now, sequence=i, **more)
            if other:
                rec.add("other", now, now + int(other * MS))
                now += int(other * MS)
    return read_file(path)


def slowed(trace, factor: int):
    """Return a copy of a run that takes several times as long."""
    times = {"spans": ("start", "end"), "commits": ("time",), "rounds": ("time",)}
    slow = Trace(trace.header)
    for name, moments in times.items():
        rows = [
            replace(row, **{f: factor * getattr(row, f) for f in moments}) for row in getattr(trace, name)
        ]
        setattr(slow, name, rows)
    slow.decisions = trace.decisions
    slow.footer = replace(trace.footer, time=factor * trace.footer.time)
    return slow


def with_header(trace, **fields):
    """Return a copy of a run with other fields in its header."""
    return replace(trace, header=replace(trace.header, **fields))


def shown(trace, **options):
    """Return a run as the viewer's document has it."""
    return view_model([trace], **options)["runs"][0]


OPEN: dict[str, specscope.Cluster] = {}
"""Clusters of the bundled pair by profile, open until the tests end."""


def bundled(profile="pearl-4xA100"):
    """Return a cluster of the bundled pair in virtual time."""
    if profile not in OPEN:
        OPEN[profile] = specscope.open("bundled", runtime="virtual", profile=profile)
    return OPEN[profile]


def routed(trace: Trace, held: int = 16) -> Trace:
    """Return a trace whose target is a mixture: a row reads two experts, two rows read three."""
    rows = [
        Routed(span.id, min(held, 2 * span.rows - span.rows // 2), held)
        for span in trace.spans
        if span.model == "target" and span.kind != "prefill"
    ]
    return replace(trace, routed=rows)
