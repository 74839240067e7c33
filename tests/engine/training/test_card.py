"""Cards of pairs and of heads: what is measured, the text, the command line."""

import json
import os
import shutil
import signal
from dataclasses import replace
from math import log
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

import specscope
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.heads.files import HeadWeights, read_head
from specscope.engine.training.card import Measured, Sizes, make_card, render
from specscope.engine.training.cli import cancel_on_interrupt
from specscope.engine.training.data import Encoder, find_sources, is_held_out, read_documents
from specscope.engine.training.heads.card import chained, make_heads_card, restore
from specscope.engine.training.heads.losses import DraftAcceptance
from specscope.engine.training.heads.train import train_head, training_curves
from specscope.engine.training.loop import read_facts
from specscope.engine.training.measure import (
    Acceptance,
    Cost,
    LoadedPair,
    Loss,
    Timing,
    held_out_prompts,
    measure_acceptance,
    measure_losses,
    read_prompts,
)
from specscope.engine.training.settings import PROMPTS, CardSettings, HeadOptions
from specscope.engine.types import Limits, Sampling
from tests.engine.training.tiny import HEAD, refused, train

FIXED = json.loads(PROMPTS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def loaded(trained):
    return LoadedPair.load(Pair.of(trained / "target", trained / "drafter"))


def transformers_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_the_loss_equals_transformers(loaded, trained, corpus):
    losses = {loss.source: loss for loss in measure_losses(loaded, corpus, 0.3, 16, 10_000)}
    assert set(losses) == {"stories", "chats"}
    chats = losses["chats"]
    documents = [d for d in read_documents(find_sources(corpus)["chats"]) if is_held_out(d, 0.3)]
    tokenizer = AutoTokenizer.from_pretrained(trained / "target")
    for role, loss in (("target", chats.target_nats), ("drafter", chats.drafter_nats)):
        model, nats = transformers_model(trained / role), 0.0
        for ids in map(torch.tensor, Encoder(tokenizer)(documents)):
            for start in range(0, len(ids) - 1, 16):
                part = ids[start : start + 17]
                with torch.no_grad():
                    logits = model(input_ids=part[None, :-1]).logits[0]
                nats += functional.cross_entropy(logits, part[1:], reduction="sum").item()
        assert loss == pytest.approx(nats, rel=1e-4)
    text = sum(len(d) for d in documents) - len(documents) * len("<|user|><|assistant|>")
    assert (chats.documents, chats.bytes) == (len(documents), text)
    assert chats.bits_per_byte == pytest.approx(chats.target_nats / log(2) / text)


def test_acceptance_equals_a_comparison_by_transformers(loaded, trained):
    prompt = "Do you like the kite, Tom?"
    rates = measure_acceptance(loaded, "one", [prompt], 128, 24)
    ids = loaded.pair.encode(prompt)
    target, drafter = (transformers_model(trained / role) for role in ("target", "drafter"))
    greedy = target.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0]
    drawn = torch.tensor(ids + loaded.write(ids, 24, Sampling(temperature=1.0))[0])
    with torch.no_grad():
        q = drafter(input_ids=greedy[None]).logits[0, len(ids) - 1 : -1]
        both = [m(input_ids=drawn[None]).logits[0, len(ids) - 1 : -1].softmax(-1) for m in (target, drafter)]
    assert rates.greedy_tokens == len(greedy) - len(ids)
    assert rates.greedy_matches == (q.argmax(-1) == greedy[len(ids) :]).sum()
    assert rates.overlap == pytest.approx(torch.minimum(*both).sum().item(), rel=1e-3)


def test_answers_equal_those_of_a_run():
    pair = Pair.find("bundled")
    loaded, sampling = LoadedPair.load(pair), Sampling(temperature=0.8, seed=0)
    prompt = FIXED["prompts"][0]
    written, logits = loaded.write(pair.encode(prompt), 12, sampling)
    assert logits.shape == (len(written), pair.vocab_size)
    with specscope.open("bundled", runtime="local-thread") as cluster:
        trace = cluster.run("autoregressive", prompt, sampling=sampling, limits=Limits(12))
    assert [c.token for c in trace.commits] == written


def test_the_bundled_pair_has_a_high_acceptance_rate():
    rates = measure_acceptance(LoadedPair.load(Pair.find("bundled")), "fixed", FIXED["prompts"][:5], 256, 16)
    assert (rates.prompts, rates.greedy >= 0.7, rates.sampled >= 0.5) == (5, True, True)


def test_held_out_prompts_are_first_user_turns(corpus):
    prompts = held_out_prompts(corpus, 0.3, ["chats", "stories"], 3)
    assert len(prompts) == 3
    assert all(prompt.startswith("Do you like") and "|>" not in prompt for prompt in prompts)
    assert held_out_prompts(corpus, 0.3, ["stories"], 3) == []


