"""How trainings compute, and what they learn from: documents, their order, the tokenizer."""

import json
import lzma
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.checkpoints.progress import ignore
from specscope.engine.training import data
from specscope.engine.training.data import (
    SPECIALS,
    Corpus,
    Encoder,
    TokenStream,
    TrainingText,
    find_sources,
    is_held_out,
    read_documents,
    read_mixture,
    train_tokenizer,
)
from specscope.engine.training.heads.losses import distilled
from specscope.engine.training.loop import CHECKPOINTS, Training, read_log
from specscope.engine.training.pair import new_model
from specscope.engine.training.settings import PairOptions, Shape
from specscope.engine.training.step import (
    Phase,
    TrainingDevices,
    learning_rate,
    losses,
    make_optimisers,
    pick_dtype,
)
from tests.engine.training.tiny import chats, refused, stories

Options = Callable[..., PairOptions]
PHASE = Phase("target", "target", 4, 4, 8, 1e-2, 0)


def small_model():
    return new_model(Shape(1, 16, 1, 32), 64, 32, seed=0)


def losses_for(model):
    """Return the losses of a language model on fixed random tokens."""

    def of(step, rows):
        ids = torch.randint(0, 64, (4, 9), generator=torch.Generator().manual_seed(step))[rows]
        return losses(model, None, ids[:, :-1], ids[:, 1:], 0.0)

    return of


def trained_losses(options):
    """Train four steps; return the losses in the log."""
    model = small_model()
    Training(options, ignore, None, resume=False).fit(PHASE, model, losses_for(model))
    return [row["loss"] for row in read_log(options.out / "loss.jsonl")]


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_fp32_gives_the_losses_of_a_plain_loop(options, tmp_path, optimizer):
    settings = options(out=tmp_path / "out", optimizer=optimizer)
    model, expected = small_model(), list[float]()
    optimisers, losses_of = make_optimisers(model, settings), losses_for(model)
    for step in range(PHASE.steps):
        computed = losses_of(step, slice(None))
        computed.total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(PHASE, step, settings)
            optimiser.step()
            optimiser.zero_grad()
        expected.append(computed.tokens)
    assert trained_losses(settings) == expected


def test_the_parts_of_a_batch_give_the_losses_of_the_batch(options, tmp_path):
    whole, parts = (trained_losses(options(out=tmp_path / str(n), accumulate=n)) for n in (1, 4))
    assert parts == pytest.approx(whole, rel=1e-4)


