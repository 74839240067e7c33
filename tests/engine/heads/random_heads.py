"""Drafting heads with random weights, written for any target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.files import tokenizer_digest, write_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.modules import offsets

MASKS, HEADS = 4, 5
SEEDS = {"medusa": 0, "eagle": 3, "hydra": 6, "eagle3": 9, "parallelspec_eagle": 12}
SEEDS |= {"parallelspec_medusa": 15, "dflash": 15, "mtp": 21}
"""Of all kinds: with this seed some drafts of a kind are accepted."""


def make_heads(folder: Path, target: Path, kinds: Iterable[str] = SEEDS, **options: object) -> Path:
    """Write a head of each kind and return the folder that holds them."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        make_head(folder / kind, kind, target, seed=SEEDS[kind], **options)
    return folder


def with_heads(pair: Pair, folder: Path) -> Pair:
    """Return a pair with a head of each kind: the pair's own, or a random one."""
    own = [kind for kind in SEEDS if pair.heads_path and (pair.heads_path / kind).is_dir()]
    if not folder.exists():
        make_heads(folder, pair.target_path, [kind for kind in SEEDS if kind not in own])
        for kind in own:
            (folder / kind).symlink_to(pair.heads_path / kind, target_is_directory=True)
    return replace(pair, heads_path=folder)


def with_eagle3(pair: Pair, folder: Path) -> Pair:
    """Return a pair of `with_heads` with the EAGLE-3 head in place of EAGLE's."""
    assert pair.heads_path
    if not folder.exists():
        folder.mkdir()
        (folder / "eagle").symlink_to(pair.heads_path / "eagle3", target_is_directory=True)
    return replace(pair, heads_path=folder)


def make_head(
    path: Path,
    kind: str,
    target: Path,
    *,
    seed: int = 0,
    own: bool = False,
    scale: float = 0.3,
    **changes: object,
) -> Path:
    """Write a random head for a target; `changes` replace fields of its config."""
    config = read_config(target)
    d = config.hidden_size
    heads = 4 if d % 4 == 0 else 1
    shape = {
        "hidden_size": d,
        "intermediate_size": 2 * d,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kind == "dflash" else heads // 2 or 1,
        "head_dim": 2 * (d // heads // 2),
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "max_position_embeddings": config.max_position_embeddings,
    }
    fields = {
        "kind": kind,
        "hidden_size": d,
        "vocab_size": config.vocab_size,
        "tokenizer": tokenizer_digest(target),
        "target": target.name,
        "own_lm_head": own and KINDS[kind].sized_by == "heads",
        "biased": own and kind in ("hydra", "eagle", "parallelspec_eagle"),
    }
    fields |= {"shape": shape} if KINDS[kind].layered else {"heads": HEADS, "layers": 1}
    fields |= {KINDS[kind].sized_by: MASKS} if KINDS[kind].sized_by in ("masks", "block") else {}
    if kind == "dflash":
        fields |= {"features": (1, 2, -1), "windows": (0, 5), "qk_norm": True}
    if kind == "eagle3":
        usual = config.num_hidden_layers >= 5
        fields |= {"draft_vocab": config.vocab_size // 2, "features": () if usual else (0, 1, 2)}
    head = HeadConfig(**fields | changes)
    random = torch.Generator().manual_seed(seed)

    def tensor(name: str, size: tuple[int, ...]) -> torch.Tensor:
        if "norm" in name:
            return 1 + 0.2 * torch.randn(size, generator=random)
        noise = torch.randn(size, generator=random) * scale / (size[-1] ** 0.5 if len(size) > 1 else 10)
        if name.startswith("mask"):
            return 1 + noise
        if name == "fc.weight":  # the predicted state is close to the one that is read
            noise[:, -d:] += torch.eye(d)
        if kind == "dflash" and name.endswith(("v_proj.weight", "o_proj.weight")):
            noise += 4 * torch.eye(*size)  # attention returns the states that it reads
        if name.endswith("res_connection.weight"):
            noise[:, :d] += torch.eye(d)
        return noise

    path.mkdir(parents=True, exist_ok=True)
    tensors = {n: tensor(n, s) for n, s in sorted(KINDS[kind].tensors(head).items()) if n != "d2t"}
    ids = torch.arange(head.vocab_size)
    if n := head.draft_vocab:
        ids = torch.randperm(head.vocab_size, generator=random)[:n]
        ids = ids if own else ids.sort().values
        tensors["d2t"] = offsets(ids)
    if kind == "eagle3":
        _add_ends(tensors, head, target, ids)
    write_head(path, head, tensors)
    return path


def _add_ends(tensors: dict[str, torch.Tensor], head: HeadConfig, target: Path, ids: torch.Tensor) -> None:
    """Add the target's LM head and embedding to an EAGLE-3 head's tensors."""
    names, weights = ("model.embed_tokens.weight", "lm_head.weight"), Checkpoint(target)
    embedding, *rest = (
        weights.take(name, torch.device("cpu"), torch.float32) for name in names if name in weights.shapes
    )
    tensors["lm_head.weight"] += (rest or [embedding])[0][ids]
    if head.own_embedding:
        tensors["embed_tokens.weight"] += embedding
