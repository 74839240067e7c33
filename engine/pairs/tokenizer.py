"""A model's tokenizer: read from bounded files, without code of the model's; and whether two of them are the same."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, TokenizersBackend

from engine.errors import ModelError, PairError, UsageError, one_line
from engine.files import parse_json
from engine.model.fields import LONGEST_VOCABULARY, MOST_TOKENS
from engine.pairs.load import read_config, read_object
from engine.pairs.templates import LONGEST, RENDERER

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_SETTINGS = 1 << 24
"""Bytes of a tokenizer_config.json."""
_MOST_GROWTH = 64
"""Times that a tokenizer may make a text longer before it looks for tokens."""
_FOREIGN = ("auto_map", "gguf_file", "vocab", "merges", "tokenizer_object", "fast_tokenizer_files")
"""What in a tokenizer_config.json leads to code or to files elsewhere."""


def load_tokenizer(path: Path) -> Any:
    """Return the transformers tokenizer of a model directory.

    Raises:
        ModelError: Its files are missing, broken or too large, or lead to code or to files elsewhere.
    """
    _check_files(path)
    settings = read_object(path / "tokenizer_config.json", _LONGEST_SETTINGS)
    for name in _FOREIGN:
        if settings.get(name) is not None:
            raise ModelError(
                f"{path / 'tokenizer_config.json'}: {name} leads to code or files elsewhere, which are not read"
            )
    ids = settings.get("added_tokens_decoder") or {}
    if not isinstance(ids, dict) or not all(_is_token(key) for key in ids):
        raise ModelError(
            f"{path / 'tokenizer_config.json'}: added_tokens_decoder is {reprlib.repr(ids)}; it must hold tokens by "
            f"their ids, less than {MOST_TOKENS}"
        )
    try:
        if settings.get("tokenizer_class") == TokenizersBackend.__name__:
            # What Auto would find, a second later: it needs the class of the model's config first.
            found = TokenizersBackend.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        else:
            config = read_config(path)
            if not isinstance(config, PreTrainedConfig):
                config = AutoConfig.for_model(config.model_type)
            found = AutoTokenizer.from_pretrained(
                path, config=config, trust_remote_code=False, local_files_only=True
            )
        if (growth := _growth(found.backend_tokenizer.normalizer)) > _MOST_GROWTH:
            raise ModelError(
                f"{path}: its normalizer makes a text {growth} times as long; it may be {_MOST_GROWTH} times"
            )
        found("Hi")
        return found
    except ModelError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # noqa: BLE001 - whatever transformers finds wrong with it, and panics of the tokenizers' Rust code
        raise ModelError(f"{path}: its tokenizer cannot be loaded: {one_line(e)}") from None


def _growth(normalizer: Any) -> int:
    """Return how many times longer a normalizer's replacements may make a text; a long list of parts counts as well."""
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
    """Check that what a tokenizer may read in its directory are regular files of a bearable size."""
    for file in sorted((*path.iterdir(), *path.glob("additional_chat_templates/*"))):
        if file.suffix not in (".json", ".jinja", ".txt", ".model") or file.is_dir():
            continue
        if not file.is_file():
            raise ModelError(f"{file} is not a regular file")
        limit = LONGEST if file.suffix == ".jinja" else LONGEST_VOCABULARY
        if (size := file.stat().st_size) > limit:
            raise ModelError(f"{file} has {size} bytes; the limit is {limit}")


def check_template(path: Path, tokenizer: Any) -> None:
    """Check that a chat template, where there is one, makes a text of a short message, or refuses it.

    Raises:
        ModelError: It fails, or goes beyond its limits.
    """
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
        pass  # the template refuses this one message; a prompt of another form may render


def check_same(target: Any, drafter: Any) -> None:
    """Compare two tokenizers' vocabularies and special tokens.

    Raises:
        PairError: They differ.
    """
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    if ours != theirs:
        if len(ours) != len(theirs):
            raise PairError(
                f"the target's tokenizer has {len(ours)} tokens, the drafter's {len(theirs)}; they must be the same"
            )
        i = min(i for _, i in ours.items() ^ theirs.items())
        mine, its = (
            reprlib.repr(next((t for t, at in vocab.items() if at == i), None)) for vocab in (ours, theirs)
        )
        raise PairError(
            f"token {i} is {mine} in the target's tokenizer, {its} in the drafter's; they must be the same"
        )
    marked, also = (
        sorted(i for i, token in t.added_tokens_decoder.items() if token.special) for t in (target, drafter)
    )
    if marked != also:
        i = min(set(marked) ^ set(also))
        raise PairError(
            f"token {i}, {reprlib.repr(target.convert_ids_to_tokens(i))}, is special in only one of the two tokenizers; they must be the same"
        )
    for role in ("bos_token", "eos_token"):
        mine, its = getattr(target, role), getattr(drafter, role)
        if mine != its:
            raise PairError(
                f"{role} is {reprlib.repr(mine)} in the target's tokenizer, {reprlib.repr(its)} in the drafter's; they must be the same"
            )
