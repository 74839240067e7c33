"""The commands of `specscope train`.

They are `pair`, `distil`, `drafter`, `card`, `heads` and one for each kind of head.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.files import replacing
from engine.training.bar import Bar, cancel_on_interrupt
from engine.training.options import (
    HEAD_DEFAULTS,
    RECIPES,
    CardSettings,
    DistilOptions,
    DrafterOptions,
    HeadOptions,
    PairOptions,
    Recipe,
    Shape,
)

CARD = "README.md"
NONE: Mapping[str, Any] = {}

if TYPE_CHECKING:
    from engine.pairs.pair import Pair
    from engine.pairs.progress import Progress as Download


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands with their options."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    doc = "train a target and its drafter on text, and measure them"
    pair = commands.add_parser("pair", help=doc, description=doc, allow_abbrev=False)
    _add_pair(pair)
    pair.set_defaults(train=_train_pair)
    doc = "prune a pair's drafter, and distil it on text that the target writes"
    distil = commands.add_parser("distil", help=doc, description=doc, allow_abbrev=False)
    _add_distil(distil)
    distil.set_defaults(train=_train_distil)
    doc = "make a drafter of a target's own layers, for a target without a smaller model"
    drafter = commands.add_parser("drafter", help=doc, description=doc, allow_abbrev=False)
    _add_drafter(drafter)
    drafter.set_defaults(train=_train_drafter)
    for kind in HEAD_DEFAULTS:
        doc = f"train a drafting head ({kind}) for a target, on text that the target writes"
        head = commands.add_parser(kind, help=doc, description=doc, allow_abbrev=False)
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
        head.set_defaults(train=_train_head, kind=kind)
    doc = "let a trained head draft the most frequent tokens only, or store it as int8; no training"
    shorten = commands.add_parser("shorten", help=doc, description=doc, allow_abbrev=False)
    _add_shorten(shorten)
    shorten.set_defaults(train=_shorten_head)
    doc = "measure a pair's drafting heads and write their card"
    heads = commands.add_parser("heads", help=doc, description=doc, allow_abbrev=False)
    _add_heads(heads)
    heads.set_defaults(train=_train_heads)
    doc = "measure a pair and write its model card"
    card = commands.add_parser("card", help=doc, description=doc, allow_abbrev=False)
    _add_card(card)
    card.set_defaults(train=_train_card)


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


def _add_drafter(parser: argparse.ArgumentParser) -> None:
    doc = "directory, GGUF file, short name or hub id of the target"
    parser.add_argument("--target", required=True, metavar="PATH", help=doc)
    doc = "written.safetensors or corpus.safetensors of earlier trainings with this target"
    parser.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help=doc)
    doc = "a drafter of this target to go on with; it decides layers, rank, vocabulary and map"
    parser.add_argument("--start", type=Path, metavar="DRAFTER", help=doc)
    _add_recipe(parser, DrafterOptions)


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


def _shorten_head(args: argparse.Namespace) -> int:
    from engine.training.heads.shorten import shorten_head

    facts = shorten_head(
        args.head,
        _find_target(args)[0],
        args.out,
        text=args.text,
        vocabulary=args.vocabulary,
        int8=args.storage == "int8",
    )
    if facts:
        share = "{tokens:,} of {of:,} tokens, {coverage:.2%} of the tokens of the answers"
        sys.stdout.write(share.format(**facts) + "\n")
    sys.stdout.write(f"wrote {args.out}\n")
    return 0


def _train_pair(args: argparse.Namespace) -> int:
    given = _given(args, PairOptions)
    given |= {role: Shape.parse(given[role]) for role in ("target", "drafter")}
    options = PairOptions(**given)
    from engine.training.pair import train_pair

    if not _train(train_pair, options, args):
        return 0
    card = CardSettings(data=options.data, prompts=tuple(args.prompts), window=options.sequence)
    return _write_card(*_find_pair(str(options.out)), card, options.out / CARD)


def _train_distil(args: argparse.Namespace) -> int:
    options = DistilOptions(**_given(args, DistilOptions, pair=_find_pair(args.pair)[1]))
    from engine.training.distil import distil_drafter

    if _train(distil_drafter, options, args):
        sys.stdout.write(f"wrote {options.out}; measure it with specscope train card --pair {options.out}\n")
    return 0


def _train_drafter(args: argparse.Namespace) -> int:
    target, name = _find_target(args)
    options = DrafterOptions(
        **_given(args, DrafterOptions, target=target, target_name=name, text=tuple(args.text))
    )
    from engine.training.layers.train import train_drafter

    if _train(train_drafter, options, args):
        sys.stdout.write(
            f"wrote {options.out}; draft with it: --target {args.target} --drafter {options.out}\n"
        )
    return 0


def _train_head(args: argparse.Namespace) -> int:
    target, name = _find_target(args)
    options = HeadOptions.of(**_given(args, HeadOptions, target=target, target_name=name))
    from engine.training.card import read_facts
    from engine.training.heads.train import train_head

    if not _train(train_head, options, args):
        return 0
    if begun := read_facts(options.out).get("begun_from"):
        _list(f"copied from {options.start}", begun["copied"])
        _list(f"left out of {options.start}", begun["left_out"])
        _list("random at the start", begun["random"])
    sys.stdout.write(f"wrote {options.out}\n")
    return 0


def _list(title: str, names: list[str]) -> None:
    if names:
        sys.stdout.write(f"{title}: {', '.join(names)}\n")


def _train_heads(args: argparse.Namespace) -> int:
    import torch

    from engine.training.heads.card import FOLDER, make_heads_card

    torch.set_num_threads(1)
    settings = CardSettings(data=args.data, prompts=tuple(args.prompts), count=args.count, window=args.window)
    pair, folder = _find_pair(args.pair)
    output = args.output or folder / FOLDER / CARD
    text = make_heads_card(pair, folder, settings)
    with replacing(output) as file:
        file.write(text)
    sys.stdout.write(f"wrote {output}\n")
    return 0


def _given(args: argparse.Namespace, options: type[Recipe], **more: Any) -> dict[str, Any]:
    """Return the settings on the command line, and more."""
    names = {f.name for f in dataclasses.fields(options)}
    return {name: value for name, value in vars(args).items() if name in names} | more


def _train(train: Callable[..., Path], options: Recipe, args: argparse.Namespace) -> bool:
    """Train with a progress bar; Ctrl-C stops the training with a checkpoint.

    Returns:
        Whether this is the main process, which writes the results.
    """
    import torch
    from accelerate import PartialState

    if args.threads is not None:
        if args.threads < 1:
            raise UsageError(f"threads is {args.threads}; it must be at least 1")
        torch.set_num_threads(args.threads)
    with cancel_on_interrupt() as cancel, Bar() as bar:
        train(options, bar.show, cancel, resume=args.resume)
    return PartialState().is_main_process


def _train_card(args: argparse.Namespace) -> int:
    settings = CardSettings(data=args.data, prompts=tuple(args.prompts), count=args.count, window=args.window)
    if not args.target and not args.drafter:
        pair, folder = _find_pair(args.pair)
        return _write_card(pair, folder, settings, args.output or folder / CARD)
    if not (args.target and args.drafter and args.output):
        raise UsageError("a card of two models needs --target, --drafter and --output")
    from engine.pairs.pair import Pair

    return _write_card(Pair.of(args.target, args.drafter), None, settings, args.output)


def _find_pair(name: str) -> tuple[Pair, Path]:
    """Return a pair and its folder, by path or by name."""
    from engine.pairs.pair import Pair
    from engine.pairs.stored import PAIRS

    folder = Path(name)
    if (folder / "target").is_dir():
        drafter = folder / "drafter"
        return Pair.of(folder / "target", drafter if drafter.is_dir() else None), folder.resolve()
    return Pair.find(name), PAIRS / name


def _find_target(args: argparse.Namespace) -> tuple[Path, str]:
    """Return the directory of `--target` or of the pair's target, and its name in the outputs."""
    from engine.pairs.sources import resolve

    if args.target is None:
        pair, folder = _find_pair(args.pair or "bundled")
        return pair.target_path, folder.name
    path = Path(args.target).expanduser()
    name = path.resolve().name if path.exists() else args.target
    return resolve(args.target, _report_download), name


def _report_download(progress: Download) -> None:
    """Announce a download or a conversion."""
    if not progress.file:
        sys.stderr.write(f"{progress.work.lower()} {progress.model}; Ctrl-C stops it\n")


def _write_card(pair: Pair, folder: Path | None, settings: CardSettings, output: Path) -> int:
    import torch

    from engine.training.card import make_card, read_facts

    torch.set_num_threads(1)
    text = make_card(pair, {} if folder is None else read_facts(folder), settings)
    with replacing(output) as file:
        file.write(text)
    sys.stdout.write(f"wrote {output}\n")
    return 0
