"""Texts that a drafter learns from: the target's answers, and the corpus in the form of answers.

A text is a prompt and an answer; only the answer's tokens count. A chat of the corpus becomes its
first user turn through the target's chat template, then the assistant's answer. Another document
becomes a message with its first characters, then the rest as the answer. Without a chat template
all tokens of a document count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.errors import UsageError
from engine.pairs.pair import Pair
from engine.training.data import Corpus
from engine.training.tokenizer import ROLES, Encoder, split_chat
from engine.training.writer import Text

_OPENING = 160
"""Characters of a document that become the message."""
_CHARACTERS = 8
"""Most characters of a document that are read for each token of a text."""


def make_texts(pair: Pair, documents: list[str], tokens: int, longest: int, seed: int) -> list[Text]:
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
    texts, count = list[Text](), 0
    for text in _encoded(pair, documents, longest, np.random.default_rng([seed, 3])):
        if count >= tokens:
            break
        if len(text.ids) > text.answer:
            texts.append(text)
            count += len(text.ids)
    if not texts:
        raise UsageError("no document of the corpus gives a text to train on; give it other text")
    return texts


def _encoded(pair: Pair, documents: list[str], longest: int, rng: np.random.Generator) -> Iterator[Text]:
    """Yield the documents in random order, once each, as prompts with answers."""
    encode = Encoder(pair.tokenizer)
    for i in rng.permutation(len(documents)):
        document = documents[int(i)]
        start = int(rng.integers(max(1, len(document) - _CHARACTERS * longest)))
        pieces = split_chat(document)
        if not pair.tokenizer.chat_template:
            part = document if len(pieces) > 1 else document[start : start + _CHARACTERS * longest]
            yield from (Text(ids[:longest], 1) for ids in encode([part]))
        elif len(pieces) == 1:
            part = document[start : start + _CHARACTERS * longest].strip()
            cut = part.rfind(" ", 0, _OPENING)
            if cut > 0:
                yield _answered(pair, part[:cut], part[cut:], longest)
        elif len(pieces) > 3 and (pieces[0], pieces[2]) == ROLES[:2] and pieces[1].strip():
            yield _answered(pair, pieces[1].strip(), pieces[3].strip(), longest)


def _answered(pair: Pair, message: str, answer: str, longest: int) -> Text:
    """Return the prompt of a message and an answer, with the end of the text."""
    prompt = pair.encode(message[: _CHARACTERS * longest])
    ids = [*prompt, *pair.encode_text(answer[: _CHARACTERS * longest]), *pair.eos[:1]]
    return Text(ids[:longest], len(prompt))


def answer_starts(pair: Pair, corpus: Corpus) -> np.ndarray:
    """Return the number of prompt tokens of each text, (D,).

    Where a file does not have them, a prompt ends with the tokens that the chat template puts
    before an answer. Without these tokens, or without a template, the first token is the prompt.
    """
    if corpus.answers is not None:
        return np.maximum(corpus.answers - corpus.starts[:-1], 1)
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
