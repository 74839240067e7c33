from __future__ import annotations

import argparse
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import RunCancelled, UsageError
from engine.heads.files import read_head
from engine.heads.form import PARALLEL
from engine.model.shape import ModelShape
from engine.model.slots import Rows
from engine.pairs.config import read_config
from engine.pairs.load import load
from engine.training import cli
from engine.training.data import Corpus
from engine.training.heads.features import Batches, features_of, read_features, write_features
from engine.training.heads.kinds import Acceptance, Head, acceptance, build, head_losses
from engine.training.heads.layered import Eagle, ParallelEagle, ParallelMedusa
from engine.training.heads.layout import Packed, Texts, lay_out, pack
from engine.training.heads.side import Frozen, Hydra, Learned, Medusa
from engine.training.heads.train import read_frozen, train_head
from engine.training.options import HEADS, HeadOptions
from engine.training.steps import Progress, read_log
from engine.training.written import read_text
from tests.engine.training.test_drafter import toy_corpus

Options = Callable[..., HeadOptions]
WIDTH, VOCABULARY = 32, 40


@pytest.fixture
def settings(corpus: Path, trained: Path, tmp_path: Path) -> Options:
    """Settings of a training of a second, for the toy pair's target."""

    def of(kind: str = "eagle", **changed: object) -> HeadOptions:
        base = HeadOptions.of(
            kind,
            data=corpus,
            out=tmp_path / kind,
            pair=trained,
            size=3,
            batch=8,
            sequence=64,
            steps=12,
            written=1200,
            answer=40,
            warmup=2,
            learning_rate=1e-2,
            held_out=0.1,
            checkpoint_every=5,
            device="cpu",
        )
        return replace(base, **changed)

    return of


@pytest.fixture
def shape(trained: Path) -> ModelShape:
    return ModelShape.of(read_config(trained / "target"), trained)


@pytest.fixture
def texts() -> Texts:
    """Two texts of 12 and 9 tokens with random features, and four anchors, one near the end."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (21,), generator=generator)
    embedding, features = (torch.randn(n, WIDTH, generator=generator) for n in (VOCABULARY, 21))
    return Texts(ids, embedding[ids], features, np.array([0, 12, 21]), np.array([3, 5, 9, 15]))


def head_of(kind: str, shape: ModelShape, size: int = 3) -> Head:
    """Return a head with larger weights than it begins with, so that every row matters."""
    head = build(kind, shape, size, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    return head


def test_groups_see_the_tokens_before_and_their_own_masks() -> None:
    layout = lay_out(np.array([0, 2, 1]))
    assert layout.tokens.tolist() == [0, 1, 1, 1, 2, 2]
    assert layout.numbers.tolist() == [0, 0, 1, 2, 0, 1]
    assert layout.positions.tolist() == [0, 1, 2, 3, 2, 3]
    drawn = [
        "x.....",
        "xx....",
        "xxx...",
        "xxxx..",
        "xx..x.",
        "xx..xx",
    ]
    assert layout.seen.tolist() == [[cell == "x" for cell in line] for line in drawn]


def test_no_row_predicts_past_the_end_of_its_text(texts: Texts) -> None:
    packed = pack(texts, 3, within=True)
    ends = torch.tensor([12] * 12 + [21] * 9)
    assert bool((packed.tokens + packed.numbers + 1 < ends[packed.tokens]).all())
    behind = {a: int((packed.tokens[packed.numbers > 0] == a).sum()) for a in (3, 5, 9, 15)}
    assert behind == {3: 3, 5: 3, 9: 1, 15: 3}
    assert packed.at(0).tolist() == torch.nonzero(packed.numbers == 0)[:, 0].tolist()
    assert packed.tokens[packed.at(0)].tolist() == [*range(1, 11), *range(13, 20)]


@pytest.mark.parametrize("kind", ["parallelspec_eagle", "parallelspec_medusa"])
def test_packed_training_is_k_plus_1_forwards_of_inference(
    kind: str, shape: ModelShape, texts: Texts
) -> None:
    """The paper's claim: with its mask and positions, training sees exactly what inference sees."""
    head, masks = head_of(kind, shape), 3
    assert isinstance(head, ParallelEagle | ParallelMedusa)
    packed, compared = pack(texts, masks, within=True), 0
    with torch.no_grad():
        states = head(texts, packed)
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
            alone = head(texts, chain)[-1]
            torch.testing.assert_close(states[row], alone, atol=1e-5, rtol=1e-5)
            compared += number > 0
    assert compared == 10


