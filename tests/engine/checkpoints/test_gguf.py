"""GGUF files: logits equal transformers' own loading; broken files leave no directory."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specscope.engine.checkpoints import gguf
from specscope.engine.checkpoints.gguf import converted
from specscope.engine.checkpoints.gguf_file import KINDS
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.progress import Progress
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


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_for_every_block_type(tmp_path, kind):
    file = write(tmp_path / "a.gguf", kind)
    assert_equal(converted(file), file)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
def test_logits_equal_transformers_for_every_architecture(tmp_path, arch):
    file = write(tmp_path / "a.gguf", "Q8_0", arch, tied=True)
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
    file = write(tmp_path / "a.gguf", "Q4_0")
    folder = converted(file)
    with monkeypatch.context() as patch:
        patch.setattr(
            "specscope.engine.checkpoints.gguf_file.GgufFile",
            lambda file: pytest.fail("the file is read again"),
        )
        assert converted(file) == folder
    os.utime(file, ns=(0, 0))
    assert converted(file) != folder


def test_the_manifest_names_the_source_and_the_hashes_of_all_files(tmp_path):
    file = write(tmp_path / "a.gguf", "Q4_0")
    folder = converted(file)
    manifest = json.loads((folder / gguf.MANIFEST).read_text())
    assert manifest["source_sha256"] == gguf.sha256_of(file)
    assert manifest["files"].keys() == {path.name for path in folder.iterdir()} - {gguf.MANIFEST}
    assert manifest["files"]["config.json"] == gguf.sha256_of(folder / "config.json")


def test_large_weights_are_split_into_shards(tmp_path, monkeypatch):
    file = write(tmp_path / "a.gguf", "Q8_0")
    monkeypatch.setattr(gguf, "SHARD", 600_000)
    folder = converted(file)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_equal(folder, file)


@pytest.mark.parametrize("kept", [0, 3, 3000, 0.99])
def test_a_truncated_file_is_refused(tmp_path, cache, kept):
    file = write(tmp_path / "a.gguf", "Q4_0")
    content = file.read_bytes()
    file.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    refused(file, cache, "not a complete GGUF file")


def lying(*, keys=1, tensors=0, body=b""):
    """Return a file of 5 KB with these counts."""
    return (b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body).ljust(5000, b"\0")


def key(kind, value):
    return struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *(
            (lying(body=key(9, struct.pack("<IQ", kind, 2**30))), "claims 1,073,741,824")
            for kind in (0, 7, 8, 12)
        ),
        (lying(body=key(9, struct.pack("<IQ", 9, 1))), "an array of the type 9"),
        (lying(body=key(13, b"")), "the unknown type 13"),
        (lying(body=key(8, struct.pack("<Q", 2**62))), "values or characters where"),
        (lying(keys=2**30), "claims 1,073,741,824"),
        (lying(keys=0, tensors=2**30), "claims 1,073,741,824"),
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


def test_a_file_of_another_format_is_refused(tmp_path, cache):
    file = tmp_path / "a.gguf"
    file.write_bytes(os.urandom(4096))
    refused(file, cache, "not a complete GGUF file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "TQ1_0"}, "is of type TQ1_0; supported are F32"),
        ({"arch": "gemma2"}, "architecture 'gemma2' is not supported; supported are llama, qwen2, qwen3"),
        ({"drop": "blk.1.ffn_up.weight"}, "lacks the tensor blk.1.ffn_up.weight"),
        ({"inner": 512}, r"blk.0.ffn_gate.weight has shape \[256, 256\]; its metadata asks for \[512, 256\]"),
        ({"rope": {"scaling.type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        ({"extra": {"rope_freqs.weight": np.full(64, 3.0, np.float32)}}, "none of the published llama3 ones"),
    ],
)
def test_an_unsupported_file_is_refused(tmp_path, cache, options, message):
    refused(write(tmp_path / "a.gguf", **options), cache, message)


def test_a_device_or_a_missing_file_is_refused(tmp_path, cache):
    refused(Path("/dev/zero"), cache, "not a regular file")
    refused(tmp_path / "missing.gguf", cache, "cannot read")


def test_a_disk_with_too_little_space_is_refused(tmp_path, cache, monkeypatch):
    file = write(tmp_path / "a.gguf", "Q4_0")
    monkeypatch.setattr(gguf.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    refused(file, cache, r"need \d MiB as safetensors, .* has 1 MiB free")


def test_an_exception_in_the_progress_leaves_no_directory(tmp_path, cache):
    def stop(progress):
        if progress.done > progress.total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(write(tmp_path / "a.gguf", "Q4_0"), stop)
    assert list(cache.iterdir()) == []


def test_progress_grows_from_0_to_the_size_of_the_weights(tmp_path):
    reports: list[Progress] = []
    folder = converted(write(tmp_path / "a.gguf", "Q4_0"), reports.append)
    size = json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    steps = [report.done for report in reports]
    assert {report.total for report in reports} == {size}
    assert (steps[0], steps[-1]) == (0, size)
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("kind", "more"), [("linear", {}), ("yarn", {"original_max_position_embeddings": 128})]
)
def test_linear_and_yarn_rotations_are_read_from_the_file(tmp_path, kind, more):
    rope = {"scaling.type": kind, "scaling.factor": 4.0}
    folder = converted(write(tmp_path / "a.gguf", rope=rope))
    read = json.loads((folder / "config.json").read_text())["rope_parameters"]
    assert ({"rope_type": kind, "factor": 4.0} | more).items() <= read.items()


def test_a_llama3_table_of_frequencies_becomes_a_llama3_rotation(tmp_path):
    table = llama3_table(factor=8.0, base=10000.0)
    folder = converted(write(tmp_path / "a.gguf", extra={"rope_freqs.weight": table}))
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("llama3", 8.0)


def llama3_table(factor, base):
    """Return llama.cpp's divisors: 1 for short wavelengths, `factor` for long ones."""
    dim = WIDTH // 2
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * base ** (i / dim)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        divisors.append(
            1.0
            if wavelength < 8192 / 4
            else factor
            if wavelength > 8192
            else 1 / ((1 - smooth) / factor + smooth)
        )
    return np.array(divisors, np.float32)


def refused(file, cache, message):
    """Check that a conversion fails with one line and leaves no directory."""
    with pytest.raises(ModelError, match=message) as caught:
        converted(file)
    assert "\n" not in str(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []
