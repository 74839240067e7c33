"""GGUF files: logits equal transformers' own loading; broken files leave no directory; names."""

import json
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specscope.engine.checkpoints import catalog, gguf, hub
from specscope.engine.checkpoints.forms import usual_form
from specscope.engine.checkpoints.gguf import converted
from specscope.engine.checkpoints.gguf_file import KINDS
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.checkpoints.sources import is_slow, resolve, resolve_local
from specscope.engine.errors import ModelError
from specscope.engine.model.slots import Rows
from tests.engine.checkpoints.gguf_files import VOCAB, WIDTH, write

IDS = [5, 90, 17, 200, 31, 8, 254]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def reference_logits(file):
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]


def logits(folder):
    decoder = load(folder)
    rows, wanted = Rows.chain(0, np.array(IDS), 0), np.arange(len(IDS))
    return decoder.forward(decoder.new_cache(1, 16), rows, wanted).logits


def assert_equal(folder, file):
    torch.testing.assert_close(logits(folder), reference_logits(file), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, {}) for kind in KINDS),
        *(("Q8_0", {"arch": arch, "tied": True}) for arch in ("qwen2", "qwen3", "qwen3moe", "llama")),
    ],
    ids=str,
)
def test_logits_equal_transformers_for_every_block_type_and_architecture(tmp_path, kind, more):
    file = write(tmp_path / "a.gguf", kind, **more)
    assert_equal(converted(file), file)


def test_the_head_dimension_is_read_from_the_file(tmp_path):
    folder = converted(write(tmp_path / "a.gguf", "Q8_0", "qwen3", heads=4))
    assert json.loads((folder / "config.json").read_text())["head_dim"] == WIDTH // 4
    assert logits(folder).isfinite().all()


def test_tokenizer_and_chat_template_are_read_from_the_file(tmp_path):
    folder = converted(write(tmp_path / "a.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "hi there"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>hi there<|bot|>"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert (ids[0], ids[-1], tokenizer.eos_token) == (2, 3, "<|end|>")
    assert max(tokenizer.get_vocab().values()) == VOCAB - 1, "transformers adds no tokens"


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path, monkeypatch):
    file, reports = write(tmp_path / "a.gguf", "Q4_0"), list[Progress]()
    folder = converted(file, reports.append)
    with monkeypatch.context() as patch:
        patch.setattr("specscope.engine.checkpoints.gguf_file.GgufFile", pytest.fail)
        assert converted(file) == folder, "the file is not read again"
    size = json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    steps = [report.done for report in reports]
    assert {report.total for report in reports} == {size}
    assert (steps[0], steps[-1], steps) == (0, size, sorted(steps))
    manifest = json.loads((folder / gguf.MANIFEST).read_text())
    assert manifest["source_sha256"] == gguf.sha256_of(file)
    assert manifest["files"].keys() == {path.name for path in folder.iterdir()} - {gguf.MANIFEST}
    assert manifest["files"]["config.json"] == gguf.sha256_of(folder / "config.json")
    os.utime(file, ns=(0, 0))
    assert converted(file) != folder


def test_large_weights_are_split_into_shards(tmp_path, monkeypatch):
    file = write(tmp_path / "a.gguf", "Q8_0")
    monkeypatch.setattr(gguf, "SHARD", 600_000)
    folder = converted(file)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_equal(folder, file)


@pytest.mark.parametrize("kept", [0, 3, 3000, 0.99, "random"])
def test_a_truncated_or_other_file_is_refused(tmp_path, cache, kept):
    file = write(tmp_path / "a.gguf", "Q4_0")
    content = file.read_bytes()
    if kept == "random":
        file.write_bytes(os.urandom(4096))
    else:
        file.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    refused(file, cache, "not a complete GGUF file")


def lying(*, keys=1, tensors=0, body=b""):
    """Return a file of 5 KB with these counts."""
    return (b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body).ljust(5000, b"\0")


def key(kind, value):
    return struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


BILLION = "claims 1,073,741,824"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((lying(body=key(9, struct.pack("<IQ", kind, 2**30))), BILLION) for kind in (0, 7, 8, 12)),
        (lying(body=key(9, struct.pack("<IQ", 9, 1))), "an array of the type 9"),
        (lying(body=key(13, b"")), "the unknown type 13"),
        (lying(body=key(8, struct.pack("<Q", 2**62))), "values or characters where"),
        (lying(keys=2**30), BILLION),
        (lying(keys=0, tensors=2**30), BILLION),
        (lying(keys=0, tensors=1, body=struct.pack("<QI", 0, 2**31)), "a tensor of 2,147,483,648 dimensions"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0).ljust(99, b"\0"), "is a big-endian GGUF file"),
    ],
)
def test_counts_beyond_the_file_are_refused_before_it_is_read(content, why, tmp_path, cache, monkeypatch):
    monkeypatch.setattr("gguf.GGUFReader", None)
    file = tmp_path / "a.gguf"
    file.write_bytes(content)
    refused(file, cache, why)


