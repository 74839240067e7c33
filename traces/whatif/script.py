"""A recording as the models of a virtual cluster, and the rows of a replay as rows of its run.

The tokens are numbered anew, in the order of their first use: a forward over a small vocabulary is
fast, and unknown tokens need ids of their own, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.simulate.oracle import Source
from specscope.engine.simulate.recorded import recorded_pair
from specscope.engine.trace.events import Chain, Commit, Decision, Forked, Header
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.facts.imported import NO_TOKEN, UNKNOWN_TEXT
from specscope.traces.facts.joined import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from specscope.engine.methods import Method
    from specscope.engine.trace.events import Top
    from specscope.traces.facts.joined import JoinedRound
    from specscope.traces.whatif.recording import RecordedOutput, RecordedRun

CONTEXT = 1 << 20
_BEYOND = 64
"""Tokens that the last drafts may reach beyond an output whose largest length is unknown."""
_PROMPT, _WRONG, _END = 0, 1, 2
"""Ids of an unknown prompt, of a wrong draft, and of the last token of an output that ended."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a cluster needs to replay a recording."""

    recording: RecordedRun
    prompts: tuple[tuple[int, ...], ...]
    tokens: Source
    """Models that repeat the outputs and drafts, in the new numbers."""
    pair: Pair
    limits: Limits
    known: dict[int, int]
    """New number -> recorded token id."""
    drawn: set[tuple[int, ...]]
    """Filled by a replay: drafted tokens for which it drew how sure the drafter is."""
    finished: tuple[tuple[int, ...], ...] = ()
    """Outputs of other runs that the recorded run drafted from, in the new numbers."""

    def restored(self, replay: Trace) -> Trace:
        """Return a replay with the recorded ids, texts and probabilities."""
        recorded, outputs = self.recording.trace, self.recording.outputs
        known = {i for output in outputs for i in (*output.prompt, *output.target)}
        known |= {d.token for output in outputs for d in output.tests.values()}
        known |= {i for d in recorded.documents for i in d.tokens}
        trace = replace(
            replay,
            header=self._header(replay.header),
            decisions=[self._decision(d, joined(replay).of(d)) for d in replay.decisions],
            commits=[self._commit(c) for c in replay.commits],
            documents=[replace(d, tokens=tuple(map(self._recorded, d.tokens))) for d in replay.documents],
            forks=self._forks(replay.forks),
            chains=[self._chain(c) for c in replay.chains],
            pieces={i: recorded.pieces[i] for i in sorted(known) if i in recorded.pieces},
        )
        assert replay.footer is not None, "the replay has ended"
        texts = recorded.footer.texts if recorded.footer else ()
        reasons = recorded.footer.reasons if recorded.footer else ()
        trace.footer = replace(
            replay.footer, texts=texts or ("",) * len(outputs), reasons=reasons or ("",) * len(outputs)
        )
        return trace

    def _header(self, replay: Header) -> Header:
        recorded = self.recording.trace.header
        kept = {name: recorded.environment[name] for name in ("pair", "head") if name in recorded.environment}
        return replace(
            replay,
            prompts=recorded.prompts or ("",),
            prompt_ids=recorded.prompt_ids or ((),),
            sampling=recorded.sampling,
            limits=recorded.limits,
            target_path=recorded.target_path,
            drafter_path=recorded.drafter_path,
            environment={**replay.environment, "pair": "recorded", **kept},
            lossless=recorded.lossless,
        )

    def _recorded(self, token: int) -> int:
        return self.known.get(token, NO_TOKEN)

    def _index(self, sequence: int, position: int) -> int:
        return position - len(self.prompts[sequence])

    def _commit(self, c: Commit) -> Commit:
        output, index = self.recording.outputs[c.sequence], self._index(c.sequence, c.position)
        position = len(output.prompt) + index
        return replace(c, position=position, token=output.tokens[index], text=output.texts[index])

    def _forks(self, forks: Iterable[Forked]) -> list[Forked]:
        """Return a replay's guesses; those of the run's own settings are the recorded ones."""
        recorded = defaultdict[tuple[int, int, int], deque[Forked]](deque)
        for f in self.recording.trace.forks if self.recording.own else ():
            recorded[f.step, f.sequence, f.place].append(f)
        rows = list[Forked]()
        for f in forks:
            same = recorded[f.step, f.sequence, f.place]
            token, q = (same[0].token, same.popleft().q) if same else (self._recorded(f.token), f.q)
            rows.append(replace(f, token=token, q=q))
        return rows

    def _chain(self, c: Chain) -> Chain:
        output = self.recording.outputs[c.sequence]
        return replace(c, position=len(output.prompt) + self._index(c.sequence, c.position))

    def _decision(self, d: Decision, one: JoinedRound) -> Decision:
        new, drafted = self.recording.new, not one.copied
        output, index = self.recording.outputs[d.sequence], self._index(d.sequence, d.position)
        kept: dict[str, Any] = {
            "position": len(output.prompt) + index,
            "rule": new.rule if new and drafted and d.rule == "match" else d.rule,
            "p": None,
            "q": None,
            "u": None,
            "top_p": (),
            "top_q": (),
        }
        test = output.tests.get(index)
        if d.node >= 0 > d.draft_span:
            token = self._recorded(d.token)
        elif d.outcome == "discarded" or not 0 <= index < len(output.target):
            token = NO_TOKEN
        elif d.outcome == "rejected":
            token = test.token if test and test.token != output.target[index] else NO_TOKEN
        else:
            token = output.target[index]
        if test and test.token == token != NO_TOKEN and d.outcome != "discarded":
            kept |= {"p": test.p, "q": test.q, "top_p": test.top_p, "top_q": test.top_q}
        return replace(d, token=token, **kept)


