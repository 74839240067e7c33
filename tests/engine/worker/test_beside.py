"""A worker's jobs: prefill in parts, rows beside a draft, drafts that end early."""

from functools import partial

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.layout import Packing
from specscope.engine.model.cache import zeros
from specscope.engine.simulate.oracle import Scripted
from specscope.engine.types import NO_TREE, Draft, DraftToken, Prefix, Sampling
from specscope.engine.worker import host as host_module
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Judge, LoadModel, Prefill, Score
from tests.engine.model.tiny import CONTEXT, VOCAB, reference, save
from tests.engine.worker.harness import chains

PROMPT = (7, 8, 9, 10)
GUESSES = Draft((DraftToken(20), DraftToken(21, 0), DraftToken(22, -1)))
WINDOW = ((30, 31, 32, 33, 34), (-1, 0, -1, 2, 1))


GREEDY = Sampling()


def host(loader, sampling=GREEDY, vocab_size=97, sequences=1):
    worker = Host("worker")
    worker.handle(LoadModel("target", loader))
    worker.handle(Begin(sampling, sequences, 64, vocab_size, Packing()))
    return worker


@pytest.fixture(scope="module", params=["llama3-rope", "mistral-window"])
def loader(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save(reference(request.param), folder)
    return partial(load, folder)


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
    # 15 is outside the target's vocabulary: the best token within it
    assert (verdict.accepted, verdict.own) == ((0, 3), 0)
    assert verdict.best == (0, 3, 0)
    job = Score(
        "target", (Prefix(0, np.array((1, 2))),), (NO_TREE,), 2, (Judge(2, Draft(), True, 0),), greedy=True
    )
    assert [s.kind for s in worker.handle(job).stamps] == ["draft"]


@pytest.mark.parametrize(("stop_below", "lengths"), [(0.0, (6, 3)), (0.5, (2, 3)), (1.1, (1, 1))])
def test_each_sequences_draft_ends_after_an_improbable_token(stop_below, lengths):
    class Unsure(Scripted):
        """Has equal probabilities after an 8, else one certain token."""

        def forward(self, cache, rows, want, *more, **options):
            out = super().forward(cache, rows, want, *more, **options)
            out.logits[np.array([rows.tokens[row] == 8 for row in want])] = 0
            return out

    worker = host(lambda: Unsure("target", lambda path, _: int(path[-1]) + 1, 20), vocab_size=20, sequences=2)
    prefixes = (Prefix(0, np.array([1, 7])), Prefix(1, np.array([1, 10])))
    reply = worker.handle(chains("target", prefixes, (6, 3), stop_below=stop_below))
    assert tuple(map(len, reply.value)) == lengths
    assert [t.id for t in reply.value[0]][:2] == [8, 0][: lengths[0]]
    assert len(reply.stamps) == max(lengths)


TEXT = np.random.default_rng(0).integers(0, VOCAB, CONTEXT - 8)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save(reference("llama"), folder)
    return partial(load, folder)


def prefill(worker, *lengths, stopped=lambda: False):
    """Prefill texts of these lengths; return the stamps' rows and the lengths of the slots."""
    prefixes = tuple(Prefix(i, TEXT[:length]) for i, length in enumerate(lengths))
    reply = worker.handle(Prefill("target", prefixes), stopped)
    cached = [worker.forwards.cache("target").length(worker.forwards.slot(i)) for i in range(len(lengths))]
    return [stamp.rows for stamp in reply.stamps], cached


def kept(worker):
    """Return the keys and values of the first sequence."""
    return worker.forwards.cache("target").tensor[:, worker.forwards.slot(0), :, :39].clone()


@pytest.mark.parametrize("layers", range(3))
def test_a_stopped_prefill_ends_before_its_next_layer_and_caches_nothing(llama, layers):
    checks, worker, other = iter([False] * layers + [True]), host(llama), host(llama)
    assert prefill(worker, 40, stopped=lambda: next(checks)) == ([39], [0])
    assert next(checks, None) is None, "no layer after the stop"
    prefill(worker, 40)
    prefill(other, 40)
    assert torch.equal(kept(worker), kept(other)), "the next one is as the first"


def test_a_long_prefill_runs_in_parts_and_forwards_only_rows_that_are_not_cached(llama, monkeypatch):
    whole, worker = host(llama), host(llama, sequences=2)
    prefill(whole, 40)
    monkeypatch.setattr(host_module, "PREFILL_ROWS", 16)
    assert prefill(worker, 25, 8) == ([16 + 7, 8], [24, 7])
    assert prefill(worker, 30, 8) == ([5], [29, 7])
    assert prefill(worker, 40, 20) == ([10 + 12], [39, 19])
    assert torch.allclose(kept(worker), kept(whole), atol=1e-5)
    assert prefill(worker, 55, 20) == ([15], [54, 19])
    assert prefill(worker, 55, 20) == ([], [54, 19])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_cache_takes_no_memory(dtype):
    before, size = resident(), (1 << 30) // dtype.itemsize
    tensor = zeros((2, size // 2), dtype, torch.device("cpu"))
    assert (tensor.shape, tensor.dtype) == ((2, size // 2), dtype)
    assert not tensor[:, :1000].any()
    assert resident() - before < 100 << 20
    tensor[1, : 1 << 20] = 1
    assert tensor[1, : 1 << 20].all()


def resident():
    """Return this process's resident bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