def test_the_characters_of_a_file_do_not_reach_the_terminal(tmp_path, cache):
    file = write(tmp_path / "a.gguf", arch="\x1b[31mred\x07" + "\0" * 5000)
    with pytest.raises(ModelError) as refusal:
        converted(file)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300 + len(str(file))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "TQ1_0"}, "is of type TQ1_0; supported are F32"),
        ({"arch": "gemma2"}, "architecture 'gemma2' is not supported; supported are llama, qwen2, qwen3"),
        (
            {"arch": "qwen35"},
            "architecture 'qwen35' is not supported: it is a model with recurrent layers, whose state",
        ),
        ({"experts": 8}, "a mixture of 8 experts of the architecture llama; of such files those of qwen3moe"),
        ({"drop": "blk.1.ffn_up.weight"}, "lacks the tensor blk.1.ffn_up.weight"),
        ({"inner": 512}, r"blk.0.ffn_gate.weight has shape \[256, 256\]; its metadata asks for \[512, 256\]"),
        ({"rope": {"scaling.type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        ({"extra": {"rope_freqs.weight": np.full(64, 3.0, np.float32)}}, "none of the published llama3 ones"),
    ],
)
def test_an_unsupported_file_is_refused(tmp_path, cache, options, message):
    refused(write(tmp_path / "a.gguf", **options), cache, message)


def test_what_cannot_be_read_or_stored_is_refused(tmp_path, cache, monkeypatch):
    refused(Path("/dev/zero"), cache, "not a regular file")
    refused(tmp_path / "missing.gguf", cache, "cannot read")
    monkeypatch.setattr(gguf.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**20))
    refused(write(tmp_path / "a.gguf", "Q4_0"), cache, r"need \d MiB as safetensors, .* has 1 MiB free")


def test_an_exception_in_the_progress_leaves_no_directory(tmp_path, cache):
    def stop(progress):
        if progress.done > progress.total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(write(tmp_path / "a.gguf", "Q4_0"), stop)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "more"),
    [("linear", {}), ("yarn", {"original_max_position_embeddings": 128}), ("llama3", {"factor": 8.0})],
)
def test_rotations_are_read_from_the_file(tmp_path, kind, more):
    if kind == "llama3":
        written = {"extra": {"rope_freqs.weight": llama3_table(factor=8.0, base=10000.0)}}
    else:
        written = {"rope": {"scaling.type": kind, "scaling.factor": 4.0}}
    folder = converted(write(tmp_path / "a.gguf", **written))
    read = json.loads((folder / "config.json").read_text())["rope_parameters"]
    assert ({"rope_type": kind, "factor": 4.0} | more).items() <= read.items()


def llama3_table(factor, base):
    """Return llama.cpp's divisors: 1 for short wavelengths, `factor` for long ones."""
    wavelengths = 2 * np.pi * base ** (np.arange(0, WIDTH // 2, 2) / (WIDTH // 2))
    smooth = np.clip((8192 / wavelengths - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def refused(file, cache, message):
    """Check that a conversion fails with one line and leaves no directory."""
    with pytest.raises(ModelError, match=message) as caught:
        converted(file)
    assert "\n" not in str(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_gguf_file_is_converted_to_a_pair_with_progress(tmp_path):
    file = write(tmp_path / "a.gguf", "Q8_0")
    assert is_slow(str(file))
    with pytest.raises(ModelError, match=r"a\.gguf is no longer in the cache; run again to get it"):
        resolve_local(file)
    reports: list[Progress] = []
    folder = resolve(str(file), reports.append)
    assert str(reports[-1]).startswith("Converting model.safetensors of a.gguf: ")
    assert reports[-1].percent == 100
    assert resolve_local(file) == folder
    pair = Pair.of(file)
    assert (pair.target_path, pair.context, pair.eos) == (folder, 128, (1,))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "cached", lambda model: None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_an_existing_directory_has_precedence_over_other_names(tmp_path):
    for name in ("smollm2", "owner/name", "model.gguf"):
        (tmp_path / name).mkdir(parents=True)
        assert not is_slow(name)
        assert resolve(name) == resolve_local(name) == Path(name)


@pytest.mark.usefixtures("here")
def test_a_short_name_names_a_target_and_a_pair(tmp_path, monkeypatch):
    folder = resolve(write(tmp_path / "a.gguf", "Q8_0"))
    assert is_slow("smollm2")
    with pytest.raises(ModelError, match="smollm2 is no longer in the cache"):
        resolve_local("smollm2")
    monkeypatch.setattr(catalog, "installed", lambda name: folder)
    monkeypatch.setattr(catalog, "PAIRS", tmp_path)
    assert resolve("smollm2") == resolve_local("smollm2") == folder
    pair = Pair.find("smollm2")
    assert (pair.name, pair.target_path) == ("smollm2", folder)
    assert pair.drafter_paths == (folder / usual_form(),), "its own weights in fewer bits"
