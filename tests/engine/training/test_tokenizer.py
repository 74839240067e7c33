from __future__ import annotations

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.training.data import SPECIALS, Encoder, split_chat, train_tokenizer
from tests.engine.training.tiny import chats, stories


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """Return a tokenizer that was trained, saved and loaded."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(stories() + chats(), 320, 128).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: PreTrainedTokenizerFast, document: str) -> list[int]:
    return next(Encoder(tokenizer)([document]))


def test_special_tokens_have_the_first_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert SPECIALS[3:6] == ("<|user|>", "<|assistant|>", "<|system|>")
    assert (SPECIALS[6], SPECIALS[13]) == ("<|mask_1|>", "<|mask_8|>")
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert len(tokenizer) == 320
    assert tokenizer.model_max_length == 128


def test_special_tokens_and_template_equal_the_bundled_pairs(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    shipped = AutoTokenizer.from_pretrained(PAIRS / "bundled" / "target")
    assert shipped.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert shipped.chat_template == tokenizer.chat_template


def test_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|system|>Be kind.<|user|>Hello<|assistant|>"


def test_chat_markers_become_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode(tokenizer, "<|system|>Be kind.<|user|>Hello<|assistant|>Hi!<|user|>Bye")
    assert [i for i in ids if i < 14] == [1, 5, 3, 4, 3, 2]
    assert tokenizer.decode(ids) == "<|bos|><|system|>Be kind.<|user|>Hello<|assistant|>Hi!<|user|>Bye<|eos|>"


@pytest.mark.parametrize(
    ("document", "special"),
    [
        ("He wrote <|user|> on the wall, then <|assistant|>.", [1, 2]),
        (" <|user|>A space before it: no chat.", [1, 2]),
        ("<|user|>What is <|eos|>, <|pad|> or <|mask_1|>?<|assistant|>Text.", [1, 3, 4, 2]),
        ("<|bos|>A story.<|eos|>", [1, 2]),
    ],
)
def test_markers_in_other_text_stay_text(
    tokenizer: PreTrainedTokenizerFast, document: str, special: list[int]
) -> None:
    ids = encode(tokenizer, document)
    assert [i for i in ids if i < 14] == special
    assert tokenizer.decode(ids[1:-1]) == document


def test_the_vocabulary_has_no_parts_of_markers(tokenizer: PreTrainedTokenizerFast) -> None:
    assert not [t for t in tokenizer.get_vocab() if "|>" in t and t not in SPECIALS]


@pytest.mark.parametrize("text", ["1984", "Zwölf €uro 🙂 \x00\t\r\n", "  two  spaces ", "日本"])
def test_decoding_restores_every_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text)[1:-1]) == text


def test_each_digit_is_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(encode(tokenizer, "198400")) == 2 + 6


def test_training_is_repeatable() -> None:
    one, two = (train_tokenizer(stories(), 300, 64).get_vocab() for _ in range(2))
    assert one == two


def test_many_documents_keep_their_order(tokenizer: PreTrainedTokenizerFast) -> None:
    documents = [f"<|user|>{i}<|assistant|>{i + 1}" for i in range(1500)]
    encoded = list(Encoder(tokenizer)(documents))
    assert [tokenizer.decode(ids[1:-1]) for ids in encoded] == documents


def test_split_chat_without_a_marker_at_its_start() -> None:
    assert split_chat("a<|user|>b") == ["a<|user|>b"]
    assert split_chat("<|user|><|assistant|>b") == ["<|user|>", "<|assistant|>", "b"]
