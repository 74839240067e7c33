"""Rows beside a draft that are not judged: their most probable tokens, and their cached rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.layout import Packing
from specscope.engine.simulate.oracle import Scripted
from specscope.engine.types import NO_TREE, Draft, DraftToken, Prefix, Sampling, Tree
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Judge, Load, Score
from tests.engine.methods.pairs import make_pair
from tests.engine.worker.harness import chains

PROMPT = (7, 8, 9, 10)
GUESSES = Draft((DraftToken(20), DraftToken(21, 0), DraftToken(22, -1)))
WINDOW: Tree = ((30, 31, 32, 33, 34), (-1, 0, -1, 2, 1))


GREEDY = Sampling()


def host(loader, sampling=GREEDY, vocab_size=97):
    worker = Host("worker")
    worker.handle(Load("target", loader))
    worker.handle(Begin(sampling, 1, 64, vocab_size, Packing()))
    return worker


@pytest.fixture(scope="module", params=["llama3-rope", "mistral-window"])
def loader(request, tmp_path_factory):
    pair, _ = make_pair(tmp_path_factory.mktemp("pair"), request.param, "other")
    return partial(load, str(pair.target_path), device="cpu", dtype=torch.float32, name="target")


def score(worker, tokens, draft, beside=NO_TREE, **more):
    """Return the judgement and the number of forwarded rows."""
    parents = tuple(p if p < 0 else p + len(draft) for p in beside[1])
    tree = (*draft.ids, *beside[0]), (*draft.parents, *parents)
    job = Score("target", (Prefix(0, np.array(tokens)),), (tree,), 1, (Judge(1, draft, True, 0),), **more)
    reply = worker.handle(job)
    return reply.value[0], reply.stamps[0].rows


def paths(tree):
    nodes: list[tuple[int, ...]] = []
    for token, parent in zip(*tree, strict=True):
        nodes.append((*(nodes[parent] if parent >= 0 else ()), token))
    return nodes


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=4)])
def test_every_row_has_the_best_token_of_its_own_path(loader, sampling):
    verdict, _ = score(host(loader, sampling), PROMPT, GUESSES, WINDOW, best=True)
    alone = []
    for path in [(), *paths((GUESSES.ids, GUESSES.parents)), *paths(WINDOW)]:
        fresh, _ = score(host(loader), (*PROMPT, *path), Draft())
        alone.append(fresh.own)
    assert verdict.best == tuple(alone)
    plain, _ = score(host(loader, sampling), PROMPT, GUESSES)
    assert (verdict.accepted, verdict.own, verdict.nodes) == (plain.accepted, plain.own, plain.nodes)
    assert plain.best == ()


def test_rows_of_a_window_that_become_text_are_reused_and_exact(loader):
    worker = host(loader)
    _, fed = score(worker, PROMPT, GUESSES, WINDOW, best=True)
    assert fed == len(PROMPT) + 3 + 5
    text = (*PROMPT, 30, 31, 34, 40)
    again, fed = score(worker, text, Draft(), WINDOW, best=True)
    assert fed == 1 + 5, "30, 31 and 34 were rows of the window"
    fresh, _ = score(host(loader), text, Draft(), WINDOW, best=True)
    assert again.best == fresh.best
    _, fed = score(worker, (*PROMPT, 30, 50, 51), Draft())
    assert fed == 2, "rows off the text are dropped, the others are kept"


def test_a_greedy_drafter_ignores_the_temperature_and_stays_in_the_targets_vocabulary():
    def next_token(path, _):
        return 15 if len(path) % 2 else 3

    worker = host(lambda: Scripted("target", next_token, 20), Sampling(1.0, seed=1), vocab_size=10)
    verdict, _ = score(worker, (1, 2, 3), Draft((DraftToken(0), DraftToken(3, 0))), greedy=True, best=True)
    assert (verdict.accepted, verdict.own) == ((0, 3), 0), (
        "15 is outside the target's vocabulary: the best token within it"
    )
    assert verdict.best == (0, 3, 0)
    kinds = [s.kind for s in worker.handle(
        Score("target", (Prefix(0, np.array((1, 2))),), (NO_TREE,), 2, (Judge(2, Draft(), True, 0),), greedy=True)
    ).stamps]  # fmt: skip
    assert kinds == ["draft"]


@pytest.mark.parametrize(("stop_below", "lengths"), [(0.0, (6, 3)), (0.5, (2, 3)), (1.1, (1, 1))])
def test_each_sequences_draft_ends_after_an_improbable_token(stop_below, lengths):
    class Unsure(Scripted):
        """Has equal probabilities after an 8, else one certain token."""

        def forward(self, cache, rows, want, *more, **options):
            out = super().forward(cache, rows, want, *more, **options)
            out.logits[np.array([rows.tokens[row] == 8 for row in want])] = 0
            return out

    worker = Host("worker")
    worker.handle(Load("target", lambda: Unsure("target", lambda path, _: int(path[-1]) + 1, 20)))
    worker.handle(Begin(Sampling(), 2, 64, 20, Packing()))
    prefixes = (Prefix(0, np.array([1, 7])), Prefix(1, np.array([1, 10])))
    reply = worker.handle(chains("target", prefixes, (6, 3), stop_below=stop_below))
    assert tuple(map(len, reply.value)) == lengths
    assert [t.id for t in reply.value[0]][:2] == [8, 0][: lengths[0]]
    assert len(reply.stamps) == max(lengths)
