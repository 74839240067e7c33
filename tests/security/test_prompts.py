"""Prompts that are too long or too many are refused before tokenization."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specscope.app.cli import common
from specscope.app.main import main
from specscope.app.tabs.requests import FormError, make_requests
from specscope.engine.bounds import (
    LONGEST_STOP,
    MOST_CHARACTERS,
    MOST_MESSAGES,
    MOST_PROMPTS,
    MOST_STOPS,
    PER_TOKEN,
)
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.prompts import encode, ids_of
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.types import Limits

HUGE = 4_000_000
PAIR = Pair.find()
TEXTS = {
    "words": "Once upon a time. ",
    "brackets": "[",
    "spaces": " ",
    "emoji": "\U0001f600",
    "control": "\x07",
}


class Untouched:
    """A tokenizer that fails at any use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the tokenizer was used")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the tokenizer was called")


GUARDED = replace(PAIR, tokenizer=Untouched())


def refused(*prompts: Any) -> str:
    with pytest.raises(UsageError) as error:
        encode(GUARDED, prompts, PAIR.vocab_size, 16)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_prompt_of_4_mb_is_refused_before_it_is_tokenized(text: str) -> None:
    prompt = (text * HUGE)[:HUGE]
    want = f"the prompt has {HUGE} characters; it may have {PER_TOKEN * PAIR.context} with a context of {PAIR.context} tokens: "
    assert refused(prompt) == want + "shorten it"
    with pytest.raises(UsageError, match="characters"):
        ids_of(GUARDED, prompt)


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([said("s" * 20_000, "u" * 20_000)], f"the prompt has {20_000 + 20_000} characters"),
        (
            [said(*["Hi"] * 10_000)],
            f"the chat has 10000 messages; it may have {MOST_MESSAGES}: begin a new one",
        ),
        ([[5] * HUGE], f"the prompt has {HUGE} tokens; the context of bundled is "),
        (["Hi"] * 10_000, f"10000 prompts were given; a run takes at most {MOST_PROMPTS}"),
        (["x" * 30_000] * 200, "the prompts have 6000000 characters; a run takes at most 4000000 in all"),
    ],
    ids=["characters", "messages", "tokens", "prompts", "characters of prompts"],
)
def test_too_much_is_refused_before_it_is_tokenized(prompts: list[Any], message: str) -> None:
    assert refused(*prompts).startswith(message)


def test_the_limit_of_characters_admits_every_prompt_that_fits_the_context() -> None:
    longest = max(len(PAIR.tokenizer.decode([token])) for token in range(PAIR.vocab_size))
    assert longest == PER_TOKEN
    text = " " * PER_TOKEN * (PAIR.context - 100) + "x"
    assert len(ids_of(PAIR, text)) < PAIR.context


def test_a_huge_context_has_a_limit_of_characters() -> None:
    wide = replace(GUARDED, context=10**9)
    with pytest.raises(UsageError, match=f"it may have {MOST_CHARACTERS} with a context of"):
        ids_of(wide, "x" * HUGE)


@pytest.mark.parametrize("stops", [("x" * HUGE,), ("x",) * (MOST_STOPS + 1), ("x" * (LONGEST_STOP + 1),)])
def test_too_long_or_too_many_stop_strings_are_refused(stops: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"stop strings? .*(it may have|takes at most)"):
        Limits(stop=stops)
    Limits(stop=("x" * LONGEST_STOP,) * MOST_STOPS)


def test_a_reference_text_of_4_mb_is_refused() -> None:
    with pytest.raises(UsageError, match="reference") as error:
        METHODS["llma"].configure({"reference": "x" * HUGE})
    assert len(str(error.value)) < 400


def test_the_page_refuses_a_prompt_of_4_mb() -> None:
    with pytest.raises(
        FormError, match=f"the prompt has {HUGE} characters; it may have {MOST_CHARACTERS}"
    ) as error:
        make_requests(
            {"methods": '{"chosen": [{"method": "pearl"}]}'}, [{"role": "user", "content": "x" * HUGE}], "g"
        )
    assert error.value.where == "prompt"


@pytest.mark.parametrize("typed", ["x" * HUGE, "x\n\n" * 10_000], ids=["long", "many"])
def test_the_page_refuses_too_many_further_prompts(typed: str) -> None:
    values = {"methods": json.dumps({"chosen": [{"method": "ems", "prompts": typed}]})}
    with pytest.raises(FormError, match=r"further prompts have .* there may be 999 with 1000000") as error:
        make_requests(values, [{"role": "user", "content": "Hi"}], "g")
    assert error.value.where == "ems-prompts"


def test_the_command_line_refuses_a_file_of_4_mb_before_models_load(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(common, "open_cluster", lambda args: pytest.fail("models load"))
    file = tmp_path / "prompt.txt"
    file.write_text("[" * HUGE)
    words = ["run", "--method", "autoregressive", "--db", str(tmp_path / "x.db")]
    assert main([*words, "--prompt-file", str(file)]) == 2
    expected = f"specscope: the prompt has {HUGE} characters; it may have {MOST_CHARACTERS}: shorten it\n"
    assert capsys.readouterr().err == expected


def test_the_page_refuses_a_choice_of_methods_that_is_nested_without_end() -> None:
    with pytest.raises(FormError, match="cannot be read"):
        make_requests({"methods": "[" * 1_000_000}, [{"role": "user", "content": "Hi"}], "g")
