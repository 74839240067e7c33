"""Load a model's tokenizer without running its code; compare two tokenizers."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, TokenizersBackend

from specscope.engine.checkpoints.config import read_config, read_object
from specscope.engine.checkpoints.templates import LONGEST, RENDERER
from specscope.engine.errors import ModelError, PairError, UsageError, one_line
from specscope.engine.files import parse_json
from specscope.engine.model.fields import LONGEST_VOCABULARY, MOST_TOKENS

_LONGEST_SETTINGS = 1 << 24
_MOST_GROWTH = 64
"""Most times that normalization may multiply the length of a text."""
_FOREIGN = ("auto_map", "gguf_file", "vocab", "merges", "tokenizer_object", "fast_tokenizer_files")
"""Fields of a tokenizer_config.json that refer to code or to other files."""


def load_tokenizer(path: Path) -> Any:
    """Return a directory's transformers tokenizer, which refers to no code or other files."""
    _check_files(path)
    settings = read_object(path / "tokenizer_config.json", _LONGEST_SETTINGS)
    for name in _FOREIGN:
        if settings.get(name) is not None:
            raise ModelError(
                f"{path / 'tokenizer_config.json'}: {name} refers to code or other files, which are not read"
            )
    ids = settings.get("added_tokens_decoder") or {}
    if not isinstance(ids, dict) or not all(_is_token(key) for key in ids):
        raise ModelError(
            f"{path / 'tokenizer_config.json'}: added_tokens_decoder is {reprlib.repr(ids)}; it must hold tokens by "
            f"their ids, less than {MOST_TOKENS}"
        )
    try:
        if settings.get("tokenizer_class") == TokenizersBackend.__name__:
            # AutoTokenizer returns the same, a second later: it first imports the config's class.
            tokenizer = TokenizersBackend.from_pretrained(
                path, trust_remote_code=False, local_files_only=True
            )
        else:
            config = read_config(path)
            if not isinstance(config, PreTrainedConfig):
                config = AutoConfig.for_model(config.model_type)
            tokenizer = AutoTokenizer.from_pretrained(
                path, config=config, trust_remote_code=False, local_files_only=True
            )
        if (growth := _growth(tokenizer.backend_tokenizer.normalizer)) > _MOST_GROWTH:
            raise ModelError(
                f"{path}: its normalizer makes a text {growth} times as long; it may be {_MOST_GROWTH} times"
            )
        tokenizer("Hi")
        return tokenizer
    except ModelError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # noqa: BLE001 - a Rust panic is no Exception
        raise ModelError(f"{path}: its tokenizer cannot be loaded: {one_line(e)}") from None


def _growth(normalizer: Any) -> int:
    """Return the most times that a normalizer multiplies a text's length, at least its parts."""
    state = parse_json(normalizer.__getstate__()) if normalizer is not None else {}
    parts, times = [state], 1
    for part in parts:
        parts += part.get("normalizers", [])
        times *= max(1, len(part.get("content", "")))
        if times > _MOST_GROWTH:
            break
    return max(times, len(parts))


def _is_token(key: str) -> bool:
    return key.isdecimal() and len(key) < 9 and int(key) < MOST_TOKENS


def _check_files(path: Path) -> None:
    for file in sorted((*path.iterdir(), *path.glob("additional_chat_templates/*"))):
        if file.suffix not in (".json", ".jinja", ".txt", ".model") or file.is_dir():
            continue
        if not file.is_file():
            raise ModelError(f"{file} is not a regular file")
        limit = LONGEST if file.suffix == ".jinja" else LONGEST_VOCABULARY
        if (size := file.stat().st_size) > limit:
            raise ModelError(f"{file} has {size} bytes; the limit is {limit}")


def check_template(path: Path, tokenizer: Any) -> None:
    """Check that a chat template, if any, renders or refuses a short message."""
    if not tokenizer.chat_template:
        return
    try:
        template = tokenizer.get_chat_template()
    except ValueError as e:
        raise ModelError(f"{path}: its chat template cannot be chosen: {one_line(e)}") from None
    if not isinstance(template, str) or len(template) > LONGEST:
        raise ModelError(
            f"{path}: its chat template is {reprlib.repr(template)}; it must be a text of at most {LONGEST} characters"
        )
    try:
        RENDERER.render(template, [{"role": "user", "content": "Hi"}], tokenizer.special_tokens_map)
    except ModelError as e:
        raise ModelError(f"{path}: its chat template fails: {e}") from None
    except UsageError:
        pass  # another prompt may still render


def check_same(target: Any, drafter: Any) -> None:
    """Check that two tokenizers have equal vocabularies and special tokens."""
    vocab, other_vocab = target.get_vocab(), drafter.get_vocab()
    if vocab != other_vocab:
        if len(vocab) != len(other_vocab):
            raise PairError(
                f"the target's tokenizer has {len(vocab)} tokens, the drafter's {len(other_vocab)}; they must be the same"
            )
        i = min(i for _, i in vocab.items() ^ other_vocab.items())
        token, other = (
            reprlib.repr(next((t for t, number in v.items() if number == i), None))
            for v in (vocab, other_vocab)
        )
        raise PairError(
            f"token {i} is {token} in the target's tokenizer, {other} in the drafter's; they must be the same"
        )
    special, other_special = (
        sorted(i for i, token in t.added_tokens_decoder.items() if token.special) for t in (target, drafter)
    )
    if special != other_special:
        i = min(set(special) ^ set(other_special))
        raise PairError(
            f"token {i}, {reprlib.repr(target.convert_ids_to_tokens(i))}, is special in only one of the two tokenizers; they must be the same"
        )
    for role in ("bos_token", "eos_token"):
        token, other = getattr(target, role), getattr(drafter, role)
        if token != other:
            raise PairError(
                f"{role} is {reprlib.repr(token)} in the target's tokenizer, {reprlib.repr(other)} in the drafter's; they must be the same"
            )
