"""What the commands of `specscope train` do.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.files import replacing
from engine.training.bar import Bar, cancel_on_interrupt
from engine.training.options import CardSettings, DistilOptions, HeadOptions, PairOptions
from engine.training.recipe import Recipe, Shape

if TYPE_CHECKING:
    from engine.pairs.pair import Pair
    from engine.pairs.progress import Progress as Download

CARD = "README.md"


def run_shorten(args: argparse.Namespace) -> int:
    """Shorten or quantise a trained head; return 0."""
    from engine.training.heads.shorten import shorten_head

    facts = shorten_head(
        args.head,
        find_target(args)[0],
        args.out,
        text=args.text,
        vocabulary=args.vocabulary,
        int8=args.storage == "int8",
        keep=args.keep,
    )
    if facts:
        share = "{tokens:,} of {of:,} tokens, {coverage:.2%} of the tokens of the answers"
        sys.stdout.write(share.format(**facts) + "\n")
    sys.stdout.write(f"wrote {args.out}\n")
    return 0


def run_pair(args: argparse.Namespace) -> int:
    """Train a target and its drafter, and write their card; return 0."""
    settings = given(args, PairOptions)
    settings |= {role: Shape.parse(settings[role]) for role in ("target", "drafter")}
    options = PairOptions(**settings)
    from engine.training.pair import train_pair

    if not _train(train_pair, options, args):
        return 0
    card = CardSettings(data=options.data, prompts=tuple(args.prompts), window=options.sequence)
    return _write_card(*_find_pair(str(options.out)), card, options.out / CARD)


def run_distil(args: argparse.Namespace) -> int:
    """Distil a pair's drafter; return 0."""
    options = DistilOptions(**given(args, DistilOptions, pair=_find_pair(args.pair)[1]))
    from engine.training.distil import distil_drafter

    if _train(distil_drafter, options, args):
        sys.stdout.write(f"wrote {options.out}; measure it with specscope train card --pair {options.out}\n")
    return 0


def run_head(args: argparse.Namespace) -> int:
    """Train a drafting head; return 0."""
    target, name = find_target(args)
    options = HeadOptions.of(**given(args, HeadOptions, target=target, target_name=name))
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


def run_heads(args: argparse.Namespace) -> int:
    """Measure a pair's heads and write their card; return 0."""
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


def given(args: argparse.Namespace, options: type[Recipe], **more: Any) -> dict[str, Any]:
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


def run_card(args: argparse.Namespace) -> int:
    """Measure a pair, or two models, and write their card; return 0."""
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


def find_target(args: argparse.Namespace) -> tuple[Path, str]:
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
