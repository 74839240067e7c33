"""The card of a pair's drafting heads: their training and their acceptance rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.files import HeadWeights, read_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.modules import target_ids
from specscope.engine.heads.packed import Frozen, Texts
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape
from specscope.engine.training.card import fill, table
from specscope.engine.training.data import SOURCES
from specscope.engine.training.heads.features import LAST, features_of
from specscope.engine.training.heads.losses import DraftAcceptance, acceptance
from specscope.engine.training.heads.train import PLOT, read_frozen
from specscope.engine.training.loop import read_facts
from specscope.engine.training.measure import LoadedPair, prompt_sets
from specscope.engine.training.settings import HEAD_DEFAULTS, CardSettings
from specscope.engine.types import Sampling

FOLDER = "heads"
DRAFTS = 5
"""Tokens drafted by a head of any length and by the pair's drafter."""


class Answers(NamedTuple):
    """The target's greedy answers to one set of prompts."""

    name: str
    texts: tuple[Texts, ...]
    """One answered prompt each; the anchors are the tokens of the answer."""
    drafter: DraftAcceptance


class MeasuredHead(NamedTuple):
    """One head and its measurements."""

    kind: str
    parameters: int
    bytes: int
    facts: dict[str, Any]
    """Facts of its training; empty if unknown."""
    accepted: dict[str, DraftAcceptance]
    """By name of the set of prompts."""
    drawn: bool


def make_heads_card(pair: Pair, folder: Path, settings: CardSettings) -> str:
    """Measure the heads in a pair's folder, on one thread; return their card as Markdown."""
    kinds = [kind for kind in HEAD_DEFAULTS if (folder / FOLDER / kind).is_dir()]
    if not kinds:
        raise UsageError(f"{folder / FOLDER} holds no head; specscope train medusa, for example, makes one")
    target = pair.target_path
    shape = ModelShape.of(read_config(target), target)
    frozen = read_frozen(target, shape, torch.device("cpu"))
    loaded = LoadedPair.load(pair)
    answers = list(_answers(loaded, frozen, settings))
    heads = [_measure(folder / FOLDER / kind, target, loaded.target, frozen, answers) for kind in kinds]
    return render(answers, heads, read_facts(folder / FOLDER).get("notes", []))


def restore(weights: HeadWeights) -> Any:
    """Return the module of a head, as it is trained.

    A UsageError if it has parts that no trained head has: LM heads of a kind that learns none,
    biases, more than one layer, windows, or a token of the target as mask.
    """
    config, kind = weights.config, KINDS[weights.config.kind]
    strange = config.biased or config.qkv_bias or config.layers != 1 or config.mask_token >= 0
    strange = strange or config.windows != (0,)
    if config.kind not in HEAD_DEFAULTS or strange or (config.own_lm_head and not kind.own_lm_heads):
        raise UsageError(
            f"kind {config.kind} with own LM heads, biases or more layers cannot be measured here"
        )
    head = kind.module(config)
    head.load_state_dict({name: t for name, t in weights.tensors.items() if name != "d2t"})
    return head


