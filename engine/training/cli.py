"""The commands of `specscope train`.

They are `pair`, `distil`, `card`, `heads`, `shorten` and one for each kind of head.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.training import commands
from engine.training.options import (
    HEAD_DEFAULTS,
    RECIPES,
    DistilOptions,
    HeadOptions,
    PairOptions,
    Recipe,
    Shape,
)

NONE: Mapping[str, Any] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands with their options."""
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    doc = "train a target and its drafter on text, and measure them"
    pair = parsers.add_parser("pair", help=doc, description=doc, allow_abbrev=False)
    _add_pair(pair)
    pair.set_defaults(train=commands.run_pair)
    doc = "prune a pair's drafter, and distil it on text that the target writes"
    distil = parsers.add_parser("distil", help=doc, description=doc, allow_abbrev=False)
    _add_distil(distil)
    distil.set_defaults(train=commands.run_distil)
    for kind in HEAD_DEFAULTS:
        doc = f"train a drafting head ({kind}) for a target, on text that the target writes"
        head = parsers.add_parser(kind, help=doc, description=doc, allow_abbrev=False)
        models = head.add_mutually_exclusive_group()
        _add_pair_name(models)
        doc = "directory, .gguf file, short name or hub id of a target, instead of --pair"
        models.add_argument("--target", metavar="PATH", help=doc)
        head.set_defaults(pair=None)  # argparse ignores a default that is given
        _add_text(head)
        doc = "a head whose tensors are copied; all of them must have a place in the new head"
        head.add_argument("--start", type=Path, metavar="HEAD", help=doc)
        doc = "leave out tensors of --start that have no place in the new head"
        head.add_argument("--start-partial", action="store_true", help=doc)
        doc = "settings: quick, or those of ParallelSpec's Table 3 with its printed losses (quick)"
        head.add_argument("--recipe", default="quick", choices=tuple(RECIPES), help=doc)
        _add_recipe(head, HeadOptions, HEAD_DEFAULTS[kind])
        head.set_defaults(train=commands.run_head, kind=kind)
    doc = "let a trained head draft the most frequent tokens only, or store it as int8; no training"
    shorten = parsers.add_parser("shorten", help=doc, description=doc, allow_abbrev=False)
    _add_shorten(shorten)
    shorten.set_defaults(train=commands.run_shorten)
    doc = "measure a pair's drafting heads and write their card"
    heads = parsers.add_parser("heads", help=doc, description=doc, allow_abbrev=False)
    _add_heads(heads)
    heads.set_defaults(train=commands.run_heads)
    doc = "measure a pair and write its model card"
    card = parsers.add_parser("card", help=doc, description=doc, allow_abbrev=False)
    _add_card(card)
    card.set_defaults(train=commands.run_card)


def run(args: argparse.Namespace) -> int:
    """Run the chosen command; return 0.

    Raises:
        SpecScopeError: A setting is wrong, a file cannot be read, or the training was stopped.
    """
    return args.train(args)


def _add_pair(parser: argparse.ArgumentParser) -> None:
    _add_recipe(parser, PairOptions)
    _add_prompts(parser)


def _add_distil(parser: argparse.ArgumentParser) -> None:
    _add_pair_name(parser)
    _add_text(parser)
    _add_recipe(parser, DistilOptions)


def _add_pair_name(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    parser.add_argument("--pair", default="bundled", metavar="PAIR", help="a pair's name or folder (bundled)")


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="written.safetensors of an earlier training with this target",
    )


def _add_recipe(
    parser: argparse.ArgumentParser, options: type[Recipe], defaults: Mapping[str, Any] = NONE
) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of NAME.txt.xz files")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="new folder for what is trained"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the training that --out holds")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (all)")
    for field in dataclasses.fields(options):
        if field.metadata:
            _add_setting(parser, field, defaults.get(field.name, field.default))
        elif isinstance(field.default, Shape):
            doc = f"layers x hidden x heads x feed-forward of the {field.name} ({field.default})"
            parser.add_argument(f"--{field.name}", default=str(field.default), metavar="SHAPE", help=doc)


def _add_setting(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], default: Any) -> None:
    parser.add_argument(
        "--" + field.name.replace("_", "-"),
        type=type(field.default),
        default=argparse.SUPPRESS,  # so that a recipe replaces only what is not given
        choices=field.metadata["choices"] or None,
        metavar=None if field.metadata["choices"] else type(field.default).__name__.upper(),
        help=f"{field.metadata['doc'].rstrip('.')} ({'none' if default == '' else default})",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompts",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="JSONL files of prompts that were never trained on, for the card",
    )


def _add_card(parser: argparse.ArgumentParser) -> None:
    _add_pair_name(parser)
    parser.add_argument("--target", metavar="PATH", help="directory or hub id of a target, instead of --pair")
    parser.add_argument("--drafter", metavar="PATH", help="directory or hub id of its drafter")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="corpus whose held-out documents are measured"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the card (README.md in the pair's folder)"
    )
    parser.add_argument("--count", type=int, default=80, metavar="N", help="prompts of each file (80)")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="longest text measured (256)")
    _add_prompts(parser)


def _add_heads(parser: argparse.ArgumentParser) -> None:
    _add_pair_name(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="corpus whose held-out chats are prompts")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the card (heads/README.md in the pair's folder)"
    )
    parser.add_argument("--count", type=int, default=40, metavar="N", help="prompts of each file (40)")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="longest text measured (256)")
    _add_prompts(parser)


def _add_shorten(parser: argparse.ArgumentParser) -> None:
    models = parser.add_mutually_exclusive_group()
    _add_pair_name(models)
    doc = "directory, .gguf file, short name or hub id of the head's target, instead of --pair"
    models.add_argument("--target", metavar="PATH", help=doc)
    _add_text(parser)
    parser.add_argument("--head", type=Path, required=True, metavar="DIR", help="the head")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the result")
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=0,
        metavar="N",
        help="most frequent tokens of the answers in --text, which the head drafts; 0 for all (0)",
    )
    parser.add_argument(
        "--storage", default="bf16", choices=("bf16", "int8"), help="type of the matrices (bf16)"
    )
    doc = "matrices that stay in bf16"
    parser.add_argument("--keep", nargs="+", default=[], metavar="NAME", help=doc)