def test_prompts_are_spread_over_the_file(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"turns": [f"q{i}", "again"]} for i in range(9)] + [{"prompt": "q\u20289"}]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert read_prompts(path, 5) == ["q0", "q2", "q4", "q6", "q8"]
    assert len(read_prompts(path, 100)) == 10
    assert read_prompts(path, 100)[9] == "q\u20289", "only line feeds end a line"


@pytest.mark.parametrize("content", ["not JSON", '{"text": "a"}', "[1]", '{"turns": []}', "[" * 100_000])
def test_a_wrong_file_of_prompts_is_refused_by_name(tmp_path, content):
    path = tmp_path / "questions.jsonl"
    path.write_text(content)
    refused(lambda: read_prompts(path, 5), r".*questions\.jsonl is not a list of prompts")


def test_what_has_no_card_or_prompts_is_refused(trained, tmp_path):
    (tmp_path / "training.json").write_text("{")
    for call, message in (
        (lambda: read_prompts(tmp_path, 5), tmp_path.name),
        (lambda: read_prompts(Path("/dev/zero"), 5), "/dev/zero"),
        (lambda: read_facts(tmp_path), r"training\.json cannot be read"),
        (lambda: make_card(Pair.of(trained / "target"), {}, CardSettings()), "has no drafter"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


MEASURED = Measured(
    Sizes(11_000_000, 2_500_000, 40_000_000, 14_000_000),
    Cost(Timing(4.0, 3.0), Timing(2.0, 1.0), Timing(6.0, 3.75), 128, 200, 4.5),
    (Loss("math", 2, 100, 400, 200.0, 300.0), Loss("own", 1, 50, 100, 100.0, 150.0)),
    (Acceptance("a", 2, 1, 10, 8, 20, 12.0), Acceptance("b", 1, 0, 30, 15, 10, 3.0)),
    (("Why?", "a ``` b"),),
)


CARD = """
Read me.
| c = T(target) / T(drafter) | 3 to 6 | 2.00 | **no** |
| greedy acceptance, all prompts of this card | at least 0.75 | 0.575 | **no** |
| all files | at most 32 MB | 40.0 MB | **no** |
| largest shard | at most 15 MB | 14.0 MB | yes |
| **all trained on** | yes | 2 | 100 | 2.000 | 0.721 | 3.000 |
| own | no | 1 | 50 |
| poems | 1x | not a source of the recipe | unknown |
| **all** | 3 (1 too long) | 0.575 | 40 | 0.500 | 30 |
| c = T(target) / T(drafter), 1 row each | 2.00 | 3.00 |
load average 4.5 meanwhile
| 5 rows over 1 row of the target | 1.50 | 1.25 |
"""
"""Parts of the card of these measurements."""


def test_the_card_has_all_measurements_and_missed_bars():
    facts = {"sources": {"math": 6, "poems": 1}, "notes": ["Read me."]}
    card = render(facts, MEASURED, FIXED, 256)
    wanted = (*CARD.strip().splitlines(), "````text\na ``` b\n````")
    assert [part for part in wanted if part not in card] == []
    bare = render({}, MEASURED._replace(losses=()), FIXED, 256)
    assert "Not trained by this project's recipe" in bare
    assert "Loss on held-out documents" not in bare


def test_train_pair_on_the_command_line(options, corpus, tmp_path, capsys):
    words = f"pair --data {corpus} --out {tmp_path / 'pair'} --threads 1 --vocabulary 320 --device cpu"
    words += " --target 2x32x2x64 --drafter 1x16x1x32 --steps 3 --drafter-steps 2 --batch 2"
    words += " --sequence 64 --context 80 --held-out 0.2"
    assert train(words) == 0
    card = (tmp_path / "pair" / "README.md").read_text(encoding="utf-8")
    assert "| target | 3 | 384 | 64 |" in card
    assert all(f"**{prompt}**" in card for prompt in FIXED["prompts"])
    printed = capsys.readouterr()
    assert "wrote" in printed.out
    assert "drafter: 100%" in printed.err
    with pytest.raises(UsageError, match="is not empty"):
        train(words)
    assert read_facts(tmp_path / "pair")["options"]["steps"] == 3


def test_card_of_two_models_on_the_command_line(trained, tmp_path):
    words = f"card --target {trained / 'target'} --drafter {trained / 'drafter'} --window 256"
    assert train(f"{words} --output {tmp_path / 'card.md'}") == 0
    assert "Not trained by this project's recipe" in (tmp_path / "card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pair --data nowhere --out x", "nowhere is not a folder"),
        ("pair --data x --out x --target big", "shape is 'big'"),
        ("pair --data x --out x --threads 0", "threads is 0"),
        ("card --target a --drafter b", "needs --target, --drafter and --output"),
        ("card --pair missing", "missing"),
        ("card --count 0", "count is 0; it must be at least 1"),
    ],
)
def test_wrong_command_lines_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecScopeError, match=message):
        train(words)


