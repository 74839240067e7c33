"""A toy world: probability tables as models, and a run without workers.

A toy run executes the real methods and the real acceptance rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp

import numpy as np
import torch

from specscope.engine.drafting.level import levels, next_level
from specscope.engine.drafting.schedule import Ask
from specscope.engine.drafting.suffix import Finished
from specscope.engine.drafting.tree import TreeShape, line, root
from specscope.engine.heads.drafting import Columns
from specscope.engine.run.run import Racing
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.sampling.rows import TargetRows
from specscope.engine.types import (
    NO_TREE,
    Damping,
    Draft,
    DraftToken,
    Prefix,
    RowRef,
    Sampling,
    Tree,
    Typical,
    Verdict,
)
from tests.engine.toy_draws import q_of

Logits = Callable[[Sequence[int]], torch.Tensor]
"""Context, all tokens so far -> logits, (V,) float64."""
PROMPT = (0, 1)
torch.set_num_threads(1)  # rows of 4 numbers


def rows(*probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


class Table:
    """Random logits that depend on the last tokens.

    Args:
        seed: Another seed, another table.
        vocabulary: V.
        sharpness: Scale of the logits.
        banned: Tokens of probability 0 in every context; which ones differs.
        order: Tokens of context that matter.
        tokens: The tokens of the V columns, if these are some of the target's tokens.
    """

    def __init__(
        self,
        seed: int,
        vocabulary: int = 4,
        sharpness: float = 1.0,
        banned: int = 0,
        order: int = 2,
        tokens: Sequence[int] = (),
    ) -> None:
        self.columns = Columns(torch.tensor(tokens) if tokens else None)
        self._seed, self._size, self._sharpness = seed, vocabulary, sharpness
        self._banned, self._order = banned, order
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, context: Sequence[int]) -> torch.Tensor:
        key = tuple(context[-self._order :])
        if key not in self._known:
            rng = np.random.default_rng([self._seed, *key])
            row = rng.normal(size=self._size) * self._sharpness
            row[rng.permutation(self._size)[: self._banned]] = -np.inf
            self._known[key] = torch.from_numpy(row)
        return self._known[key]


class Blurred(Table):
    """A drafter whose fuzzy forwards use another table."""

    def __init__(self, seed: int, vocabulary: int = 4, banned: int = 0) -> None:
        super().__init__(seed, vocabulary, banned=banned)
        self.fuzzy = Table(seed + 1000, vocabulary, sharpness=2.0, banned=banned)


class Parallel(Table):
    """A drafter with one row per level, independent of the tokens between (Medusa heads, masks)."""

    def __init__(self, seed: int, vocabulary: int = 4, banned: int = 0, tokens: Sequence[int] = ()) -> None:
        super().__init__(seed, vocabulary, banned=banned, tokens=tokens)
        self._later = [Table(seed + 100 * level, vocabulary, banned=banned) for level in range(1, 8)]

    def level(self, context: Sequence[int], level: int) -> torch.Tensor:
        """Return the row of the token `level` positions after the next one."""
        return self(context) if level == 0 else self._later[level - 1](context)


def always_wrong(target: Table) -> Logits:
    """Return a drafter of tokens that the target never draws; the target must have banned some."""

    def logits(context: Sequence[int]) -> torch.Tensor:
        return torch.where(torch.isinf(target(context)), 0.0, -torch.inf).double()

    return logits


def warp_plainly(logits: torch.Tensor, sampling: Sampling) -> np.ndarray:
    """Process one row token by token, as a second opinion on `draws.process_logits`."""
    x = [v / sampling.temperature for v in logits.tolist()]
    order = sorted(range(len(x)), key=lambda i: -x[i])
    kept = order[: sampling.top_k] if sampling.top_k else order
    weight = {i: exp(x[i] - x[order[0]]) for i in kept}
    total, mass, p = sum(weight.values()), 0.0, np.zeros(len(x))
    for i in kept:
        if mass >= sampling.top_p:
            break
        mass += weight[i] / total
        p[i] = weight[i]
    return p / p.sum()


@dataclass(eq=False)
class Scores:
    """Rows of the target, as a method holds them."""

    run: ToyRun
    prefix: Prefix
    draft: Draft
    target: ToyTarget

    def __await__(self) -> Generator[None, None, Scores]:
        self.target.busy = True
        try:
            for _ in range(1 + self.target.ticks):
                yield
        finally:
            self.target.busy = False
        return self

    async def judge(
        self, draft: Draft, bonus: bool = True, skip: int = 0, typical: Typical | None = None, mode: str = ""
    ) -> Verdict:
        for _ in range(self.target.judging_ticks):
            await asyncio.sleep(0)
        assert draft.ids[: len(self.draft) - skip] == self.draft.ids[skip : skip + len(draft)], (
            "another draft"
        )
        tree = tuple(self.draft.ids), tuple(self.draft.parents)
        judgement = judge(
            read_rows(self.target.logits, tuple(self.prefix.tokens.tolist()), tree, skip, self.run.sampling),
            draft,
            lambda token: self.run.q_rows[token.q.row] if token.q else None,
            position=len(self.prefix) + skip,
            sampling=self.run.sampling,
            draws=self.run.draws,
            bonus=bonus,
            typical=typical,
        )
        return Verdict(**vars(judgement), sequence=0, draft=draft)


@dataclass
class ToySequence:
    """The one sequence of a toy run, as `Batch` and drafters use it."""

    x: Prefix
    end: int

    @property
    def done(self) -> bool:
        return len(self.x) >= self.end

    def remaining(self, prefix: Prefix) -> int:
        return self.end - len(prefix)


class ToyRun:
    """What a method sees of a run: x, drafter, target, commit, done."""

    def __init__(
        self,
        p: Logits,
        q: Logits,
        draws: Draws,
        sampling: Sampling,
        tokens: int,
        prompt: Sequence[int] = PROMPT,
        further: Sequence[Logits] = (),
    ) -> None:
        self.sequences = [ToySequence(Prefix(0, np.asarray(prompt, dtype=np.int64)), len(prompt) + tokens)]
        self.drafter = ToyDrafter(self, q)
        self.drafters = [self.drafter, *(ToyDrafter(self, other) for other in further)]
        self.target = ToyTarget(self, p)
        self.targets = [self.target]
        self.draws, self.sampling = draws, sampling
        self.q_rows: list[torch.Tensor] = []
        self.verdicts: list[Verdict] = []
        self.hits: list[bool] = []
        """Of the fans, whether there was a branch of the outcome."""
        self._output = slice(len(prompt), len(prompt) + tokens)
        self.finished, self._documents = Finished(), dict[tuple[int, ...], int]()

    @property
    def x(self) -> Prefix:
        return self.sequences[0].x

    @x.setter
    def x(self, x: Prefix) -> None:
        self.sequences[0].x = x

    @property
    def done(self) -> bool:
        return self.sequences[0].done

    @property
    def output(self) -> tuple[int, ...]:
        return self.text

    @property
    def text(self) -> tuple[int, ...]:
        return tuple(self.x.tokens[self._output].tolist())

    def document(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text))

    def record(self, tokens: tuple[int, ...]) -> int:
        return self._documents.setdefault(tokens, len(self._documents))

    def race(self) -> Racing:
        return Racing()

    @property
    def remaining(self) -> int:
        return self.sequences[0].remaining(self.x)

    def commit(self, verdict: Verdict, kept: Draft | None = None, pool: object = None) -> None:
        self.verdicts.append(verdict)
        self.x = self.x + verdict.emitted

    def keep(self, q: torch.Tensor) -> RowRef:
        """Keep a q row for judging."""
        self.q_rows.append(q)
        return RowRef("toy", len(self.q_rows) - 1)


@dataclass
class ToyDrafter:
    run: ToyRun
    logits: Logits
    ticks: int = 0
    """Turns of the event loop that a draft takes longer."""
    cut: int = 0
    """Tokens that the branches of a fan lack when the verdict is known."""

    async def propose(
        self,
        prefix: Prefix,
        n: int | Ask,
        sampled: bool = True,
        damping: Sequence[Damping] = (),
        begun: Draft | None = None,
    ) -> Draft:
        for _ in range(self.ticks):
            await asyncio.sleep(0)
        ask, begun = n if isinstance(n, Ask) else Ask(n), begun or Draft.empty()
        rest = ask._replace(tokens=ask.rest(begun))
        return begun + self.chain(prefix + begun, rest, sampled, damping[len(begun) :])

    def chain(self, prefix: Prefix, ask: Ask, sampled: bool, damping: Sequence[Damping]) -> Draft:
        tokens, context = list[DraftToken](), tuple(prefix.tokens.tolist())
        sampling, drawn = self.run.sampling, sampled and not self.run.sampling.greedy
        columns, size = getattr(self.logits, "columns", Columns()), len(self.run.target.logits(context))
        for i in range(ask.tokens):
            damped, logits = damping[i] if drawn and damping else None, self.logits
            row = logits.level(context[: len(prefix)], i) if isinstance(logits, Parallel) else logits(context)
            q = q_of(row, sampling if drawn else Sampling(1.0), damped)
            column = self.run.draws.choose(Key(len(context), "draft"), q) if drawn else int(q.argmax())
            token, probability = columns.token(column), float(q[column])
            kept = self.run.keep(columns.spread(q, size)) if drawn else None
            tokens.append(DraftToken(token, i - 1, kept, probability))
            context = (*context, token)
            if probability < ask.stop_below:
                break
        return Draft(tuple(tokens))

    def fan(
        self,
        prefix: Prefix,
        trunk: Draft,
        forks: Sequence[int],
        ask: Ask,
        sampled: bool = True,
        damping: Sequence[Damping] = (),
    ) -> ToyFan:
        """Start all branches. The one that is taken is drafted then, without its last `cut` tokens.

        A draw is a function of its key, so it does not matter when it is made.
        """
        starts = dict[tuple[int, int], Prefix]()
        for place, count in enumerate((*forks[: len(trunk)], forks[-1])):
            before = prefix + trunk[:place]
            best = self.logits(before.tokens.tolist()).argsort(descending=True, stable=True).tolist()
            others = [token for token in best if [token] != [*trunk[place : place + 1].ids]]
            starts |= {(place, token): before + (token,) for token in others[:count]}  # noqa: RUF005 - a Prefix
        kept = slice(max(0, ask.tokens - self.cut))
        return ToyFan(self.run, starts, lambda start: self.chain(start, ask, sampled, damping)[kept])

    async def draft_each(
        self, prefixes: Sequence[Prefix], shape: TreeShape, chain: bool = False
    ) -> list[Draft]:
        return [
            await (self.propose(prefix, shape.depth) if chain else self.grow(prefix, shape))
            for prefix in prefixes
        ]

    async def move(self, prefix: Prefix, to: ToyDrafter) -> None:
        """A table has no KV rows."""

    async def decode(self, prefix: Prefix, guesses: Draft, window: Tree) -> tuple[Draft, tuple[int, ...]]:
        """Decode greedily: the confirmed guesses, and one token more."""
        rows = rows_of(self.logits, prefix, guesses, window)
        judgement = judge(
            rows, guesses, lambda _: None, position=len(prefix), sampling=Sampling(), draws=self.run.draws
        )
        chain = tuple(DraftToken(token, i - 1) for i, token in enumerate(judgement.emitted))
        return Draft(chain), tuple(rows.argmax(-1).tolist())

    async def grow(
        self,
        prefix: Prefix,
        shape: TreeShape,
        sampled: bool = True,
        fuzzy: int = 1,
        calibrate: bool = True,
        masked_tail: int = 0,
    ) -> Draft:
        """Draft a tree; fuzzy levels use another table.

        A `Parallel` drafter has one row for all nodes of a level.
        """
        run, tokens, above, at = self.run, list[DraftToken](), [root(self.run.sampling, sampled)], [-1]
        columns, size = getattr(self.logits, "columns", Columns()), len(run.target.logits(prefix.tokens))
        contexts, paths = {-1: tuple(prefix.tokens.tolist())}, list[float]()
        for level in range(min(shape.depth, run.sequences[0].remaining(prefix))):
            exact = fuzzy == 1 or (calibrate and level == 0)
            logits = self.logits if exact else getattr(self.logits, "fuzzy", self.logits)
            if isinstance(logits, Parallel):
                rows = [logits.level(contexts[-1][: len(contexts[-1]) - masked_tail], level + masked_tail)]
            else:
                rows = [logits(contexts[node]) for node in at]
            (found,) = levels([torch.stack(rows)], shape, run.sampling, sampled=sampled)
            q = found.q
            nodes = next_level(
                found,
                above,
                shape,
                position=len(prefix) + level,
                sampling=run.sampling,
                draws=run.draws,
                sampled=sampled,
            )
            drawn = sampled and not run.sampling.greedy
            lines = {line(node.parent, q) for node in nodes} if drawn else ()
            kept = {i: run.keep(columns.spread(q[i], size)) for i in sorted(lines)}
            first = len(tokens)
            for node in nodes:
                token = columns.token(node.token)
                contexts[len(tokens)] = (*contexts[at[node.parent]], token)
                tokens.append(DraftToken(token, at[node.parent], kept.get(line(node.parent, q))))
            paths += [node.path for node in nodes]
            onward = shape.onward(nodes)
            above, at = [nodes[i] for i in onward], [first + i for i in onward]
            if not above:
                break
        stays = shape.kept(paths)
        number = {-1: -1} | {old: new for new, old in enumerate(stays)}
        return Draft(tuple(replace(tokens[i], parent=number[tokens[i].parent]) for i in stays))


@dataclass
class ToyFan:
    run: ToyRun
    starts: dict[tuple[int, int], Prefix]
    """By outcome: accepted tokens, and the target's own token."""
    branch: Callable[[Prefix], Draft]

    async def take(self, verdict: Verdict) -> Draft | None:
        assert verdict.own is not None
        start = self.starts.get((len(verdict.accepted), verdict.own))
        self.run.hits.append(start is not None)
        return start and self.branch(start)