def test_a_mask_hidden_from_its_group_changes_the_state(shape: ModelShape, texts: Texts) -> None:
    """What the comparison above would catch."""
    head = head_of("parallelspec_eagle", shape)
    packed = pack(texts, 3, within=True)
    row = int(packed.at(2)[0])
    seen = packed.seen[0].clone()
    seen[row, row - 1] = False
    with torch.no_grad():
        whole, cut = head(texts, packed), head(texts, packed._replace(seen=(seen, packed.seen[1])))
    assert float((whole[row] - cut[row]).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", HEADS)
def test_learning_stands_for_what_drafting_says(kind: str, shape: ModelShape, texts: Texts) -> None:
    """A state that is learned at place k is the one drafting reads there when the drafts before are the text."""
    head, frozen = head_of(kind, shape), frozen_of(shape)
    with torch.no_grad():
        drafts = head.draft(texts, frozen, 3)
        for k, (states, labels) in enumerate(head.learn(texts)[:3]):
            best, anchors = frozen.best(states), texts.anchors.tolist()
            for label, token in zip(labels.tolist(), best.tolist(), strict=True):
                anchor = label - 1 - k
                if anchor in anchors and (k == 0 or kind not in ("hydra", "eagle")):
                    assert drafts[anchors.index(anchor), k] == token


def frozen_of(shape: ModelShape) -> Frozen:
    embedding = torch.randn(shape.vocab, WIDTH, generator=torch.Generator().manual_seed(3))
    return Frozen(embedding, embedding)


@pytest.mark.parametrize("kind", ["eagle", "hydra"])
def test_drafts_are_read_from_the_drafts_before(kind: str, shape: ModelShape, texts: Texts) -> None:
    head, frozen = head_of(kind, shape), frozen_of(shape)
    embedded = frozen.embedding[texts.ids]
    texts = texts._replace(embedded=embedded)
    with torch.no_grad():
        drafts, n = head.draft(texts, frozen, 3), 5
        read = [embedded[n]]
        if isinstance(head, Hydra):
            for i in range(3):
                z = torch.cat([texts.features[n - 1], *read])
                block = head.hydra_mlp[i].get_submodule("1")
                state = block.res_connection(z) + functional.silu(block.linear(z))
                read.append(frozen.embedding[(state @ frozen.lm_head.T).argmax()])
                assert (read[-1] == frozen.embedding[drafts[1, i]]).all()
        else:
            assert isinstance(head, Eagle)
            tokens, features = [*embedded[1 : n + 1]], [*texts.features[:n]]
            for i in range(3):
                rows = len(tokens)
                chain = Packed(
                    torch.zeros(rows, dtype=torch.int64),
                    torch.zeros(rows, dtype=torch.int64),
                    torch.arange(rows),
                    (torch.ones(rows, rows, dtype=torch.bool).tril(),),
                )
                features.append(head(torch.stack(tokens), torch.stack(features), chain)[-1])
                tokens.append(frozen.embedding[(features[-1] @ frozen.lm_head.T).argmax()])
                assert (tokens[-1] == frozen.embedding[drafts[1, i]]).all()


@pytest.mark.parametrize("kind", ["eagle", "hydra", "medusa", "parallelspec_eagle"])
def test_the_scale_of_embeddings_goes_into_the_saved_weights(
    kind: str, shape: ModelShape, texts: Texts
) -> None:
    trained, saved = build(kind, shape, 3, 0, scale=7.5), build(kind, shape, 3, 1)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
        saved.load_state_dict(trained.fold())
        for name, tensor in trained.unfold(trained.fold()).items():
            torch.testing.assert_close(tensor, trained.state_dict()[name])
        for a, b in zip(trained.learn(texts), saved.learn(texts), strict=True):
            torch.testing.assert_close(a.states, b.states, atol=1e-4, rtol=1e-4)


class Fixed:
    """A head whose states are given."""

    def __init__(self, learned: list[Learned]) -> None:
        self._learned = learned

    def learn(self, _: Texts) -> list[Learned]:
        return self._learned


def test_losses_are_the_papers(settings: Options, texts: Texts) -> None:
    """Equation 3 offline, equation 4 online, term by term."""
    generator = torch.Generator().manual_seed(5)
    lm_head = torch.randn(VOCABULARY, WIDTH, generator=generator)
    frozen, labels = Frozen(lm_head, lm_head), [torch.tensor([2, 3, 4]), torch.tensor([5])]
    states = [torch.randn(len(where), WIDTH, generator=generator) for where in labels]
    head = Fixed([Learned(s, where) for s, where in zip(states, labels, strict=True)])

    def log_q(state: Tensor) -> Tensor:
        return (lm_head @ state).log_softmax(-1)

    offline = [
        -np.mean([float(log_q(s)[texts.ids[at]]) for s, at in zip(part, where, strict=True)])
        for part, where in zip(states, labels, strict=True)
    ]
    found = head_losses(head, texts, frozen, settings("medusa", token_loss=1.0, fade=0.8))  # type: ignore[arg-type]
    assert found.total.item() == pytest.approx(offline[0] + 0.8 * offline[1], rel=1e-5)
    assert found.places == pytest.approx(offline, abs=1e-4)
    online = list[float]()
    for part, where in zip(states, labels, strict=True):
        terms = list[float]()
        for state, at in zip(part, where.tolist(), strict=True):
            feature = texts.features[at - 1]
            p, difference = (lm_head @ feature).softmax(-1), (state - feature).abs()
            smooth = torch.where(difference < 1, difference**2 / 2, difference - 0.5).mean()
            terms.append(float((p * (p.log() - log_q(state))).sum() + 10 * smooth))
        online.append(float(np.mean(terms)))
    found = head_losses(head, texts, frozen, settings("parallelspec_eagle"))  # type: ignore[arg-type]
    assert found.total.item() == pytest.approx(sum(online), rel=1e-5)


class Drafting:
    """A head whose drafts are given."""

    def __init__(self, drafts: list[list[int]]) -> None:
        self._drafts = torch.tensor(drafts)

    def draft(self, *_: object) -> Tensor:
        return self._drafts


def test_acceptance_counts_drafts_where_the_text_is_greedy() -> None:
    """Text 0 1 2 3 4 5; the target would say the next number, but 9 after 3, so token 4 was drawn."""
    lm_head, ids = torch.eye(10), torch.tensor([0, 1, 2, 3, 4, 5])
    greedy = torch.tensor([1, 2, 3, 9, 5, 6])
    texts = Texts(ids, lm_head[ids], lm_head[greedy], np.array([0, 6]), np.array([1, 2, 3, 4]))
    head = Drafting([[2, 3, 9], [3, 4, 5], [4, 5, 6], [5, 6, 7]])
    found = acceptance(head, texts, Frozen(lm_head, lm_head), 3)  # type: ignore[arg-type]
    # anchor 1: 2 and 3 are accepted, then the text leaves the greedy one; anchor 2: 3; anchor 3: nothing counts;
    # anchor 4: 5, then the text ends
    assert found == Acceptance((3, 1, 0), (3, 1, 0))
    assert found.rates == (1.0, 1.0, None)
    assert (found + Acceptance((1, 1, 2), (0, 0, 1))).rates == (0.75, 0.5, 0.5)
    assert Acceptance((4, 2), (2, 1)).length == pytest.approx(1 + 0.5 + 0.25)


def test_features_are_those_of_decoding(trained: Path, tmp_path: Path) -> None:
    decoder = load(trained / "target")
    corpus = toy_corpus([1, *range(20, 40), 2], [1, 5, 6, 7, 2], [1, 9, 2])
    path = tmp_path / "features.safetensors"
    write_features(path, corpus, decoder, trained / "target", lambda _: None, threading.Event())
    stored = read_features(path, corpus, trained / "target")
    alone = torch.cat([features_of(decoder, [part])[0] for part in np.split(corpus.ids, corpus.starts[1:-1])])
    torch.testing.assert_close(stored.float(), alone, atol=0.02, rtol=0.01)
    shape = ModelShape.of(read_config(trained / "target"), trained)
    lm_head = read_frozen(trained / "target", shape, torch.device("cpu")).lm_head
    logits = decoder.forward(
        decoder.new_cache(1, 22), Rows.chain(0, corpus.ids[:22], 0), np.arange(22)
    ).logits
    torch.testing.assert_close(alone[:22] @ lm_head.T, logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(UsageError, match="another text or another target"):
        read_features(path, toy_corpus([1, 5, 6, 7, 2]), trained / "target")


def test_batches_are_functions_of_their_step() -> None:
    corpus = toy_corpus(*([1, *range(20, 23 + i % 5), 2] for i in range(120)))
    features = torch.arange(len(corpus.ids)).float()[:, None].bfloat16()
    batches = Batches(corpus, features, torch.arange(65536).float()[:, None], 6)
    assert len(batches.held_out) == 3
    first, again = batches.batch(7, 5, 0.5, 0), batches.batch(7, 5, 0.5, 0)
    assert torch.equal(first.ids, again.ids)
    assert first.anchors.tolist() == again.anchors.tolist()
    assert not torch.equal(first.ids, batches.batch(7, 5, 0.5, 1).ids)
    assert np.diff(first.starts).max() <= 6
    edges = set(first.starts[:-1]) | set(first.starts[1:] - 1)
    assert len(first.anchors)
    assert not edges & set(first.anchors.tolist())
    epoch = [t for step in range(117) for t in batches._chosen(step, 1, 0).tolist()]
    assert sorted(epoch) == batches.learned.tolist()
    assert batches.tokens(117, 0) == sum(min(6, n) for n in np.diff(corpus.starts)[batches.learned])


@pytest.mark.parametrize("kind", HEADS)
def test_heads_learn(kind: str, settings: Options, trained: Path) -> None:
    out = train_head(settings(kind, steps=40))
    log, measured = read_log(out / "loss.jsonl"), read_log(out / "acceptance.jsonl")
    assert [row["step"] for row in measured] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert np.mean([sum(row["places"]) for row in log[-5:]]) < 0.9 * sum(log[0]["places"])
    assert measured[-1]["length"] > 1.2
    assert len(log[0]["places"]) == (1 if kind == "eagle" else 4 if kind.startswith("p") else 3)
    head = read_head(out, trained / "target")
    assert (head.config.kind, head.config.target, head.config.levels) == (
        kind,
        trained.name,
        {"eagle": 0}.get(kind, 4 if kind.startswith("p") else 3),
    )
    assert all(torch.isfinite(t).all() for t in head.tensors.values())
    facts = json.loads((out / "training.json").read_text())
    assert facts["acceptance"] == measured[-1]
    assert facts["phase"]["steps"] == 40
    assert str(trained) not in json.dumps(facts)


def test_resumed_training_ends_with_the_same_bits(settings: Options, tmp_path: Path) -> None:
    straight = train_head(settings("parallelspec_eagle"))
    parts = settings("parallelspec_eagle", out=tmp_path / "parts")
    for resume, (phase, step) in enumerate(
        (("written", 64), ("features", 64), (parts.kind, 3), (parts.kind, 9))
    ):
        cancel = threading.Event()

        def listen(
            p: Progress, phase: str = phase, step: int = step, cancel: threading.Event = cancel
        ) -> None:
            if p.phase == phase and p.step >= step:
                cancel.set()

        with pytest.raises(RunCancelled, match=r"^stopped .*--resume"):
            train_head(parts, listen, cancel, resume=resume > 0)
    train_head(parts, resume=True)
    for file in ("model.safetensors", "features.safetensors", "loss.jsonl", "acceptance.jsonl"):
        assert (parts.out / file).read_bytes() == (straight / file).read_bytes()


def test_text_and_features_serve_several_heads(settings: Options) -> None:
    first, heard = train_head(settings(steps=2)), list[Progress]()
    again = settings("medusa", steps=2, text=first / "written.safetensors")
    train_head(again, heard.append)
    assert {p.phase for p in heard} == {"medusa"}
    assert not (again.out / "features.safetensors").exists()


def test_a_head_begins_where_another_ended(settings: Options, trained: Path, tmp_path: Path) -> None:
    first = train_head(settings(steps=20))
    text = first / "written.safetensors"
    more = settings("parallelspec_eagle", steps=1, learning_rate=1e-8, text=text, start=first)
    mine, theirs = (read_head(folder).tensors for folder in (train_head(more), first))
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, atol=1e-4, rtol=0.01)
    with pytest.raises(UsageError, match=r"no tensor of that head fits this one; leave out --start$"):
        train_head(settings("medusa", text=text, start=first))
    other = tmp_path / "other"
    shutil.copytree(first, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"tokenizer": "0" * 64}))
    with pytest.raises(
        UsageError, match="is a head for another target: its tokenizer is 000000000000, that of"
    ):
        train_head(settings("parallelspec_eagle", out=tmp_path / "out", text=text, start=other))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"size": 0}, "size is 0; it must be at least 1 and at most 64"),
        ({"size": 65}, "size is 65; it must be at least 0 and at most 64"),
        ({"anchors": 0.0}, "anchors is 0; it must be at least 0.001 and at most 1"),
        ({"fade": 1.5}, "fade is 1.5; it must be at least 0.001 and at most 1"),
        ({"kind": "medusas"}, "kind is 'medusas'; choose one of medusa, hydra, eagle,"),
        ({"sequence": 129}, "sequence is 129; it must be at most 128: the target knows 128 positions"),
        ({"answer": 128}, "answer is 128; it must be at most 127: the target knows 128 positions"),
        ({"pair": Path("nowhere")}, "pair is nowhere; it must be a folder with target in it"),
    ],
)
def test_wrong_settings(settings: Options, changed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}") as error:
        train_head(settings(**changed))
    assert "\n" not in str(error.value)
    assert not settings().out.exists()


