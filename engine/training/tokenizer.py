"""The pair's tokenizer: byte-level BPE with special tokens first, and the chat template.

Chats are `<|bos|><|user|>...<|assistant|>...`; a turn ends at `<|eos|>` or at the next `<|user|>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

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
    """Return a byte-level BPE trained on documents.

    Args:
        documents: Training text; role markers of chats are removed.
        vocabulary: Most tokens; a small text gives fewer.
        context: Context of the models.
    """
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

    Args:
        tokenizer: Begin and end of text that it lacks are left out; role markers that it lacks are
            text.
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