@dataclass
class ToyTarget:
    run: ToyRun
    logits: Logits
    ticks: int = 0
    """Turns of the event loop that a forward takes longer."""
    judging_ticks: int = 0
    """The same for a judgement."""
    busy: bool = False

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        assert prefix.tokens.tolist() == self.run.x.tokens.tolist(), (
            "scores another prefix than the committed one"
        )
        return Scores(self.run, prefix, draft, self)

    async def verify(
        self, prefix: Prefix, draft: Draft, window: Tree | None = None, typical: Typical | None = None
    ) -> Verdict:
        verdict = await self.score(prefix, draft).judge(draft, typical=typical)
        if window is None:
            return verdict
        rows = rows_of(self.logits, prefix, draft, window)
        return replace(verdict, best=tuple(rows.argmax(-1).tolist()))

    async def verify_each(self, prefixes: Sequence[Prefix], drafts: Sequence[Draft]) -> list[Verdict]:
        return [await self.verify(*one) for one in zip(prefixes, drafts, strict=True)]


def rows_of(logits: Logits, prefix: Prefix, draft: Draft, window: Tree = NO_TREE) -> torch.Tensor:
    """Return rows after the prefix, each node of the draft and each row of a window, (R, V)."""
    start = tuple(prefix.tokens.tolist())
    rows = [logits(start)]
    for ids, parents in ((draft.ids, draft.parents), window):
        contexts = [start]
        for token, parent in zip(ids, parents, strict=True):
            contexts.append((*contexts[parent + 1], token))
            rows.append(logits(contexts[-1]))
    return torch.stack(rows)


# The executions of an enumeration ask again and again for the same rows.


@lru_cache(1 << 14)
def read_rows(
    logits: Logits, context: tuple[int, ...], tree: Tree, skip: int, sampling: Sampling
) -> TargetRows:
    """Return the target's rows from number `skip` on, as the acceptance rules read them."""
    draft = Draft(tuple(DraftToken(*node) for node in zip(*tree, strict=True)))
    prefix = Prefix(0, np.asarray(context, dtype=np.int64))
    return TargetRows(rows_of(logits, prefix, draft)[skip:], sampling)


@lru_cache(1 << 14)
def drafter_row(
    logits: Logits, context: tuple[int, ...], sampling: Sampling, damping: Damping | None
) -> torch.Tensor:
    return q_of(logits(context), sampling, damping)


Method = Callable[[ToyRun], Coroutine[None, None, None]]