def test_first_interrupt_cancels_and_the_second_interrupts():
    with cancel_on_interrupt() as cancel:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancel.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_the_bundled_card_describes_the_bundled_pair():
    folder = PAIRS / "bundled"
    card = (folder / "README.md").read_text(encoding="utf-8")
    sizes = [p.stat().st_size for role in ("target", "drafter") for p in (folder / role).iterdir()]
    assert sum(sizes) <= 32_000_000
    assert f"| {sum(sizes) / 1e6:.1f} MB |" in card
    assert all(f"**{prompt}**" in card for prompt in FIXED["prompts"])
    assert all(note in card for note in read_facts(folder)["notes"])
    assert all(licence in card for licence in ("CDLA-Sharing-1.0", "CC BY 4.0", "CC BY-SA 3.0", "MIT"))


SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pair(trained, corpus, text, tmp_path_factory):
    """The toy pair with two heads."""
    folder = tmp_path_factory.mktemp("pair") / "toy"
    shutil.copytree(trained, folder)
    given = {"data": corpus, "target": trained / "target", "target_name": trained.name, "text": text}
    for kind in ("eagle", "parallelspec_medusa"):
        out = folder / "heads" / kind
        train_head(HeadOptions.of(kind, out=out, **given, **HEAD | {"steps": 10, "checkpoint_every": 5}))
    return folder


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "questions" / "question.jsonl"
    path.parent.mkdir()
    lines = [{"turns": [f"Do you like the {thing}?"]} for thing in ("dog" * 100, "ball", "kite")]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_chains_begin_at_every_token_and_end_at_the_first_mismatch():
    assert chained([True, False, True, True], 3) == DraftAcceptance((4, 2, 0), (3, 1, 0))
    assert chained([], 2) == DraftAcceptance((0, 0), (0, 0))


def test_the_card_has_the_trainings_and_the_measurements(pair, prompts):
    torch.set_num_threads(1)
    settings = CardSettings(prompts=(prompts,), window=96, new_tokens=24)
    card = make_heads_card(Pair.of(pair / "target", pair / "drafter"), pair, settings)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line[:1] == "|"
    ]
    trained = {row[0]: row for row in rows if row[0] in ("eagle", "parallelspec_medusa")}
    for kind, row in trained.items():
        tensors = read_head(pair / "heads" / kind).tensors
        facts = json.loads((pair / "heads" / kind / "training.json").read_text())
        assert row[1] == f"{sum(t.numel() for t in tensors.values()) / 1e6:.2f} M"
        assert row[3:5] == ["10", f"{facts['phase']['tokens']:,}"]
    assert trained["eagle"][7] == "KL(p, q) + 10 smooth L1"
    assert trained["parallelspec_medusa"][6:8] == ["0.8^k", "KL(p, q)"]
    measured = [row for row in rows if row[0] in ("questions", "**all**")]
    names = ("eagle", "parallelspec_medusa", "the pair's drafter")
    assert [row[1:3] for row in measured[:3]] == [["2", name] for name in names]
    assert [row[2:] for row in measured[:3]] == [row[2:] for row in measured[3:]]
    for row in measured:
        rates = [float(cell) for cell in row[3:8] if cell]
        assert all(0 <= rate <= 1 for rate in rates)
        assert float(row[8]) == pytest.approx(1 + np.cumprod(rates).sum(), abs=0.01)
    assert "half of the answers greedy" in card


def test_what_has_no_card_of_heads_is_refused(pair, prompts, tmp_path):
    loaded, heads = Pair.of(pair / "target", pair / "drafter"), pair / "heads"
    head = read_head(heads / "eagle")
    short = CardSettings(prompts=(prompts,), count=1, window=96, new_tokens=24)
    biased = HeadWeights(replace(head.config, biased=True), head.tensors)
    for call, message in (
        (
            lambda: make_heads_card(loaded, tmp_path, CardSettings()),
            "heads holds no head; specscope train medusa",
        ),
        (lambda: restore(biased), "kind eagle with own LM heads, biases or more layers cannot be"),
        (
            lambda: make_heads_card(loaded, pair, short),
            "questions: no prompt with an answer fits into 96 tokens",
        ),
    ):
        refused(call, f".*{message}")


def test_the_command_line_writes_the_card(pair, prompts, tmp_path, capsys):
    output = tmp_path / "card.md"
    assert train(f"heads --pair {pair} --prompts {prompts} --count 2 --window 96 -o {output}") == 0
    assert capsys.readouterr().out == f"wrote {output}\n"
    assert output.read_text().startswith("# Card: drafting heads of this pair")


def test_the_curves_have_every_measurement(pair):
    out = pair / "heads" / "parallelspec_medusa"
    assert (out / "curves.svg").read_text() == training_curves(out)
    root = ElementTree.fromstring((out / "curves.svg").read_text())
    loss, accepted = root.findall(f"{SVG}g")
    titles = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "t"]
    assert titles == ["parallelspec_medusa: loss", "acceptance of token k"]
    paths = [path.get("d", "") for path in loss.iter(f"{SVG}path")]
    assert paths[0].count(",") == 10
    assert 1 <= len([p for p in accepted.iter(f"{SVG}path") if p.get("d", "").count(",") == 2]) <= 5