def test_bf16_computes_forwards_only(options, tmp_path):
    settings = options(out=tmp_path / "bf16", precision="bf16")
    fast, exact = trained_losses(settings), trained_losses(options(out=tmp_path / "fp32"))
    assert fast != exact
    assert fast == pytest.approx(exact, rel=0.02)
    stored = load_file(settings.out / CHECKPOINTS / "0-0000004.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}


def test_automatic_precision_is_bf16_where_it_is_fast(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for amx, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        assert pick_dtype("auto", cpu) == dtype
        assert pick_dtype("auto", cuda) == torch.bfloat16
        assert pick_dtype("bf16", cpu) == torch.bfloat16
        assert pick_dtype("fp32", cuda) == torch.float32


def test_each_process_computes_its_own_rows(options, monkeypatch):
    found = list[slice]()
    for process in range(3):
        execution = TrainingDevices(options(out=Path("out"), accumulate=2))
        for name, value in (("num_processes", 3), ("process_index", process)):
            monkeypatch.setattr(type(execution._accelerator), name, value)
        found += execution.parts(12)
    assert found == [slice(i, i + 2) for i in range(0, 12, 2)]
    message = r"a batch of 4 rows cannot be divided by 3 processes with accumulate 2; .* of 6$"
    refused(lambda: execution.parts(4), message)


def test_a_loss_that_is_not_finite_stops_the_training(options):
    model = small_model()
    model.get_parameter("model.norm.weight").data.fill_(float("inf"))
    execution, losses_of = TrainingDevices(options(out=Path("out"))), losses_for(model)
    refused(
        lambda: execution.update(model, (), lambda rows: losses_of(0, rows), 4, 0.5),
        r"the loss is nan; lower learning_rate from 0\.5$",
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_gradient_of_a_heads_loss_is_the_exact_one(share):
    generator = torch.Generator().manual_seed(0)
    states, features = (torch.randn(300, 8, generator=generator) for _ in range(2))
    lm_head, tokens = torch.randn(40, 8, generator=generator), torch.arange(300) % 40
    plain, own = (states.clone().requires_grad_() for _ in range(2))
    log_q, log_p = ((x @ lm_head.T).log_softmax(-1) for x in (plain, features))
    divergence = functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    expected = share * functional.nll_loss(log_q, tokens) + (1 - share) * divergence
    (3 * expected).backward()
    loss = distilled(own, features, tokens, lm_head, share)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(own.grad, plain.grad)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = distilled(own, features, tokens, lm_head, share)
    assert rounded.dtype == torch.float32
    assert float(rounded.detach()) == pytest.approx(float(expected.detach()), rel=0.02)


TWO_PROCESSES = """
import json, os, sys
import torch
from pathlib import Path
from specscope.engine.training.step import TrainingDevices, Losses
from specscope.engine.training.settings import Recipe

rank = 0 if os.fork() else 1
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
options = Recipe(data=Path(), out=Path(), batch=4, accumulate=2, device="cpu", precision="fp32")
execution = TrainingDevices(options)
torch.manual_seed(0)
model, data = torch.nn.Linear(3, 1), torch.randn(4, 4)
def losses_of(rows):
    loss = (model(data[rows, :3]) - data[rows, 3:]).square().mean()
    return Losses(loss, loss.item(), None, (loss.item(), 1.0))
class Descent:  # an optimiser of torch would import its compiler
    param_groups = [{"lr": 1}]
    def step(self):
        for p in model.parameters():
            p.data -= self.param_groups[0]["lr"] * p.grad
    def zero_grad(self, set_to_none):
        model.zero_grad(set_to_none)
losses = execution.update(model, [Descent()], losses_of, 4, 0.1)
with execution.main_first():
    order = [execution.is_main, Path(sys.argv[1] + "0").exists() or execution.is_main]
    facts = {"weights": model.weight[0].tolist(), "loss": losses.total.item(), "places": losses.places}
    Path(sys.argv[1] + str(rank)).write_text(json.dumps({**facts, "order": order}))
assert execution.any_process(rank == 1)
torch.distributed.destroy_process_group()
if rank == 0:
    os.wait()
"""


def test_two_processes_make_one_update_together(options, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment = os.environ | address | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TWO_PROCESSES, str(tmp_path / "process")]
    subprocess.run(command, check=True, env=environment, timeout=250)
    main, other = (json.loads((tmp_path / f"process{rank}").read_text()) for rank in range(2))
    torch.manual_seed(0)
    model, data = nn.Linear(3, 1), torch.randn(4, 4)
    loss = (model(data[:, :3]) - data[:, 3:]).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert main["weights"] == other["weights"] == pytest.approx(model.weight[0].tolist(), rel=1e-5)
    assert main["loss"] == other["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert main["places"] == pytest.approx([loss.item(), 1.0], rel=1e-5)
    assert (main["order"], other["order"]) == ([True, True], [False, True])


def make_stream(seed=0):
    """Documents 10, 20 20, 30 30 30, repeated 1, 2 and 3 times: 14 tokens an epoch."""
    ids = np.array([10, 20, 20, 30, 30, 30], dtype=np.uint16)
    return TokenStream(Corpus(ids, np.array([0, 1, 3, 6]), np.array([1, 2, 3])), seed)


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
def test_documents_are_whole_however_the_file_is_read(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(data, "_CHUNK", chunk)
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress("eins\r\n\x1ezwölf\n\n\x1e \n\x1e€\x1e".encode()))
    assert list(read_documents(path)) == ["eins\r\n", "zwölf\n\n", "€"]


def test_reading_is_lazy(tmp_path):
    path = tmp_path / "a.txt.xz"
    whole = lzma.compress("\x1e".join(f"document {i} {'x' * 100}" for i in range(20_000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert next(read_documents(path)).startswith("document 0 ")


@pytest.mark.parametrize(
    "content",
    [b"plain text", lzma.compress(b"one\x1etwo" * 100)[:-20], lzma.compress(b"\xff\xfe\xfa"), b""],
    ids=["not xz", "cut short", "not UTF-8", "empty"],
)
def test_a_broken_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(content)
    refused(lambda: list(read_documents(path)), r".*a\.txt\.xz cannot be read .*; it must be xz")


def test_sources_without_documents_are_refused(corpus, tmp_path):
    sources, nowhere = find_sources(corpus), tmp_path / "nowhere"
    refused(lambda: find_sources(nowhere), r".*nowhere is not a folder; --data takes one with txt\.xz files")
    refused(lambda: find_sources(tmp_path), rf"{tmp_path} holds no \*\.txt\.xz file")
    refused(
        lambda: Corpus.read(
            TrainingText(sources, {"stories": 1, "chats": 1}, 1.0), lambda documents: iter([*documents])
        ),
        "no document is left to train on; lower held_out from 1",
    )


def test_the_held_out_share_is_that_of_the_setting():
    documents = [f"document {i}" for i in range(4000)]
    assert sum(is_held_out(d, 0.1) for d in documents) == pytest.approx(400, abs=60)
    assert not any(is_held_out(d, 0.0) for d in documents)
    kept = {d for d in documents if not is_held_out(d, 0.1)}
    assert not any(is_held_out(d, 0.05) for d in kept), "a smaller share holds out a part of a larger one"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {"math": 6, "wiki": 1, "own": 1}),
        ("math=0, own=3", {"math": 0, "wiki": 1, "own": 3}),
        *((wrong, None) for wrong in ("math", "math=x", "math=-1", "math=1001", "poems=1")),
        ("math=0,own=0,wiki=0", None),
    ],
)
def test_weights_change_the_default_mixture(text, found):
    if found is None:
        refused(lambda: read_mixture(text, ["math", "wiki", "own"]), "weights ")
    else:
        assert read_mixture(text, ["math", "wiki", "own"]) == found


def test_training_documents_are_repeated_without_the_held_out_ones(corpus):
    sources = find_sources(corpus)
    counts = Counter(TrainingText(sources, {"stories": 2, "chats": 0}, 0.2).documents)
    kept = [d for d in read_documents(sources["stories"]) if not is_held_out(d, 0.2)]
    assert 0 < len(kept) < 36
    assert counts == dict.fromkeys(kept, 2)


def test_every_epoch_has_each_document_as_often_as_configured():
    stream = make_stream()
    assert stream.epoch_tokens == 14
    for epoch in range(5):
        assert Counter(stream.read(14 * epoch, 14).tolist()) == {10: 1, 20: 4, 30: 9}


def test_epochs_and_seeds_differ_in_order():
    stream = make_stream()
    epochs = {tuple(stream.read(14 * epoch, 14)) for epoch in range(8)}
    assert len(epochs) > 4
    assert any(tuple(make_stream(seed).read(0, 14)) != tuple(stream.read(0, 14)) for seed in range(1, 5))


def test_the_stream_is_a_function_of_the_position():
    whole = make_stream().read(0, 60)
    assert [int(make_stream().read(i, 1)[0]) for i in range(60)] == whole.tolist()
    assert make_stream().read(11, 40).tolist() == whole[11:51].tolist()
    inputs, labels = make_stream().batch(5, 3, 4)
    assert inputs.tolist() == whole[5:17].reshape(3, 4).tolist()
    assert labels.tolist() == whole[6:18].reshape(3, 4).tolist(), "every token's label is the next one"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return a tokenizer that was trained, saved and loaded."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(stories() + chats(), 320, 128).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_the_trained_tokenizer(tokenizer):
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (len(tokenizer), tokenizer.model_max_length) == (320, 128)
    shipped = AutoTokenizer.from_pretrained(PAIRS / "bundled" / "target")
    assert shipped.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert shipped.chat_template == tokenizer.chat_template
    vocabulary = tokenizer.get_vocab()
    assert not [t for t in vocabulary if "|>" in t and t not in SPECIALS], "no parts of markers"
    assert train_tokenizer(stories() + chats(), 320, 128).get_vocab() == vocabulary, "it is repeatable"


@pytest.mark.parametrize(
    ("document", "special"),
    [
        ("<|system|>Be kind.<|user|>Hello<|assistant|>Hi!<|user|>Bye", [1, 5, 3, 4, 3, 2]),
        ("He wrote <|user|> on the wall, then <|assistant|>.", [1, 2]),
        (" <|user|>A space before it: no chat.", [1, 2]),
        ("<|user|>What is <|eos|>, <|pad|> or <|mask_1|>?<|assistant|>Text.", [1, 3, 4, 2]),
        ("<|bos|>A story.<|eos|>", [1, 2]),
        *((text, [1, 2]) for text in ("Zwölf €uro 🙂 \x00\t\r\n", "  two  spaces ", "日本")),
    ],
)
def test_markers_are_special_tokens_in_chats_only_and_decoding_restores_every_text(
    tokenizer, document, special
):
    ids = next(Encoder(tokenizer)([document]))
    assert [i for i in ids if i < 14] == special
    assert tokenizer.decode(ids) == f"<|bos|>{document}<|eos|>"


def test_many_documents_keep_their_order(tokenizer):
    documents = [f"<|user|>{i}<|assistant|>{i + 1}" for i in range(1500)]
    encoded = list(Encoder(tokenizer)(documents))
    assert [tokenizer.decode(ids[1:-1]) for ids in encoded] == documents
    assert len(encoded[1234]) == 4 + 8, "each digit is one token"