def script_of(recording: RecordedRun, method: Method, context: int = 0) -> Script:
    """Return the script of a recording for a method.

    How sure the drafter is, is its draft's q, or its largest probability where the method asks for
    that. Prompts have so many tokens of context, the recorded ones if 0.
    """
    header = recording.trace.header
    largest = any(setting.role == "doubt" for setting in method.settings())
    fresh = count(_END + 1)
    numbers: defaultdict[int, int] = defaultdict(fresh.__next__)

    def renumbered(tokens: Iterable[int]) -> tuple[int, ...]:
        """Return new numbers, for each unknown token another one."""
        return tuple(next(fresh) if token == NO_TOKEN else numbers[token] for token in tokens)

    prompts = tuple(renumbered(output.prompt) or (_PROMPT,) for output in recording.outputs)
    if context:
        prompts = tuple(((_PROMPT,) * context + prompt)[-context:] for prompt in prompts)
    texts = [renumbered(output.target) for output in recording.outputs]
    ends = {int(token) for token in header.limits.get("eos", ())}
    for i, output in enumerate(recording.outputs):
        if output.ended and output.tokens[-1] not in ends:
            last = len(output.tokens) - 1
            texts[i] = (*texts[i][:last], _END, *texts[i][last + 1 :])
    finished = tuple(map(renumbered, _finished(recording)))
    eos = (_END, *sorted(numbers[t] for t in ends if t in numbers))
    longest = max(len(output.tokens) for output in recording.outputs)
    most = max(longest, int(header.limits.get("max_new_tokens", longest + _BEYOND)))
    rows = Trace(replace(header, prompt_ids=prompts, limits={"eos": eos}, sampling={"seed": 0}))
    for i, output in enumerate(recording.outputs):
        choices = {at: _numbered(top, renumbered) for at, top in output.choices.items()}
        for row in _rows(i, output, len(prompts[i]), texts[i], choices, largest=largest):
            rows.add(row)
        for row in _strayed(recording.trace, i, output, len(prompts[i]), largest=largest):
            rows.add(row)
    pair = Pair(f"recorded run {header.run_id}", Path(), Path(), NO_TEXTS, next(fresh), CONTEXT, eos)
    drawn = set[tuple[int, ...]]()
    source = Source(recorded_pair(rows, doubts=True, drawn=drawn), f"recorded run {header.run_id}")
    known = {new: old for old, new in numbers.items()}
    return Script(recording, prompts, source, pair, Limits(most), known, drawn, finished)


def _finished(recording: RecordedRun) -> Iterator[tuple[int, ...]]:
    """Yield the finished texts that a run began with: no outputs of its own sequences."""
    trace = recording.trace
    own = {tuple(output.tokens) for output in recording.outputs} if len(recording.outputs) > 1 else set()
    yield from (d.tokens for d in trace.documents if trace.forecasts and d.tokens not in own)


def _numbered(top: Top, renumbered: Callable[[Iterable[int]], tuple[int, ...]]) -> Top:
    return tuple(zip(renumbered(token for token, _ in top), (q for _, q in top), strict=True))


def _rows(
    sequence: int,
    output: RecordedOutput,
    start: int,
    text: tuple[int, ...],
    choices: Mapping[int, Top],
    *,
    largest: bool,
) -> Iterator[Commit | Decision]:
    for index, (token, right) in enumerate(zip(text, output.agrees, strict=True)):
        position, draft = start + index, token if right else _WRONG
        yield Commit(1, sequence, position, token, "plain", "", 0)
        outcome = "accepted" if right else "rejected"
        test = output.tests.get(index)
        q = _certainty(test, largest=largest) if test else None
        top = choices.get(index, ())
        decided = (draft, None, q, None, "match", outcome, -1, -1)
        yield Decision(1 + index, sequence, 0, -1, position, *decided, top_q=top)


def _strayed(
    trace: Trace, sequence: int, output: RecordedOutput, start: int, *, largest: bool
) -> Iterator[Decision]:
    """Yield the drafts after a wrong one, with the step of its decision in `_rows`: q counts."""
    shift = start - len(output.prompt)
    wrong = {d.step: i for i, d in output.tests.items() if d.outcome == "rejected" and not output.agrees[i]}
    for d in trace.decisions:
        if d.sequence == sequence and d.outcome == "discarded" and d.step in wrong:
            q = _certainty(d, largest=largest)
            yield replace(d, step=1 + wrong[d.step], position=d.position + shift, token=_WRONG, q=q)


def _certainty(d: Decision, *, largest: bool) -> float | None:
    return d.top_q[0][1] if largest and d.top_q else d.q


NO_TEXTS: Any = SimpleNamespace(
    added_tokens_decoder={},
    all_special_ids=(),
    backend_tokenizer=SimpleNamespace(decoder=None),
    clean_up_tokenization_spaces=False,
    convert_ids_to_tokens=lambda _: UNKNOWN_TEXT,
    decode=lambda *_, **__: "",
)
"""A tokenizer without texts: the texts of a replay are the recorded ones."""
