"""Text that the target writes, to train drafters on: in use they read the target's answers.

Prompts come from the corpus. If the target has a chat template, a prompt is the first turn of a
chat, in the target's own format: as one user message through its template, as in a run. If it has
none, or if the corpus's format is its own (`specscope.engine.training.data`), documents are cut: a
chat after one of its `<|assistant|>` markers, any other document somewhere in its first tokens.
Every second prompt is answered greedily, the others at temperature 1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import nan
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.slots import Rows
from specscope.engine.training import data
from specscope.engine.training.loop import Training, TrainingProgress
from specscope.engine.training.settings import DistilOptions, HeadOptions

SLOTS = 128
CACHE_BYTES = 2 << 30
"""Most bytes of keys and values; fewer answers are written at once where this limit is reached."""
_PREFILLED = 8


@dataclass(slots=True)
class Text:
    """A prompt with its answer."""

    ids: list[int]
    answer: int
    number: int = 0
    """Number of the prompt; answers to even ones are greedy, the others drawn at temperature 1."""


@dataclass(frozen=True, slots=True)
class Written:
    """All texts of a writer; another one with the same arguments can go on from them."""

    finished: list[Text]
    unfinished: list[Text]
    """One for each slot."""
    steps: int

    @property
    def tokens(self) -> int:
        return self.steps * len(self.unfinished)


class AnswerWriter:
    """Writes answers; each token is a function of the seed, the prompts and the number of slots.

    `prompts` is endless; `longest` is the most tokens of a prompt and of an answer; `slots` answers
    are written at once.
    """

    def __init__(
        self,
        target: Decoder,
        prompts: Iterator[np.ndarray],
        eos: tuple[int, ...],
        longest: tuple[int, int],
        seed: int,
        slots: int,
        before: Written | None = None,
    ) -> None:
        self._target, self._prompts, self._eos, self._seed = target, prompts, eos, seed
        self._most = longest[1]
        self._next = 0
        """Number of the next prompt."""
        if before is None:
            before = Written([], [self._start() for _ in range(slots)], 0)
        else:
            self._next = 1 + max(text.number for text in before.unfinished)
            next(islice(prompts, self._next, self._next), None)  # skip the prompts that were used
        self.written = before
        self._cache = target.new_cache(len(self.written.unfinished), sum(longest) + 1)

    def run(self, tokens: int, each_step: Callable[[Written], None]) -> Written:
        """Write `tokens` tokens, with those written before; the last texts are cut off.

        `each_step` is called after each token of all slots; it may raise an error to stop.
        """
        while self.written.tokens < tokens:
            self._step()
            each_step(self.written)
        return self.written

    def _start(self) -> Text:
        ids = next(self._prompts).tolist()
        self._next += 1
        return Text(ids, len(ids), self._next - 1)

    def _step(self) -> None:
        finished, texts = self.written.finished, self.written.unfinished
        for slot, token in enumerate(self._next_tokens(texts)):
            text = texts[slot]
            text.ids.append(token)
            if token in self._eos or len(text.ids) == text.answer + self._most:
                finished.append(text)
                texts[slot] = self._start()
                self._cache.reset(slot)
        self.written = Written(finished, texts, self.written.steps + 1)

    def _next_tokens(self, texts: Sequence[Text]) -> list[int]:
        """Return the next token of each text; text i is in slot i."""
        cache = self._cache
        self._prefill(texts)
        cache.pad(max(cache.length(slot) for slot in range(cache.slots)), 1)
        rows = [Rows.chain(slot, text.ids[-1:], cache.length(slot)) for slot, text in enumerate(texts)]
        logits = self._target.forward(cache, Rows.join(rows), np.arange(len(rows))).logits
        tokens = logits.argmax(-1)
        drawn = [slot for slot, text in enumerate(texts) if text.number % 2]
        if drawn:
            draws = torch.Generator(logits.device).manual_seed(self._seed << 32 | self.written.steps)
            tokens[drawn] = torch.multinomial(logits[drawn].softmax(-1), 1, generator=draws)[:, 0]
        return tokens.tolist()

    def _prefill(self, texts: Sequence[Text]) -> None:
        """Read the tokens of each text that the cache lacks, except its last one."""
        cache = self._cache
        cache.pad(0)
        rows = [
            Rows.chain(slot, text.ids[start:-1], start)
            for slot, text in enumerate(texts)
            if (start := cache.length(slot)) < len(text.ids) - 1
        ]
        for first in range(0, len(rows), _PREFILLED):
            part = Rows.join(rows[first : first + _PREFILLED])
            self._target.forward(cache, part, np.empty(0, dtype=np.int64))


def slots_for(target: Decoder, longest: tuple[int, int], tokens: int) -> int:
    row = target.shape.kv_numbers * target.dtype.itemsize
    return max(1, min(SLOTS, tokens, CACHE_BYTES // (row * (sum(longest) + 1))))


FILE = "written.safetensors"
PART = "writing.safetensors"
"""The texts of an unfinished writing, beside the file that it will become."""
LONGEST_CUT = 160
"""Most tokens of a document that is cut short."""
LONGEST_PROMPT = 400
"""Most tokens of a prompt with a chat template."""
_KEPT_EVERY = 50
"""Tokens of each answer after which the texts are stored."""


def check_lengths(options: DistilOptions | HeadOptions, context: int, known_by: str) -> None:
    """Check that texts and answers fit the context of the models."""
    for name, most in (("sequence", context), ("answer", context - 1)):
        if getattr(options, name) > most:
            raise UsageError(
                f"{name} is {getattr(options, name)}; it must be at most {most}: {known_by} knows {context} positions"
            )


def cut_prompts(corpus: data.Corpus, assistant: int | None, longest: int, seed: int) -> Iterator[np.ndarray]:
    """Yield prompts without end: documents of the corpus's mixture in random order, cut short.

    `assistant` is the id of the marker before an answer of a chat; None if the tokenizer has none.
    Chats whose first answer begins after `longest` tokens are left out; a UsageError if no document
    can be cut.
    """
    rng, lengths = np.random.default_rng([seed, 1]), np.diff(corpus.starts)
    documents, missed = np.repeat(np.arange(len(lengths)), corpus.repeats), 0
    while missed < 100 * len(documents):
        document = rng.choice(documents)
        ids = corpus.ids[corpus.starts[document] :][: lengths[document] - 1]  # without the end of text
        places = np.arange(min(8, len(ids)), len(ids) + 1)
        if assistant is not None and assistant in ids:
            places = np.flatnonzero(ids == assistant) + 1
        places = places[(places > 0) & (places <= longest)]
        missed = 0 if len(places) else missed + 1
        if len(places):
            yield ids[: rng.choice(places)].astype(np.int64)
    raise UsageError(
        f"no document of the corpus gives a prompt of at most {longest} tokens; give it other text"
    )


def chat_prompts(pair: Pair, documents: Iterable[str], longest: int, seed: int) -> Iterator[np.ndarray]:
    """Return prompts without end: first turns of chats in random order, by `Pair.encode`.

    Only chats that begin with the user are used, and prompts of at most `longest` tokens. A corpus
    without chats is refused at once, before a model is loaded.
    """
    pieces = map(data.split_chat, documents)
    turns = [p[1].strip() for p in pieces if len(p) > 2 and (p[0], p[2]) == data.ROLES[:2] and p[1].strip()]
    if not turns:
        raise UsageError(
            f"no document of the corpus is a chat that begins with {data.ROLES[0]}; the chat template of {pair.name} "
            "needs such chats: give it other text"
        )
    return _encoded(pair, turns, longest, seed)


def _encoded(pair: Pair, turns: list[str], longest: int, seed: int) -> Iterator[np.ndarray]:
    rng, found = np.random.default_rng([seed, 1]), True
    while found:
        found = False
        for i in rng.permutation(len(turns)):
            ids = pair.encode(turns[i])
            if len(ids) <= longest:
                found = True
                yield np.array(ids, dtype=np.int64)
    raise UsageError(
        f"no chat of the corpus gives a prompt of at most {longest} tokens; give it other text or lower answer"
    )


def _prompts(
    pair: Pair, options: DistilOptions | HeadOptions, training: Training, corpus: data.Corpus | None
) -> tuple[Iterator[np.ndarray], int]:
    remaining, seed = pair.context - options.answer, options.seed
    text = data.TrainingText.of(options)
    if pair.tokenizer.chat_template not in (None, data.CHAT_TEMPLATE):
        longest = min(LONGEST_PROMPT, remaining)
        return chat_prompts(pair, text.documents, longest, seed), longest
    longest = min(LONGEST_CUT, remaining)
    corpus = corpus or training.read_corpus(text, pair.tokenizer)
    assistant = pair.tokenizer.get_added_vocab().get(data.ROLES[1])
    return cut_prompts(corpus, assistant, longest, seed), longest


def write_text(
    path: Path,
    pair: Pair,
    options: DistilOptions | HeadOptions,
    training: Training,
    corpus: data.Corpus | None = None,
) -> None:
    """Let a pair's target write `options.written` tokens, and store them in the file `path`.

    An interrupted writing (RunCancelled) goes on with the texts stored so far. `corpus` is the
    tokenized text of `options.data`, if it is read already.
    """
    part, folder = path.with_name(PART), pair.target_path
    before = read_part(part, folder) if part.is_file() else None
    prompts, longest_prompt = _prompts(pair, options, training, corpus)
    longest = (longest_prompt, options.answer)
    target = load(folder, training.device, training.dtype)
    slots = slots_for(target, longest, options.written)
    writer = AnswerWriter(target, prompts, pair.eos, longest, options.seed, slots, before)

    def each_step(written: Written) -> None:
        stopped = training.cancel.is_set()
        if stopped or written.steps % _KEPT_EVERY == 0:
            save_part(part, written, folder)
        if stopped:
            raise RunCancelled(
                f"stopped after the target wrote {written.tokens} tokens, which are kept: add --resume to go on"
            )
        training.progress(
            TrainingProgress("written", min(written.tokens, options.written), options.written, nan)
        )

    written = writer.run(options.written, each_step)
    texts = [*written.finished, *written.unfinished]
    save_text(path, [text for text in texts if len(text.ids) > text.answer], folder)
    part.unlink(missing_ok=True)


def fingerprint(folder: Path) -> str:
    """Return a digest of a model's weights, which identifies the target that wrote a text."""
    files = sorted(folder.glob("*.safetensors"))
    return _digest(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files))


@cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _, _ in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def save_part(path: Path, written: Written, target: Path) -> None:
    numbers = np.array([text.number for text in written.unfinished], dtype=np.int64)
    texts = [*written.finished, *written.unfinished]
    save_text(path, texts, target, numbers=numbers, steps=np.array([written.steps]))


def save_text(path: Path, texts: Sequence[Text], target: Path, **more: np.ndarray) -> None:
    """Store a target's text, and `more` tensors; the file appears whole."""
    starts = np.cumsum([0, *(len(text.ids) for text in texts)], dtype=np.int64)
    ids = data.narrow(np.concatenate([np.array(text.ids, dtype=np.int32) for text in texts]))
    answers = starts[:-1] + np.array([text.answer for text in texts])
    part = path.with_suffix(".part")
    tensors = {"ids": ids, "starts": starts, "answers": answers, **more}
    save_file(tensors, part, {"target": fingerprint(target)})
    os.replace(part, path)


def read_text(path: Path, target: Path) -> data.Corpus:
    """Return stored text as a corpus, each answer once in an epoch; without `answers` all count."""
    tensors = _read(path, target)
    ids, starts = tensors["ids"], tensors["starts"]
    return data.Corpus(ids, starts, np.ones(len(starts) - 1, dtype=np.int64), tensors.get("answers"))


def read_part(path: Path, target: Path) -> Written:
    tensors = _read(path, target)
    ids, starts, numbers = (tensors[name] for name in ("ids", "starts", "numbers"))
    prompts = (tensors["answers"] - starts[:-1]).tolist()
    parts = [part.tolist() for part in np.split(ids, starts[1:-1])]
    done = len(parts) - len(numbers)
    texts = [
        Text(part, prompt, number)
        for part, prompt, number in zip(parts, prompts, [0] * done + numbers.tolist(), strict=True)
    ]
    return Written(texts[:done], texts[done:], int(tensors["steps"][0]))


def _read(path: Path, target: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, "np") as file:
            writer = (file.metadata() or {}).get("target")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if missing := {"ids", "starts"} - tensors.keys():
            raise KeyError(*missing)
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(
            f"{path} does not hold text of a target ({error}); let the target write it again"
        ) from None
    if writer != fingerprint(target):
        raise UsageError(f"{path} was written by another target than {target}; leave out --text")
    return tensors
