"""The modules of heads in training: their rows, states, losses and acceptance."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.config import read_config
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.packed import Frozen, Learned, Packed, Texts, pack
from specscope.engine.heads.packed import states_of as states_of_rows
from specscope.engine.model.shape import ModelShape
from specscope.engine.training.heads.losses import DraftAcceptance, acceptance, head_losses
from specscope.engine.training.heads.train import build_head, head_config
from specscope.engine.training.settings import HEAD_DEFAULTS, HeadOptions
from tests.engine.heads.drafted_tree import state_after

WIDTH, VOCABULARY = 32, 40
NOTHING = list[Any]()


@pytest.fixture
def shape(trained):
    return ModelShape.of(read_config(trained / "target"), trained)


@pytest.fixture
def texts():
    """Two texts of 12 and 9 tokens with random features, and four anchors, one near the end."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (21,), generator=generator)
    embedding, features = (torch.randn(n, WIDTH, generator=generator) for n in (VOCABULARY, 21))
    anchors, states = np.array([3, 5, 9, 15]), torch.cat([features.roll(1, 1), features], 1)
    return Texts(ids, embedding[ids], features, np.array([0, 12, 21]), anchors, states)


def states_of(head, texts, packed):
    """Return the states of the rows, (R, D)."""
    return states_of_rows(head, texts.embedded[packed.tokens], texts.features[packed.tokens - 1], packed)


def new_head(kind, trained, seed=1, **changed):
    """Return an untrained head of three heads or masks."""
    target = trained / "target"
    options = HeadOptions(kind=kind, data=target, out=target, target=target, size=3, **changed)
    return build_head(head_config(options, ModelShape.of(read_config(target), target), 1.0), seed)


def head_of(kind, trained):
    """Return a head with larger weights than an untrained one, so that every row matters."""
    head = new_head(kind, trained)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    return head


def test_no_row_predicts_past_the_end_of_its_text(texts):
    packed = pack(texts, 3, within=True)
    ends = torch.tensor([12] * 12 + [21] * 9)
    assert bool((packed.tokens + packed.numbers + 1 < ends[packed.tokens]).all())
    group_sizes = {a: int((packed.tokens[packed.numbers > 0] == a).sum()) for a in (3, 5, 9, 15)}
    assert group_sizes == {3: 3, 5: 3, 9: 1, 15: 3}
    assert packed.at(0).tolist() == torch.nonzero(packed.numbers == 0)[:, 0].tolist()
    assert packed.tokens[packed.at(0)].tolist() == [*range(1, 11), *range(13, 20)]


@pytest.mark.parametrize("kind", ["parallelspec_eagle", "parallelspec_medusa"])
def test_packed_training_is_k_plus_1_forwards_of_inference(kind, trained, texts):
    """The paper's claim: with its attention mask and positions, training equals inference."""
    head, masks = head_of(kind, trained), 3
    packed, compared = pack(texts, masks, within=True), 0
    with torch.no_grad():
        states = states_of(head, texts, packed)
        for row, (token, number) in enumerate(
            zip(packed.tokens.tolist(), packed.numbers.tolist(), strict=True)
        ):
            start = 0 if token < 12 else 12
            n = token - start + number
            chain = Packed(
                tokens=torch.tensor([*range(start + 1, token + 1), *[token] * number]),
                numbers=torch.tensor([*[0] * (token - start), *range(1, number + 1)]),
                positions=torch.arange(n),
                seen=(torch.ones(n, n, dtype=torch.bool).tril(),),
            )
            alone = states_of(head, texts, chain)[-1]
            torch.testing.assert_close(states[row], alone, atol=1e-5, rtol=1e-5)
            compared += number > 0
    assert compared == 10


def frozen_of(shape):
    embedding = torch.randn(shape.vocab, WIDTH, generator=torch.Generator().manual_seed(3))
    return Frozen(embedding, embedding)


@pytest.mark.parametrize("kind", HEAD_DEFAULTS)
@torch.no_grad()
def test_drafts_are_those_of_the_states_after_the_text_and_earlier_drafts(kind, trained, shape, texts):
    head, frozen = head_of(kind, trained), frozen_of(shape)
    texts = texts._replace(embedded=frozen.embedding[texts.ids])
    drafts = head.draft(texts, frozen, 3)
    for anchor, tokens in zip(texts.anchors, drafts.tolist(), strict=True):
        alone = texts._replace(anchors=np.array([anchor]))
        for k in range(2 if anchor == 9 else 3):  # the text of anchor 9 ends then
            state = state_after(head, alone, frozen, tokens[:k])
            assert frozen.draft_best(state[None]).tolist() == [tokens[k]]


@pytest.mark.parametrize("kind", ["eagle", "hydra", "medusa", "parallelspec_eagle"])
def test_saved_weights_include_the_scale_of_embeddings(kind, trained, texts):
    (learned, saved), rescale = (new_head(kind, trained, seed) for seed in (0, 1)), KINDS[kind].rescale
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
        tensors = rescale(learned.state_dict(), 7.5)
        saved.load_state_dict(tensors)
        for name, tensor in rescale(tensors, 1 / 7.5).items():
            torch.testing.assert_close(tensor, learned.state_dict()[name])
        scaled = texts._replace(embedded=texts.embedded * 7.5)
        for a, b in zip(learned.learn(scaled), saved.learn(texts), strict=True):
            torch.testing.assert_close(a.states, b.states, atol=1e-4, rtol=1e-4)


def stub(learned=NOTHING, drafts=NOTHING):
    """Return a head with these states and these drafts."""
    return SimpleNamespace(learn=lambda _: learned, draft=lambda *_: torch.tensor(drafts))


