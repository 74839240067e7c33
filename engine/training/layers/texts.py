"""Texts that a drafter learns from: the target's answers, and the corpus in the form of answers.

A text is a prompt and an answer; only the answer's tokens count. A chat of the corpus becomes its
first user turn through the target's chat template, then the assistant's answer. Another document
becomes a message with its first characters, then the rest as the answer. Without a chat template
all tokens of a document count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from engine.errors import UsageError
from engine.pairs.pair import Pair
from engine.training.data import Corpus
from engine.training.tokenizer import ROLES, Encoder, split_chat

_OPENING = 160
"""Characters of a document that become the message."""
_CHARACTERS = 8
"""Most characters of a document that are read for each token of a text."""


def make_texts(
    pair: Pair, documents: Sequence[str], tokens: int, longest: int, seed: int
) -> list[np.ndarray]:
    """Return texts with about this many tokens from random documents of a corpus.

    Args:
        pair: The target with its tokenizer.
        documents: The documents, each as often as it is in an epoch.
        tokens: Tokens of all texts together.
        longest: Most tokens of a text.
        seed: Fixes the choice.

    Raises:
        UsageError: The documents give no text.
    """
    texts, count = list[np.ndarray](), 0
    for ids in _encoded(pair, documents, longest, np.random.default_rng([seed, 3])):
        if count >= tokens:
            break
        texts.append(np.array(ids[:longest], dtype=np.int32))
        count += len(texts[-1])
    if not texts:
        raise UsageError("no document of the corpus gives a text to train on; give it other text")
    return texts


def _encoded(
    pair: Pair, documents: Sequence[str], longest: int, rng: np.random.Generator
) -> Iterator[list[int]]:
    """Yield the documents in random order, once each, as prompts with answers."""
    encode = Encoder(pair.tokenizer)
    for i in rng.permutation(len(documents)):
        document = documents[i]
        start = int(rng.integers(max(1, len(document) - _CHARACTERS * longest)))
        pieces = split_chat(document)
        if not pair.tokenizer.chat_template:
            yield from encode(
                [document if len(pieces) > 1 else document[start : start + _CHARACTERS * longest]]
            )
        elif len(pieces) == 1:
            part = document[start : start + _CHARACTERS * longest].strip()
            cut = part.rfind(" ", 0, _OPENING)
            if cut > 0:
                yield _answered(pair, part[:cut], part[cut:], longest)
        elif len(pieces) > 3 and (pieces[0], pieces[2]) == ROLES[:2] and pieces[1].strip():
            yield _answered(pair, pieces[1].strip(), pieces[3].strip(), longest)


def _answered(pair: Pair, message: str, answer: str, longest: int) -> list[int]:
    """Return the prompt of a message and an answer, with the end of the text."""
    prompt = pair.encode(message[: _CHARACTERS * longest])
    return [*prompt, *pair.encode_text(answer[: _CHARACTERS * longest]), *pair.eos[:1]]


def join_texts(texts: Iterable[np.ndarray]) -> Corpus:
    """Return texts as a corpus; each is once in an epoch."""
    parts = list(texts)
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return Corpus(np.concatenate(parts), starts, np.ones(len(parts), dtype=np.int64))


def answer_starts(pair: Pair, corpus: Corpus) -> np.ndarray:
    """Return the number of prompt tokens of each text, (D,).

    A prompt ends with the tokens that the chat template puts before an answer; without them, or
    without a template, the first token is the prompt.
    """
    header = _header(pair)
    starts = np.ones(len(corpus.repeats), dtype=np.int64)
    if not header:
        return starts
    for i, (begin, end) in enumerate(zip(corpus.starts, corpus.starts[1:], strict=False)):
        ids = corpus.ids[begin:end].tolist()
        places = (p for p in range(len(ids) - len(header) + 1) if ids[p : p + len(header)] == header)
        starts[i] = next((p + len(header) for p in places), 1)
    return starts


def _header(pair: Pair) -> list[int]:
    """Return the tokens that end every prompt of a chat; empty without a template."""
    if not pair.tokenizer.chat_template:
        return []
    one, other = pair.encode("a"), pair.encode("b")
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[len(one) - length :]
