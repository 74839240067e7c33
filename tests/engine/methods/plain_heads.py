"""Slow drafting heads, written from the papers: no KV cache, each row reads the whole text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.types import Sampling
from tests.engine.heads.forms import normed, reference_layer
from tests.engine.toy import warp_plainly

Rows = Callable[[list[int]], Tensor]
"""Tokens drafted after the text -> logits of the next token, (V,)."""
ONE = Sampling(1.0)


class Node(NamedTuple):
    token: int
    parent: int
    """Index of its parent; -1 is the last token of the text."""


class Plain:
    """A transformers target and a head's tensors, in double precision."""

    def __init__(self, model: torch.nn.Module, path: Path) -> None:
        self._model = model.double().requires_grad_(False)
        self._config = json.loads((path / "config.json").read_text())
        self._t = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in load_file(path / "model.safetensors").items()
        }
        self._embedding = model.get_input_embeddings().weight.detach()
        self._states: dict[tuple[int, ...], Tensor] = {}
        self.levels = 0
        """Tokens that the next draft may have: a block has as many masks."""

    @torch.no_grad()
    def own(self, x: list[int]) -> int:
        return int(self._logits(self.states(x)[-1]).argmax())

    @torch.no_grad()
    def p(self, x: list[int], sampling: Sampling) -> np.ndarray:
        return warp_plainly(self._logits(self.states(x)[-1]), sampling)

    @torch.no_grad()
    def states(self, x: list[int]) -> Tensor:
        """Return the target's final normed states, (L, D); each text is computed once."""
        if tuple(x) not in self._states:
            self._states[tuple(x)] = self._model.model(torch.tensor([x])).last_hidden_state[0]
        return self._states[tuple(x)]

    def _logits(self, state: Tensor) -> Tensor:
        return self._model.get_output_embeddings()(state)

    @torch.no_grad()
    def rows(self, x: list[int]) -> Rows:
        return getattr(self, "_" + self._config["kind"])(x, self.states(x))

    def _drafted(self, state: Tensor) -> Tensor:
        """Return the logits of a head without its own LM head; -inf for tokens it cannot draft."""
        return self._over_all_tokens(self._logits(state))

    def _over_all_tokens(self, drafted: Tensor) -> Tensor:
        """Return logits with -inf for tokens that the head cannot draft, (V,).

        Args:
            drafted: Logits of the tokens that it drafts, (N,), or of all tokens, (V,).
        """
        if "d2t" not in self._t:
            return drafted
        logits = torch.full((len(self._embedding),), -torch.inf, dtype=drafted.dtype)
        for i, offset in enumerate(self._t["d2t"].tolist()):
            token = i + offset
            logits[token] = drafted[i if len(drafted) < len(logits) else token]
        return logits

    def _medusa(self, x: list[int], f: Tensor) -> Rows:
        def row(path: list[int]) -> Tensor:
            i, h, layers = len(path), f[len(x) - 2], self._config["layers"]
            for j in range(layers):
                h = self._block(f"{i}.{j}.linear", h)
            own = self._t.get(f"{i}.{layers}.weight")
            return self._drafted(h) if own is None else self._over_all_tokens(own @ h)

        return row

    def _block(self, at: str, h: Tensor) -> Tensor:
        return h + torch.nn.functional.silu(self._t[f"{at}.weight"] @ h + self._t[f"{at}.bias"])

    def _hydra(self, x: list[int], f: Tensor) -> Rows:
        def row(path: list[int]) -> Tensor:
            at = f"hydra_mlp.{len(path)}.1."
            z = torch.cat([f[len(x) - 2], *(self._embedding[t] for t in [x[-1], *path])])
            w = {
                name: self._t[at + name]
                for name in ("linear.weight", "linear.bias", "res_connection.weight", "res_connection.bias")
            }
            y = w["res_connection.weight"] @ z + w["res_connection.bias"]
            y = y + torch.nn.functional.silu(w["linear.weight"] @ z + w["linear.bias"])
            for j in range(1, self._config["layers"]):
                y = self._block(f"hydra_mlp.{len(path)}.{2 * j + 1}.linear", y)
            own = self._t.get(f"hydra_lm_head.{len(path)}.1.weight")
            return self._drafted(y) if own is None else own @ y + self._t[f"hydra_lm_head.{len(path)}.1.bias"]

        return row

    def _mtp(self, x: list[int], f: Tensor) -> Rows:
        """EAGLE's, with norms."""
        return self._eagle(x, f)

    def _fc(self, e: Tensor, f: Tensor) -> Tensor:
        e, f = self._norm(self._config["embedding_scale"] * e, "enorm.weight"), self._norm(f, "hnorm.weight")
        return self._t["fc.weight"] @ torch.cat([e, f]) + self._t.get("fc.bias", torch.zeros(1))

    def _eagle(self, x: list[int], f: Tensor) -> Rows:
        @cache
        def state(path: tuple[int, ...]) -> Tensor:
            """The state predicted for the last token of a path."""
            return self._norm(self._layer(inputs(path)), "norm.weight")[-1]

        exact = [self._fc(self._embedding[x[j]], f[j - 1]) for j in range(1, len(x))]

        def inputs(path: tuple[int, ...]) -> list[Tensor]:
            return exact + [self._fc(self._embedding[t], state(path[:i])) for i, t in enumerate(path)]

        return lambda path: self._drafted(state(tuple(path)))

    def _eagle3(self, x: list[int], _: Tensor) -> Rows:
        """A row reads a token and the previous token's vector; its output is the token's vector."""
        states = self._model.model(torch.tensor([x]), output_hidden_states=True).hidden_states
        layers = len(states) - 1
        ids = self._config["features"] or [2, layers // 2, layers - 3]
        f = torch.cat([states[i][0] for i in ids], 1) @ self._t["fc.weight"].T
        embedding = self._t.get("embed_tokens.weight", self._embedding)

        @cache
        def vector(path: tuple[int, ...]) -> Tensor:
            rows = [(x[j], f[j - 1]) for j in range(1, len(x))]
            rows += [(token, vector(path[:i])) for i, token in enumerate(path)]
            e = self._norm(
                torch.stack([embedding[token] for token, _ in rows]), "layers.0.input_layernorm.weight"
            )
            v = torch.stack([v for _, v in rows])
            h = self._norm(v, "layers.0.hidden_norm.weight")
            return self._block_of(h if self._config["norm_before_residual"] else v, torch.cat([e, h], 1))[-1]

        def row(path: list[int]) -> Tensor:
            drafted = self._t["lm_head.weight"] @ self._norm(vector(tuple(path))[None], "norm.weight")[0]
            return self._over_all_tokens(drafted)

        return row

    def _parallelspec_eagle(self, x: list[int], f: Tensor) -> Rows:
        @cache
        def row(masks: int) -> Tensor:
            inputs = [self._fc(self._embedding[x[j]], f[j - 1]) for j in range(1, len(x))]
            inputs += [
                self._fc(self._t["mask.embedding"][k], self._t["mask.feature"][k]) for k in range(masks)
            ]
            return self._drafted(self._layer(inputs)[-1])

        return lambda path: row(len(path))

    def _parallelspec_medusa(self, x: list[int], f: Tensor) -> Rows:
        @cache
        def row(masks: int) -> Tensor:
            inputs = [
                self._config.get("embedding_scale", 1) * self._embedding[x[j]] + f[j - 1]
                for j in range(1, len(x))
            ]
            inputs += [self._t["mask.embedding"][k] for k in range(masks)]
            return self._drafted(self._norm(self._layer(inputs), "norm.weight")[-1])

        return lambda path: row(len(path))

    def _dflash(self, x: list[int], _: Tensor) -> Rows:
        """Return the rows of a block of `levels` masks, by transformers' drafter of this kind."""
        output = self._model.model(torch.tensor([x[:-1]]), output_hidden_states=True)
        states = torch.cat([output.hidden_states[i] for i in self._config["features"]], -1)
        token, windows = self._config["mask_token"], self._config["windows"]
        mask = self._t["noise.embedding"][0] if token < 0 else self._embedding[token]
        scale, end = self._config["embedding_scale"], len(x) + self.levels
        block = torch.stack(
            [scale * self._embedding[x[-1]], *[mask if token < 0 else scale * mask] * self.levels]
        )
        distances = torch.arange(end)[None] - torch.arange(len(x) - 1, end)[:, None]
        near = distances.abs() < (max(windows) or end)
        near &= distances <= (0 if self._config["causal"] else end)
        masks = {"full_attention": None, "sliding_attention": near[None, None]}
        positions = torch.arange(end)[None]
        out = self._drafter()(block[None], states, masks, positions).last_hidden_state[0]
        logits = (
            [self._over_all_tokens(row @ self._t["lm_head.weight"].T) for row in out]
            if ("lm_head.weight" in self._t)
            else [self._drafted(row) for row in out]
        )
        return lambda path: logits[1 + len(path)]

    def _drafter(self) -> torch.nn.Module:
        shape, windows = dict(self._config["shape"]), self._config["windows"]
        kinds = ["sliding_attention" if window else "full_attention" for window in windows]
        model = MuseGlimmerAssistantModel(
            MuseGlimmerAssistantConfig(
                **shape,
                num_hidden_layers=len(windows),
                layer_types=kinds,
                target_layer_ids=self._config["features"],
            )
        )
        names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
        kept = {n: t for n, t in self._t.items() if n.partition(".")[0] not in ("d2t", "lm_head", "noise")}
        model.load_state_dict({names.get(name, name): tensor for name, tensor in kept.items()})
        return model.double().eval()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return normed(x, self._t[name], self._config["shape"]["rms_norm_eps"]) if name in self._t else x

    def _layer(self, inputs: list[Tensor]) -> Tensor:
        """Return the output of one Llama layer over a chain, (n, D)."""
        x = torch.stack(inputs)
        return self._block_of(x, self._norm(x, "layers.0.input_layernorm.weight"))

    def _block_of(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the layer's output for the residual input x and the attention input h, (n, D)."""
        shape = self._config["shape"]
        heads, kv = shape["num_attention_heads"], shape["num_key_value_heads"]
        theta, eps = shape["rope_parameters"]["rope_theta"], shape["rms_norm_eps"]
        return reference_layer(self._t, "layers.0", h, x, heads, kv, theta, eps)


def static_tree(
    rows: Rows, paths: set[tuple[int, ...]], depth: int, x: list[int], sampling: Sampling, draws: Draws | None
) -> list[Node]:
    """Return a tree file's nodes: child r is the r-th most probable, or r-th drawn, token."""
    places: list[tuple[int, ...]] = [()]
    drafted: dict[tuple[int, ...], list[int]] = {(): []}
    tree, number = list[Node](), {(): -1}
    for level in range(depth):
        fresh = list[tuple[int, ...]]()
        for place in places:
            ranks = sorted(path[-1] for path in paths if path[:-1] == place and len(path) == level + 1)
            if not ranks:
                continue
            row = rows(drafted[place])
            weights = list(warp_plainly(row, sampling if draws else ONE))
            for rank in ranks:
                if not max(weights):  # the draft vocabulary is smaller than the tree is wide
                    break
                if draws:
                    token = draws.choose(Key(len(x) + level, "draft", len(fresh)), torch.tensor(weights))
                else:
                    token = max(range(len(weights)), key=lambda t: weights[t])
                weights[token] = 0.0
                child = (*place, rank)
                number[child] = len(tree)
                tree.append(Node(token, number[place]))
                drafted[child] = [*drafted[place], token]
                fresh.append(child)
        places = fresh
    return tree


def dynamic_tree(rows: Rows, top: int, depth: int, total: int) -> list[Node]:
    """Expand the best nodes of each level, then keep the best nodes of all (EAGLE-2)."""
    nodes: list[tuple[float, list[int], int]] = []
    frontier: list[tuple[float, list[int], int]] = [(1.0, [], -1)]
    for _ in range(depth):
        level = list[tuple[float, list[int], int]]()
        for value, path, number in frontier:
            q = warp_plainly(rows(path), ONE)
            for token in sorted(range(len(q)), key=lambda t: -q[t])[:top]:
                nodes.append((value * q[token], [*path, token], number))
                level.append((value * q[token], [*path, token], len(nodes) - 1))
        best = sorted(level, key=lambda node: -node[0])[:top]
        frontier = [node for node in level if node in best]
    kept = sorted(sorted(range(len(nodes)), key=lambda i: -nodes[i][0])[:total])
    return [Node(nodes[i][1][-1], kept.index(nodes[i][2]) if nodes[i][2] >= 0 else -1) for i in kept]