def test_losses_are_equations_3_and_4_of_parallelspec(texts):
    """Offline and online distillation, term by term."""
    folders = {"data": Path("data"), "out": Path("out")}
    generator = torch.Generator().manual_seed(5)
    lm_head = torch.randn(VOCABULARY, WIDTH, generator=generator)
    frozen, labels = Frozen(lm_head, lm_head), [torch.tensor([2, 3, 4]), torch.tensor([5])]
    states = [torch.randn(len(where), WIDTH, generator=generator) for where in labels]
    head = stub([Learned(s, where) for s, where in zip(states, labels, strict=True)])

    def log_q(state):
        return (lm_head @ state).log_softmax(-1)

    offline = [
        -np.mean([float(log_q(s)[texts.ids[at]]) for s, at in zip(part, where, strict=True)])
        for part, where in zip(states, labels, strict=True)
    ]
    losses = head_losses(head, texts, frozen, HeadOptions.of("medusa", **folders, token_loss=1.0, fade=0.8))
    assert losses.total.item() == pytest.approx(offline[0] + 0.8 * offline[1], rel=1e-5)
    assert losses.places == pytest.approx(offline, abs=1e-4)
    online = list[float]()
    for part, where in zip(states, labels, strict=True):
        terms = list[float]()
        for state, at in zip(part, where.tolist(), strict=True):
            feature = texts.features[at - 1]
            p, difference = (lm_head @ feature).softmax(-1), (state - feature).abs()
            smooth = torch.where(difference < 1, difference**2 / 2, difference - 0.5).mean()
            terms.append(float((p * (p.log() - log_q(state))).sum() + 10 * smooth))
        online.append(float(np.mean(terms)))
    losses = head_losses(head, texts, frozen, HeadOptions.of("parallelspec_eagle", **folders))
    assert losses.total.item() == pytest.approx(sum(online), rel=1e-5)


def own_lm_heads(trained, frozen):
    """Return Medusa heads whose own LM heads are copies of the target's."""
    size = len(frozen.draft_lm_head)
    vocabulary = 0 if size == len(frozen.lm_head) else size
    head = new_head("medusa", trained, lm_heads="own", vocabulary=vocabulary)
    head.load_state_dict(head_of("medusa", trained).state_dict(), strict=False)
    for lm_head in head.lm_heads:
        lm_head.data.copy_(frozen.draft_lm_head)
    return head


def test_the_gradient_of_own_lm_heads_is_autograds(trained, shape, texts):
    """The loss of Medusa heads with their own LM heads, against autograd over whole logits."""
    frozen = frozen_of(shape).shortened(torch.arange(5, 35))
    head = own_lm_heads(trained, frozen)
    options = HeadOptions.of("medusa", data=Path("data"), out=Path("out"), token_loss=0.3, lm_heads="own")
    ours = head_losses(head, texts, frozen, options).total
    expected = torch.zeros(())
    for k, (states, labels, own) in enumerate(head.learn(texts)):
        assert own is not None
        columns, drafted = frozen.columns(texts.ids[labels])
        log_q = (states[drafted] @ own.T).log_softmax(-1)
        p = (texts.features[labels - 1][drafted] @ frozen.draft_lm_head.T).softmax(-1)
        divergence = (p * (p.log() - log_q)).sum(-1)
        crossed = -log_q.gather(-1, columns[drafted, None])[:, 0]
        expected = expected + 0.8**k * (0.3 * crossed + 0.7 * divergence).mean()
    torch.testing.assert_close(ours, expected)
    parameters = dict(head.named_parameters())
    assert parameters["2.1.weight"].shape == (30, WIDTH)
    for ours_part, autograds in zip(
        torch.autograd.grad(ours, list(parameters.values()), retain_graph=True),
        torch.autograd.grad(expected, list(parameters.values())),
        strict=True,
    ):
        torch.testing.assert_close(ours_part, autograds, atol=1e-6, rtol=1e-4)


def test_own_lm_heads_decide_the_drafts(trained, shape, texts):
    frozen = frozen_of(shape)
    shared, head = head_of("medusa", trained).draft(texts, frozen, 3), own_lm_heads(trained, frozen)
    assert torch.equal(head.draft(texts, frozen, 3), shared), "they begin as the target's"
    with torch.no_grad():
        dict(head.named_parameters())["1.1.weight"].neg_()
    changed = head.draft(texts, frozen, 3)
    assert torch.equal(changed[:, 0], shared[:, 0])
    assert not torch.equal(changed[:, 1], shared[:, 1])


def test_acceptance_counts_drafts_where_the_text_is_greedy():
    """Text 0 1 2 3 4 5; the target's argmax is the next number, except 9 after 3."""
    lm_head, ids = torch.eye(10), torch.tensor([0, 1, 2, 3, 4, 5])
    greedy = torch.tensor([1, 2, 3, 9, 5, 6])
    texts = Texts(ids, lm_head[ids], lm_head[greedy], np.array([0, 6]), np.array([1, 2, 3, 4]))
    head = stub(drafts=[[2, 3, 9], [3, 4, 5], [4, 5, 6], [5, 6, 7]])
    counts = acceptance(head, texts, Frozen(lm_head, lm_head), 3)
    # Anchor 1: 2 and 3 are accepted, then the text is not greedy. Anchor 2: 3 is accepted.
    # Anchor 3: no place counts. Anchor 4: 5 is accepted, then the text ends.
    assert counts == DraftAcceptance((3, 1, 0), (3, 1, 0))
    assert counts.rates == (1.0, 1.0, None)
    assert (counts + DraftAcceptance((1, 1, 2), (0, 0, 1))).rates == (0.75, 0.5, 0.5)
    assert DraftAcceptance((4, 2), (2, 1)).length == pytest.approx(1 + 0.5 + 0.25)