def _answers(loaded: LoadedPair, frozen: Frozen, settings: CardSettings) -> Iterator[Answers]:
    window = min(settings.window, loaded.pair.context)
    new = min(settings.new_tokens, window // 2)
    for name, prompts in prompt_sets(settings, 0.01, SOURCES).items():
        texts, drafted = list[Texts](), DraftAcceptance((0,) * DRAFTS, (0,) * DRAFTS)
        for ids in map(loaded.pair.encode, prompts):
            if len(ids) + new > window:
                continue
            written, logits = loaded.write(ids, new, Sampling())
            texts.append(_text(loaded, frozen, ids, written))
            q = loaded.read(loaded.drafter, (ids + written)[:-1])[len(ids) - 1 :]
            drafted += chained((q.argmax(-1) == logits.argmax(-1)).tolist()[1:], DRAFTS)
        answered = tuple(text for text in texts if len(text.anchors))
        if not answered:
            raise UsageError(
                f"{name}: no prompt with an answer fits into {window} tokens; give other prompts"
            )
        yield Answers(name, answered, drafted)


def _text(loaded: LoadedPair, frozen: Frozen, prompt: Sequence[int], written: Sequence[int]) -> Texts:
    ids = np.array([*prompt, *written])
    (features,) = features_of(loaded.target, [ids])
    tokens = torch.from_numpy(ids)
    anchors = np.arange(len(prompt), len(ids) - 1)
    return Texts(tokens, frozen.embed(tokens), features, np.array([0, len(ids)]), anchors)


def chained(matches: Sequence[bool], count: int) -> DraftAcceptance:
    """Return the acceptance of drafts of `count` tokens from each token of an answer on.

    `matches` says whether the drafter's token equals the target's, for each token of the answer. As
    long as its drafts are right, the drafter reads the answer itself, so this does not depend on
    where it began.
    """
    reached, accepted = [0] * count, [0] * count
    for begin in range(len(matches)):
        for k, match in enumerate(matches[begin : begin + count]):
            reached[k] += 1
            accepted[k] += match
            if not match:
                break
    return DraftAcceptance(tuple(reached), tuple(accepted))


def read_by(config: HeadConfig, text: Texts, target: Decoder) -> Texts:
    """Return a text with the states that a head reads."""
    if config.features == LAST:
        return text
    (states,) = features_of(target, [text.ids.numpy()], config.features)
    return text._replace(states=states)


def _measure(
    path: Path, target: Path, decoder: Decoder, frozen: Frozen, answers: Sequence[Answers]
) -> MeasuredHead:
    kind, weights = path.name, read_head(path, target)
    head, count = restore(weights), KINDS[kind].levels(weights.config) or DRAFTS
    if weights.config.draft_vocab:
        frozen = frozen.shortened(target_ids(weights.tensors["d2t"]).sort().values)
    accepted = {
        part.name: reduce(
            add,
            (acceptance(head, read_by(weights.config, t, decoder), frozen, count) for t in part.texts),
        )
        for part in answers
    }
    return MeasuredHead(
        kind,
        sum(parameter.numel() for parameter in head.parameters()),
        sum(f.stat().st_size for f in path.iterdir()),
        read_facts(path),
        accepted,
        (path / PLOT).is_file(),
    )


def render(answers: Sequence[Answers], heads: Sequence[MeasuredHead], notes: Sequence[str] = ()) -> str:
    columns = ("head", "parameters", "file", "steps", "tokens", "minutes", "lambda", "loss", "begun from")
    return fill(
        "heads",
        notes,
        trainings=table(columns, map(_training, heads)),
        text=_text_of(heads),
        acceptance=_acceptance(answers, heads),
        curves="\n".join(f"![Curves of {head.kind}]({head.kind}/{PLOT})" for head in heads if head.drawn),
    )


def _training(head: MeasuredHead) -> tuple[str, ...]:
    phase, options = head.facts.get("phase", {}), head.facts.get("options", {})
    fade = options.get("fade")
    return (
        head.kind,
        f"{head.parameters / 1e6:.2f} M",
        f"{head.bytes / 1e6:.1f} MB",
        str(phase.get("steps", "")),
        f"{phase['tokens']:,}" if phase else "",
        str(phase.get("minutes", "")),
        "1" if fade == 1 else f"{fade}^k",
        _loss(options),
        _origin(head.facts.get("begun_from")),
    )


def _origin(before: dict[str, Any] | None) -> str:
    if not before:
        return "random weights"
    steps = (before.get("phase") or {}).get("steps", "?")
    return f"{before.get('kind')}, {steps} steps, from {_origin(before.get('begun_from'))}"


def _loss(options: dict[str, Any]) -> str:
    share, regression = float(options.get("token_loss", 0)), float(options.get("regression", 0))
    terms = (("cross-entropy", share), ("KL(p, q)", 1 - share), ("smooth L1", regression))
    return " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in terms if weight)


def _text_of(heads: Sequence[MeasuredHead]) -> str:
    facts = next((head.facts for head in heads if head.facts), None)
    if facts is None:
        return ""
    options = facts["options"]
    return (
        f"Text: {facts['answers']:,} answers of the target, {facts['text_tokens']:,} tokens with their prompts, which were "
        "cut from the pair's corpus; half of the answers greedy, half at temperature 1. Every fiftieth was held out. "
        f"{options['optimizer']} for the matrices and AdamW for the rest, batches of {options['batch']} texts, seed "
        f"{options['seed']}."
    )


def _acceptance(answers: Sequence[Answers], heads: Sequence[MeasuredHead]) -> str:
    most = max(len(a.rates) for head in heads for a in head.accepted.values())
    rows = list[tuple[str, ...]]()
    sets = [*((part.name, [part.name]) for part in answers), ("**all**", [part.name for part in answers])]
    by_name = {part.name: part for part in answers}
    for shown, names in sets:
        prompts = sum(len(by_name[name].texts) for name in names)
        entries = [(head.kind, [head.accepted[name] for name in names]) for head in heads]
        entries.append(("the pair's drafter", [by_name[name].drafter for name in names]))
        for kind, parts in entries:
            total = reduce(add, parts)
            rates = ["" if r is None else f"{r:.3f}" for r in total.rates]
            rates += [""] * (most - len(rates))
            rows.append((shown, str(prompts), kind, *rates, f"{total.length:.2f}", f"{total.reached[0]:,}"))
    places = [f"token {k + 1}" for k in range(most)]
    return table(("prompts", "number", "head", *places, "tokens per forward", "drafts"), rows)
