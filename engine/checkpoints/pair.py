"""A target and its drafters: their directories, common tokenizer, vocabulary and context."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.config import read_config, read_object
from specscope.engine.checkpoints.forms import is_form, reads_rows_of, split_form, usual_form
from specscope.engine.checkpoints.hub import has_tokenizer
from specscope.engine.checkpoints.sources import is_short_name, resolve
from specscope.engine.checkpoints.templates import RENDERER
from specscope.engine.checkpoints.tokenizer import check_same, check_template, load_tokenizer
from specscope.engine.errors import ModelError, PairError, UsageError, one_line
from specscope.engine.model.fields import end_ids
from specscope.engine.model.shape import context_of
from specscope.engine.types import MOST_DRAFTERS, check_choice, check_text, drafter_key

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Pair:
    """A target, its drafters if any, and their tokenizer."""

    name: str
    target_path: Path
    drafter_path: Path | None
    tokenizer: Any
    """None in a pair of which only configs are known."""
    vocab_size: int
    """The smallest vocabulary size of the models, which may be padded.

    It includes every token of the tokenizer. Larger ids of a drafter's logits must not be drawn."""
    context: int
    """The smallest context length of the models, in positions."""
    eos: tuple[int, ...]
    heads_path: Path | None = None
    """Directory of the bundled drafting heads, with one directory per kind."""
    further: tuple[Path, ...] = ()
    """Directories of further drafters, for methods in which several race."""

    @property
    def drafter_paths(self) -> tuple[Path, ...]:
        return () if self.drafter_path is None else (self.drafter_path, *self.further)

    @property
    def models(self) -> dict[str, Path]:
        """Model name of the workers -> directory."""
        drafters = {drafter_key(i): path for i, path in enumerate(self.drafter_paths)}
        return {**drafters, "target": self.target_path}

    @classmethod
    def find(
        cls,
        name: str = "bundled",
        resolve: Callable[[str | Path], Path] = resolve,
        *,
        sizes_only: bool = False,
    ) -> Pair:
        """Return a bundled pair, or a model of the catalog that drafts with its own weights."""
        bundled = (
            [p.name for p in catalog.PAIRS.iterdir() if (p / "target").is_dir()]
            if catalog.PAIRS.is_dir()
            else []
        )
        check_choice(f"there is no pair {name!r}", name, sorted({*bundled, *catalog.CATALOG}))
        if name in bundled:
            models = [catalog.PAIRS / name / "target", *catalog.stored_drafters(name)]
        else:
            target = resolve(name)
            models = [target, target / usual_form()]
        pair = cls._load(name, *models, sizes_only=sizes_only)
        return replace(pair, heads_path=catalog.PAIRS / name / "heads")

    @classmethod
    def of(
        cls,
        target: str | Path,
        *drafters: str | Path | None,
        resolve: Callable[[str | Path], Path] = resolve,
        sizes_only: bool = False,
    ) -> Pair:
        """Return a pair of models: directories, GGUF files, short names of the catalog, or hub ids.

        Drafters may also be `int4` or `int8`, the target's own weights in fewer bits; None is
        ignored. `resolve` returns the directory of a model. A PairError if the tokenizers differ,
        or do not fit a model's vocabulary. `sizes_only`: a model may lack its tokenizer; the pair
        can then be planned for, not run.
        """
        models = [drafter for drafter in drafters if drafter is not None]
        _check_number(models)
        name = " + ".join(map(_title, (target, *models)))
        folder = resolve(target)
        if split_form(folder)[1]:
            raise UsageError(
                f"{folder}: {folder.name} is for drafters; name the directory of the target's files"
            )
        drafting = (folder / model if is_form(model) else _named(resolve(model)) for model in models)
        pair = cls._load(name, folder, *drafting, sizes_only=sizes_only)
        return replace(pair, heads_path=catalog.PAIRS / target / "heads") if is_short_name(target) else pair

    def with_forms(self, *forms: str) -> Pair:
        """Return this pair, drafting with the target's own weights in fewer bits."""
        _check_number(forms)
        first, *further = (self.target_path / form for form in forms)
        return replace(self, drafter_path=first, further=tuple(further))

    @classmethod
    def _load(cls, name: str, target: Path, *drafters: Path, sizes_only: bool = False) -> Pair:
        paths = list(dict.fromkeys([target, *(split_form(path)[0] for path in drafters)]))
        configs = [read_config(path) for path in paths]
        known: dict[str, Any] = {
            "name": name,
            "target_path": target,
            "drafter_path": drafters[0] if drafters else None,
            "further": drafters[1:],
            "vocab_size": min(config.vocab_size for config in configs),
            "context": min(map(context_of, configs)),
        }
        if sizes_only and not all(map(has_tokenizer, paths)):
            return cls(**known, tokenizer=None, eos=())
        tokenizers = [load_tokenizer(path) for path in paths]
        for tokenizer in tokenizers[1:]:
            check_same(tokenizers[0], tokenizer)
        check_template(target, tokenizers[0])
        largest = max(tokenizers[0].get_vocab().values(), default=-1)
        if largest < 0:
            raise ModelError(f"{target}: its tokenizer has no tokens")
        for path, config in zip(paths, configs, strict=True):
            if largest >= config.vocab_size:
                raise PairError(
                    f"{path}: the tokenizer has id {largest}, the model only {config.vocab_size} ids"
                )
        settings, file = read_object(target / "generation_config.json"), "generation_config.json"
        if "eos_token_id" not in settings:
            settings, file = {"eos_token_id": configs[0].eos_token_id}, "config.json"
        eos = end_ids(settings["eos_token_id"], target / file, configs[0].vocab_size)
        return cls(**known, tokenizer=tokenizers[0], eos=eos)

    def reads_rows(self, model: str) -> bool:
        """Return whether a drafter, by its worker's name, can draft from the target's KV rows."""
        path = self.models.get(model)
        return path is not None and reads_rows_of(self.target_path, path)

    def encode(self, text: str) -> list[int]:
        """Return the prompt ids of a text, in which names of special tokens are ordinary text."""
        if self.tokenizer.chat_template:
            return self.encode_chat([{"role": "user", "content": text}])
        return self._ids(_checked(text), split_special_tokens=True, add_special_tokens=True)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text without special tokens, even if it contains their names."""
        return tuple(self._ids(text, split_special_tokens=True, add_special_tokens=False))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt ids of chat messages, up to the start of the answer.

        Names of special tokens in a message's content are ordinary text. A UsageError if a message
        is empty, invalid or of an unknown role, or the template refuses it.
        """
        if not self.tokenizer.chat_template:
            raise UsageError(
                f"the tokenizer of {self.name} has no chat template; give the prompt as one text"
            )
        if not messages:
            raise UsageError("there are no messages; give at least one of role user")
        for message in messages:
            if message.get("role") not in ROLES:
                raise UsageError(f"role is {message.get('role')!r}; it must be one of {', '.join(ROLES)}")
        contents = [_checked(message.get("content")) for message in messages]
        # With placeholders for the contents, the only special tokens are the template's.
        frame = self._render(messages, [f"\ue000{i}\ue001" for i in range(len(contents))])
        ids = self._ids(self._render(messages, contents))
        if self._special(ids) == self._special(self._ids(frame)):
            return ids
        parts: list[int] = []
        numbers = "|".join(map(str, range(len(contents))))
        # Template text and numbers of contents alternate.
        for i, part in enumerate(re.split(f"\ue000({numbers})\ue001", frame)):
            text = contents[int(part)] if i % 2 else part
            parts += self._ids(text, split_special_tokens=bool(i % 2)) if text else []
        return parts

    def check_length(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Check that a prompt and its output fit the context."""
        if not len(prompt):
            raise UsageError("the prompt is empty; write something")
        if len(prompt) >= self.context:
            raise UsageError(
                f"the prompt has {len(prompt)} tokens; the context of {self.name} is {self.context}, with at least one "
                f"for the answer: shorten the prompt"
            )
        if len(prompt) + max_new_tokens > self.context:
            raise UsageError(
                f"the prompt has {len(prompt)} tokens and max_new_tokens is {max_new_tokens}, together more than the "
                f"context of {self.name}, {self.context}: lower max_new_tokens to {self.context - len(prompt)} or less, "
                "or shorten the prompt",
                "max_new_tokens",
            )

    def _render(self, messages: Sequence[Mapping[str, str]], contents: Sequence[str]) -> str:
        chat = [
            {"role": m["role"], "content": content} for m, content in zip(messages, contents, strict=True)
        ]
        try:
            return RENDERER.render(
                self.tokenizer.get_chat_template(), chat, self.tokenizer.special_tokens_map
            )
        except UsageError as e:
            raise UsageError(f"the chat template of {self.name} refuses these messages: {e}") from None
        except ModelError as e:
            raise ModelError(f"the chat template of {self.name} fails: {e}") from None

    def _ids(
        self, text: str, *, split_special_tokens: bool = False, add_special_tokens: bool = False
    ) -> list[int]:
        try:
            return self.tokenizer(
                text,
                add_special_tokens=add_special_tokens,
                split_special_tokens=split_special_tokens,
                verbose=False,
            ).input_ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:  # noqa: BLE001 - a Rust panic is no Exception
            raise ModelError(f"the tokenizer of {self.name} fails: {one_line(e)}") from None

    def _special(self, ids: Sequence[int]) -> list[int]:
        added = self.tokenizer.added_tokens_decoder
        return [token for token in ids if token in added and added[token].special]


def _title(model: str | Path) -> str:
    path = Path(model)
    return path.absolute().parent.name if path.name == "config.json" else path.name


def _named(directory: Path) -> Path:
    return directory.absolute() if is_form(directory) else directory


def _check_number(drafters: Sequence[object]) -> None:
    if len(drafters) > MOST_DRAFTERS:
        raise UsageError(f"{len(drafters)} drafters were given; it must be at most {MOST_DRAFTERS}")


def _checked(text: str | None) -> str:
    if not text or not text.strip():
        raise UsageError("the prompt is empty; write something")
    check_text("the prompt", text)
    return text
