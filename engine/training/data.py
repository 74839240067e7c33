"""The training text: documents, their tokenizer, and an endless stream of packed batches.

`NAME.txt.xz` holds UTF-8 documents separated by U+001E. A document that *begins* with a role
marker, such as `<|user|>`, is a chat: only in chats the three role markers become special tokens.
In all other documents such a string is plain text, as is every other special token.
A tokenized chat is `<|bos|><|user|>...<|assistant|>...`; a turn ends at `<|eos|>` or at the next
`<|user|>`.

The stream is a pure function of (seed, position), so one number is enough to resume it.
"""

from __future__ import annotations

import hashlib
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from specscope.engine.errors import UsageError
from specscope.engine.training.settings import Recipe

PAD, BOS, EOS, USER, ASSISTANT, SYSTEM = range(6)
ROLES = ("<|user|>", "<|assistant|>", "<|system|>")
SPECIALS = ("<|pad|>", "<|bos|>", "<|eos|>", *ROLES, *(f"<|mask_{i}|>" for i in range(1, 9)))
"""Special tokens; the index is the id. The masks are for drafters that draft several tokens in one
forward."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_MARKER = re.compile("({})".format("|".join(map(re.escape, ROLES))))
_BATCH = 1024


def split_chat(document: str) -> list[str]:
    """Split a chat into text and role markers; any other document is one piece of text."""
    if not document.startswith(ROLES):
        return [document]
    return [piece for piece in _MARKER.split(document) if piece]


def train_tokenizer(documents: Iterable[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of at most `vocabulary` tokens; a small text gives fewer."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        # one token per digit, so that numbers are spelt the same way everywhere
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (piece for d in documents for piece in split_chat(d) if piece not in ROLES)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIALS[BOS],
        eos_token=SPECIALS[EOS],
        pad_token=SPECIALS[PAD],
        model_max_length=context,
        chat_template=CHAT_TEMPLATE,
    )


class Encoder:
    """Encodes documents: role markers of chats become special tokens, everything else is text.

    Begin and end of text that a tokenizer lacks are left out; role markers that it lacks are text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True
        known = tokenizer.get_added_vocab()
        self._roles = {role: known[role] for role in ROLES if role in known}
        self._begin = [known[str(tokenizer.bos_token)]] if tokenizer.bos_token in known else []
        self._end = [known[str(tokenizer.eos_token)]] if tokenizer.eos_token in known else []

    def __call__(self, documents: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each document, with begin and end of text."""
        source = iter(documents)
        while batch := list(islice(source, _BATCH)):
            pieces = [split_chat(document) for document in batch]
            texts = [piece for row in pieces for piece in row if piece not in self._roles]
            encoded = (e.ids for e in self._tokenizer.encode_batch(texts, add_special_tokens=False))
            for row in pieces:
                ids = list(self._begin)
                for piece in row:
                    ids += [self._roles[piece]] if piece in self._roles else next(encoded)
                yield ids + self._end


SEPARATOR = "\x1e"
SUFFIX = ".txt.xz"


class CorpusSource(NamedTuple):
    """One file of the recipe's corpus."""

    repeat: int
    """How often each of its documents is in an epoch."""
    origin: str
    licence: str


SOURCES = {
    "tinystories": CorpusSource(6, "slices of TinyStories", "CDLA-Sharing-1.0"),
    "children": CorpusSource(
        4, "African Storybook and Pratham Books, non-commercial ones removed", "CC BY 4.0"
    ),
    "books": CorpusSource(1, "Project Gutenberg children's classics", "public domain (US)"),
    "topical": CorpusSource(3, "Topical-Chat, valid and test splits", "CDLA-Sharing-1.0"),
    "persona": CorpusSource(4, "Synthetic-Persona-Chat, valid and test splits", "CC BY 4.0"),
    "taskmaster": CorpusSource(1, "Taskmaster-4", "CC BY 4.0"),
    "sgd": CorpusSource(1, "Schema-Guided Dialogue, text only", "CC BY-SA 4.0"),
    "dolly": CorpusSource(6, "first 6,400 pairs of Dolly-15k", "CC BY-SA 3.0"),
    "openchat": CorpusSource(6, "open-datasets chat", "MIT"),
    "trivia": CorpusSource(2, "OpenTriviaQA", "CC BY-SA 4.0"),
    "math": CorpusSource(6, "GSM8K train split, AQuA dev and test splits", "MIT, Apache-2.0"),
    "mbpp": CorpusSource(6, "MBPP ids 601-974", "CC BY 4.0"),
    "wiki": CorpusSource(1, "WikiSplit sample, WikiText-2 valid and test splits", "CC BY-SA"),
    "pystdlib": CorpusSource(1, "CPython 3.11 standard library sources", "PSF"),
}
"""The known sources, by file name; the documents of others are not repeated."""
UNKNOWN = CorpusSource(1, "not a source of the recipe", "unknown")

_CHUNK = 1 << 20
_HASH = 1 << 64


def find_sources(data: Path) -> dict[str, Path]:
    """Return the files of a folder by source name, sorted; a UsageError if there are none."""
    if not data.is_dir():
        raise UsageError(f"{data} is not a folder; --data takes one with {SUFFIX[1:]} files")
    sources = {path.name.removesuffix(SUFFIX): path for path in sorted(data.glob(f"*{SUFFIX}"))}
    if not sources:
        raise UsageError(f"{data} holds no *{SUFFIX} file; --data takes a folder with such files")
    return sources


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of an xz file that are not empty, read in pieces."""
    rest = ""
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            while chunk := file.read(_CHUNK):
                *whole, rest = (rest + chunk).split(SEPARATOR)
                yield from (document for document in whole if document.strip())
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); it must be xz-compressed UTF-8 text") from None
    if rest.strip():
        yield rest


def is_held_out(document: str, share: float) -> bool:
    """Return whether a document is for validation; equal documents are treated alike."""
    digest = hashlib.sha256(document.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * _HASH


def read_mixture(text: str, sources: Iterable[str]) -> dict[str, int]:
    """Return the repetitions of each source: the defaults, then `NAME=N,NAME=N`."""
    mixture = {name: SOURCES.get(name, UNKNOWN).repeat for name in sources}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, count = item.partition("=")
        if not equals or not count.strip().isdigit() or int(count) > 1000:
            raise UsageError(f"weights has {item!r}; write NAME=N with N at least 0 and at most 1000")
        if name.strip() not in mixture:
            raise UsageError(f"weights names {name.strip()!r}; the sources are {', '.join(mixture)}")
        mixture[name.strip()] = int(count)
    if not any(mixture.values()):
        raise UsageError("weights leaves no source; at least one must be repeated once")
    return mixture


class TrainingText(NamedTuple):
    """The documents of a training."""

    sources: Mapping[str, Path]
    mixture: Mapping[str, int]
    """How often the documents of each source are in an epoch."""
    held_out: float

    @classmethod
    def of(cls, recipe: Recipe) -> TrainingText:
        sources = find_sources(recipe.data)
        return cls(sources, read_mixture(recipe.weights, sources), recipe.held_out)

    @property
    def counted(self) -> Iterator[tuple[str, int]]:
        """The documents that are not held out, each with how often an epoch has it, if it does."""
        for name, count in self.mixture.items():
            for document in read_documents(self.sources[name]) if count else ():
                if not is_held_out(document, self.held_out):
                    yield document, count

    @property
    def documents(self) -> Iterator[str]:
        """The documents of an epoch, one source after the other."""
        return (document for document, count in self.counted for _ in range(count))


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenized documents, end to end."""

    ids: np.ndarray
    """Token ids of all documents, (N,), as `narrow` returns them; each begins with <|bos|> and ends
    with <|eos|>."""
    starts: np.ndarray
    """First token of each document in `ids`, then N, (D + 1,) int64."""
    repeats: np.ndarray
    """How often each document is in an epoch, (D,) int64."""
    answers: np.ndarray | None = None
    """First token of the answer in each document, as an index of `ids`, (D,) int64; the tokens
    before it are the prompt, and no loss counts them. None: all tokens count."""

    @classmethod
    def read(cls, text: TrainingText, encode: Callable[[Iterable[str]], Iterator[list[int]]]) -> Corpus:
        """Read and encode the documents that are not held out; a UsageError if none is left."""
        repeats = list[int]()

        def documents() -> Iterator[str]:
            for document, count in text.counted:
                repeats.append(count)
                yield document

        parts = [np.array(ids, dtype=np.int32) for ids in encode(documents())]
        if not parts:
            raise UsageError(f"no document is left to train on; lower held_out from {text.held_out:g}")
        starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(narrow(np.concatenate(parts)), starts, np.array(repeats, dtype=np.int64))


def narrow(ids: np.ndarray) -> np.ndarray:
    """Return token ids as uint16 if all of them fit, else as int32."""
    return ids.astype(np.int32 if len(ids) and ids.max() >= 1 << 16 else np.uint16)


class TokenStream:
    """The tokens of a corpus as one endless sequence of epochs, each in its own order."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._corpus = corpus
        self._seed = seed
        lengths = np.diff(corpus.starts)
        self.epoch_tokens = int((lengths * corpus.repeats).sum())
        self._epoch = lru_cache(maxsize=2)(self._shuffle)

    def read(self, position: int, count: int) -> np.ndarray:
        """Return the `count` tokens from `position`, (count,) int64."""
        parts, missing = list[np.ndarray](), count
        while missing:
            epoch, offset = divmod(position, self.epoch_tokens)
            part = self._within(epoch, offset, missing)
            parts.append(part)
            position, missing = position + len(part), missing - len(part)
        return np.concatenate(parts).astype(np.int64)

    def batch(self, position: int, rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and next tokens, (rows, length) int64 each."""
        flat = self.read(position, rows * length + 1)
        return flat[:-1].reshape(rows, length), flat[1:].reshape(rows, length)

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents of an epoch in order, and the end of each."""
        documents = np.repeat(np.arange(len(self._corpus.repeats)), self._corpus.repeats)
        order = np.random.default_rng([self._seed, epoch]).permutation(documents)
        return order, np.cumsum(np.diff(self._corpus.starts)[order])

    def _within(self, epoch: int, offset: int, count: int) -> np.ndarray:
        order, ends = self._epoch(epoch)
        first, last = np.searchsorted(ends, [offset, offset + count - 1], side="right")
        chosen = order[first : last + 1]
        starts = self._corpus.starts
        joined = np.concatenate([self._corpus.ids[starts[d] : starts[d + 1]] for d in chosen])
        begin = offset - (int(ends[first - 1]) if first else 0)
        return joined[begin : begin + count]


class Mixed:
    """Batches of two streams: the first rows from `first`, the others from `second`.

    Args:
        first: A stream.
        second: Another stream.
        share: Share of the rows from `first`, rounded, from 0 to 1.
    """

    def __init__(self, first: TokenStream, second: TokenStream, share: float) -> None:
        self._streams = first, second
        self._share = share

    def batch(self, position: int, rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and next tokens, (rows, length) int64 each; see `TokenStream.batch`."""
        count = round(self._share * rows)
        parts = [
            stream.batch(position * n // rows, n, length)
            for stream, n in zip(self._streams, (count, rows - count), strict=True)
            if n
        ]
        inputs, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
        return inputs, labels