@pytest.mark.parametrize("kind", PARALLEL)
def test_a_parallel_drafter_without_masks_drafts_one_token(kind: str, settings: Options) -> None:
    out = train_head(settings(kind, size=0))
    head = read_head(out)
    assert (head.config.masks, head.config.levels) == (0, 1)
    assert not [name for name in head.tensors if name.startswith("mask")]
    assert len(read_log(out / "acceptance.jsonl")[-1]["rates"]) == 1
    again = train_head(
        replace(
            settings(kind, size=2), out=out.with_name("more"), start=out, text=out / "written.safetensors"
        )
    )
    assert read_head(again).config.masks == 2


def test_text_too_short_to_learn_from() -> None:
    corpus = Corpus(np.array([1, 2], dtype=np.uint16), np.array([0, 2]), np.ones(1, dtype=np.int64))
    with pytest.raises(UsageError, match="the text is too short to learn from"):
        Batches(corpus, torch.zeros(2, 4), torch.zeros(8, 4), 64)


def test_command_line(settings: Options, capsys: pytest.CaptureFixture[str]) -> None:
    options, parser = settings("medusa"), argparse.ArgumentParser()
    cli.add_arguments(parser)
    words = f"medusa --pair {options.pair} --data {options.data} --out {options.out} --threads 1 --size 2"
    words += " --steps 2 --batch 2 --sequence 16 --written 400 --answer 20 --device cpu"
    assert cli.run(parser.parse_args(words.split())) == 0
    assert f"wrote {options.out}" in capsys.readouterr().out
    assert read_head(options.out).config.heads == 2
    assert len(read_text(options.out / "written.safetensors", options.pair / "target").repeats)
    assert isinstance(
        build("medusa", ModelShape.of(read_config(options.pair / "target"), options.pair), 2, 0), Medusa
    )
