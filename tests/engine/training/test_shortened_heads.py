"""Heads of a shortened vocabulary: which tokens they draft, their losses, and shortening."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.heads.files import read_head
from specscope.engine.heads.modules import target_ids
from specscope.engine.heads.packed import Frozen, Learned, Texts
from specscope.engine.training import cli
from specscope.engine.training.data import Corpus
from specscope.engine.training.heads.card import restore
from specscope.engine.training.heads.losses import acceptance, head_losses
from specscope.engine.training.heads.train import most_frequent, shorten_head, train_head
from specscope.engine.training.loop import read_log
from specscope.engine.training.settings import HeadOptions
from specscope.engine.types import Limits
from tests.engine.heads.random_heads import make_head
from tests.engine.training.test_head_modules import VOCABULARY, WIDTH, stub
from tests.engine.training.tiny import HEAD, parse, train

FOLDERS = {"data": Path("data"), "out": Path("out")}


@pytest.fixture(scope="module")
def head(corpus, trained, text, tmp_path_factory):
    """Return a head for the toy pair that drafts 40 tokens."""
    out = tmp_path_factory.mktemp("short") / "eagle"
    given = {"data": corpus, "out": out, "target": trained / "target", "target_name": "toy", "text": text}
    sizes = {"steps": 40, "checkpoint_every": 20, "vocabulary": 40, "storage": "int8"}
    return train_head(HeadOptions.of("eagle", **given, **sizes, **HEAD))


def test_the_most_frequent_tokens_of_the_answers_are_drafted():
    ids = np.array([9, 9, 9, 3, 4, 9, 9, 4, 6, 6], dtype=np.uint16)
    corpus = Corpus(ids, np.array([0, 5, 10]), np.ones(2, dtype=np.int64), np.array([3, 7]))
    # The answers are 3 4 and 4 6 6; 9 is in prompts only.
    assert most_frequent(corpus, 2, 12).tokens.tolist() == [4, 6]
    assert most_frequent(corpus, 2, 12).coverage == pytest.approx(0.8)
    assert most_frequent(corpus, 5, 12).tokens.tolist() == [0, 1, 3, 4, 6], "unused: lower ids first"
    assert most_frequent(replace(corpus, answers=None), 1, 12).tokens.tolist() == [9]
    with pytest.raises(UsageError, match="vocabulary is 13; it must be at least 1 and at most 12"):
        most_frequent(corpus, 13, 12)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_losses_are_those_over_the_drafted_tokens(share):
    """Places whose token is not drafted do not count; p is renormalised."""
    generator = torch.Generator().manual_seed(5)
    lm_head, tokens = torch.randn(VOCABULARY, WIDTH, generator=generator), torch.tensor([2, 3, 5, 7])
    ids = torch.tensor([1, 3, 8, 7, 2])
    features = torch.randn(5, WIDTH, generator=generator)
    texts = Texts(ids, lm_head[ids], features, np.array([0, 5]), np.array([1, 2, 3]))
    states, labels = torch.randn(3, WIDTH, generator=generator), torch.tensor([2, 3, 4])
    expected = list[float]()
    for state, at in zip(states[1:], (3, 4), strict=True):  # token 8, at 2, is not drafted
        p = (lm_head @ features[at - 1])[tokens].softmax(0)
        q = (lm_head @ state)[tokens].softmax(0)
        column = tokens.tolist().index(int(ids[at]))
        divergence = float((p * (p / q).log()).sum())
        expected.append(share * -float(q[column].log()) + (1 - share) * divergence)
    options = HeadOptions.of("medusa", **FOLDERS, token_loss=share)
    frozen = Frozen(lm_head, lm_head).shortened(tokens)
    losses = head_losses(stub([Learned(states, labels)]), texts, frozen, options)
    assert losses.total.item() == pytest.approx(np.mean(expected), rel=1e-4)


def test_a_batch_without_drafted_tokens_has_a_loss_of_zero():
    lm_head, ids = torch.eye(6), torch.tensor([1, 1, 1])
    texts = Texts(ids, lm_head[ids], lm_head[ids], np.array([0, 3]), np.array([1]))
    states = torch.ones(1, 6, requires_grad=True)
    frozen = Frozen(lm_head, lm_head).shortened(torch.tensor([0, 4]))
    options = HeadOptions.of("medusa", **FOLDERS)
    losses = head_losses(stub([Learned(states, torch.tensor([2]))]), texts, frozen, options)
    losses.total.backward()
    assert losses.total.item() == 0
    assert not states.grad.any()


def test_acceptance_compares_drafts_with_the_whole_vocabulary():
    """The target writes 1 2 5; a head that drafts 1 and 2 only is right, then wrong."""
    lm_head, ids = torch.eye(6), torch.tensor([0, 1, 2, 5])
    texts = Texts(ids, lm_head[ids], lm_head[[1, 2, 5, 0]], np.array([0, 4]), np.array([1, 2]))
    frozen = Frozen(lm_head, lm_head).shortened(torch.tensor([1, 2]))

    def draft(texts, frozen, count):
        return torch.stack([frozen.draft_best(texts.features[texts.anchors])] * count, 1)

    counts = acceptance(SimpleNamespace(draft=draft), texts, frozen, 1)
    assert (counts.reached, counts.accepted) == ((2,), (1,))


def test_a_training_writes_a_head_that_drafts_the_chosen_tokens(head, trained):
    config, tensors = read_head(head, trained / "target")
    assert (config.draft_vocab, len(tensors["d2t"])) == (40, 40)
    ids = target_ids(tensors["d2t"])
    assert bool((ids[1:] > ids[:-1]).all())
    facts = json.loads((head / "training.json").read_text())["vocabulary"]
    assert (facts["tokens"], facts["of"]) == (40, 320)
    assert 0.5 < facts["coverage"] <= 1
    assert load_file(head / "model.safetensors")["fc.weight"].dtype == torch.int8
    log = read_log(head / "loss.jsonl")
    assert np.mean([row["loss"] for row in log[-5:]]) < 0.9 * log[0]["loss"]
    assert read_log(head / "acceptance.jsonl")[-1]["length"] > 1.2


def test_medusa_heads_learn_lm_heads_of_their_own(head, trained, tmp_path, text):
    """They are written, drafted with in a lossless run, and measured for the card."""
    given = {**FOLDERS, "out": tmp_path / "medusa", "target": trained / "target", "device": "cpu"}
    sizes = {"steps": 3, "warmup": 1, "batch": 4, "sequence": 64, "size": 4, "vocabulary": 40, "answer": 40}
    options = HeadOptions.of("medusa", **given, **sizes, text=text, lm_heads="own", learning_rate=0.01)
    weights = read_head(train_head(options), trained / "target")
    assert weights.config.own_lm_head
    assert weights.tensors["0.1.weight"].shape == (40, weights.config.hidden_size)
    assert not torch.equal(weights.tensors["0.1.weight"], weights.tensors["1.1.weight"])
    texts = restore(weights).state_dict()
    torch.testing.assert_close(texts["1.1.weight"], weights.tensors["1.1.weight"].float())
    with specscope.open(
        target=trained / "target", runtime="local-thread", device="cpu", head=options.out
    ) as cluster:
        expected, trace = (
            cluster.run(method, [5, 9, 23, 4], limits=Limits(24)) for method in ("autoregressive", "medusa")
        )
        assert trace.token_ids() == expected.token_ids()
        assert sum(r.drafted for r in trace.rounds) > 0
    with pytest.raises(UsageError, match="lm_heads is own; heads of kind eagle use the target's"):
        train_head(replace(options, kind="eagle", out=tmp_path / "eagle"))


def test_a_head_is_shortened_and_restored_without_training(head, trained, tmp_path, text):
    target = trained / "target"
    facts = shorten_head(head, target, tmp_path / "short", text=text, vocabulary=12)
    assert (facts["tokens"], facts["of"]) == (12, 320)
    config, tensors = read_head(tmp_path / "short", target)
    assert config.draft_vocab == 12
    before = read_head(head).tensors
    assert set(target_ids(tensors["d2t"]).tolist()) < set(target_ids(before["d2t"]).tolist())
    assert shorten_head(tmp_path / "short", target, tmp_path / "whole") == {}
    whole = read_head(tmp_path / "whole", target)
    assert (whole.config.draft_vocab, "d2t" in whole.tensors) == (0, False)
    torch.testing.assert_close(whole.tensors["fc.weight"], before["fc.weight"], rtol=0.01, atol=0)
    kept = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert kept["kind"] == "eagle"
    assert not kept.keys() & {"acceptance", "vocabulary"}


def test_what_cannot_be_shortened_is_refused(trained, tmp_path, head, text):
    target, out = trained / "target", tmp_path / "out"
    medusa = make_head(tmp_path / "medusa", "medusa", target, own=True)
    eagle3 = make_head(tmp_path / "eagle3", "eagle3", target, own=False)
    for begun, to, given, message in (
        (medusa, out, {"text": text, "vocabulary": 12}, "an LM head of its own, which stays as it is"),
        (eagle3, out, {"text": text, "vocabulary": 12}, "an LM head of its own, which stays as it is"),
        (head, out, {"vocabulary": 12}, "a shorter vocabulary needs --text"),
        (head, out, {"text": text, "vocabulary": 321}, "vocabulary is 321; it must be at least 1 and at"),
        (head, head, {"text": text, "vocabulary": 12}, "is not empty; choose another --out"),
        (head, out, {"int8": True, "keep": ["fc"]}, r"fc is no matrix of this head; its .*fc\.weight"),
    ):
        with pytest.raises(UsageError, match=message):
            shorten_head(begun, target, to, **given)
    assert not out.exists()


def test_the_command_line_shortens_a_head_and_keeps_matrices_in_bf16(head, trained, tmp_path, capsys, text):
    out, target = tmp_path / "out", trained / "target"
    words = f"shorten --head {head} --pair {trained} --text {text} --out {out}"
    assert train(f"{words} --vocabulary 12 --storage int8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("12 of 320 tokens, ")
    assert lines[1] == f"wrote {out}"
    assert load_file(out / "model.safetensors")["fc.weight"].dtype == torch.int8
    shorten_head(head, target, tmp_path / "kept", int8=True, keep=["fc.weight"])
    stored = load_file(tmp_path / "kept" / "model.safetensors")
    assert [name for name, t in stored.items() if t.ndim == 2 and t.dtype != torch.int8] == ["fc.weight"]
    assert stored["fc.weight"].dtype == torch.bfloat16


def test_the_papers_recipe_has_the_settings_of_table_3():
    columns = {
        "parallelspec_medusa": {"learning_rate": 5e-4, "beta2": 0.999, "epochs": 20, "fade": 0.8},
        "parallelspec_eagle": {"learning_rate": 5e-5, "beta2": 0.95, "epochs": 40, "fade": 1.0},
    }
    shared = {"batch": 32, "optimizer": "adamw", "weight_decay": 0, "anchors": 1, "token_loss": 1}
    for kind, column in columns.items():
        options, wanted = HeadOptions.of(kind, "paper", **FOLDERS), column | shared
        assert {name: getattr(options, name) for name in wanted} == wanted
        assert options.regression == (10 if kind == "parallelspec_eagle" else 0)
        assert HeadOptions.of(kind, **FOLDERS).anchors == 1, "a mask after every token by default"
    given = HeadOptions.of("eagle", "paper", **FOLDERS, steps=7, learning_rate=1e-3)
    assert (given.steps, given.epochs, given.learning_rate, given.beta2) == (7, 0, 1e-3, 0.95)
    with pytest.raises(UsageError, match="recipe is 'fast'; choose one of quick, paper"):
        HeadOptions.of("eagle", "fast", **FOLDERS)


@pytest.mark.parametrize(
    ("words", "found"),
    [("--recipe paper --batch 4", (4, 5e-4, 0.999)), ("", (16, 1e-3, 0.95))],
)
def test_a_setting_on_the_command_line_replaces_the_recipes(words, found):
    given = cli.given(parse(f"parallelspec_medusa --data d --out o {words}"), HeadOptions)
    options = HeadOptions.of(**given)
    assert (options.batch, options.learning_rate, options.beta2) == found
