"""The commands of `specscope train`. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.engine.checkpoints.progress import Progress as Download
from specscope.engine.errors import RunCancelled, UsageError
from specscope.engine.files import replacing
from specscope.engine.training.settings import (
    HEAD_DEFAULTS,
    RECIPES,
    CardSettings,
    DistilOptions,
    HeadOptions,
    PairOptions,
    Recipe,
    Shape,
)

if TYPE_CHECKING:
    from specscope.engine.checkpoints.pair import Pair
    from specscope.engine.training.loop import TrainingProgress

CARD = "README.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[..., int], doc: str, **defaults: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        added.set_defaults(train=run, **defaults)
        return added

    pair = command("pair", _run_pair, "train a target and its drafter on text, and measure them")
    _add_recipe(pair, PairOptions)
    _add_prompts(pair)
    distil = command(
        "distil", _run_distil, "prune a pair's drafter, and distil it on text that the target writes"
    )
    _add_pair_name(distil)
    _add_text(distil)
    _add_recipe(distil, DistilOptions)
    for kind in HEAD_DEFAULTS:
        doc = f"train a drafting head ({kind}) for a target, on text that the target writes"
        _add_head(command(kind, _run_head, doc, kind=kind), kind)
    doc = "let a trained head draft the most frequent tokens only, or store it as int8; no training"
    _add_shorten(command("shorten", _run_shorten, doc))
    heads = command("heads", _run_heads, "measure a pair's drafting heads and write their card")
    _add_pair_name(heads)
    _add_measurement(heads, "chats are prompts", "heads/README.md", 40)
    card = command("card", _run_card, "measure a pair and write its model card")
    _add_pair_name(card)
    card.add_argument("--target", metavar="PATH", help="directory or hub id of a target, instead of --pair")
    card.add_argument("--drafter", metavar="PATH", help="directory or hub id of its drafter")
    _add_measurement(card, "documents are measured", "README.md", 80)


def run(args: argparse.Namespace) -> int:
    return args.train(args)


def _add_pair_name(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    parser.add_argument("--pair", default="bundled", metavar="PAIR", help="a pair's name or folder (bundled)")


def _add_target(parser: argparse.ArgumentParser, of: str) -> None:
    models = parser.add_mutually_exclusive_group()
    _add_pair_name(models)
    doc = f"directory, .gguf file, short name or hub id of {of} target, instead of --pair"
    models.add_argument("--target", metavar="PATH", help=doc)


def _add_path(parser: argparse.ArgumentParser, name: str, metavar: str, doc: str, **more: Any) -> None:
    parser.add_argument(name, type=Path, metavar=metavar, help=doc, **more)


def _add_text(parser: argparse.ArgumentParser) -> None:
    _add_path(parser, "--text", "FILE", "written.safetensors of an earlier training with this target")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    doc = "JSONL files of prompts that were never trained on, for the card"
    _add_path(parser, "--prompts", "FILE", doc, nargs="+", default=[])


def _add_recipe(
    parser: argparse.ArgumentParser, options: type[Recipe], defaults: Mapping[str, Any] | None = None
) -> None:
    _add_path(parser, "--data", "DIR", "folder of NAME.txt.xz files", required=True)
    _add_path(parser, "--out", "DIR", "new folder for what is trained", required=True)
    parser.add_argument("--resume", action="store_true", help="go on with the training that --out holds")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (all)")
    for field in dataclasses.fields(options):
        if field.metadata:
            _add_setting(parser, field, (defaults or {}).get(field.name, field.default))
        elif isinstance(field.default, Shape):
            doc = f"layers x hidden x heads x feed-forward of the {field.name} ({field.default})"
            parser.add_argument(f"--{field.name}", default=str(field.default), metavar="SHAPE", help=doc)


def _add_setting(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], default: Any) -> None:
    choices = field.metadata["choices"] or None
    parser.add_argument(
        "--" + field.name.replace("_", "-"),
        type=type(field.default),
        default=argparse.SUPPRESS,  # so that a recipe replaces only what is not given
        choices=choices,
        metavar=None if choices else type(field.default).__name__.upper(),
        help=f"{field.metadata['doc'].rstrip('.')} ({'none' if default == '' else default})",
    )


def _add_head(parser: argparse.ArgumentParser, kind: str) -> None:
    _add_target(parser, "a")
    parser.set_defaults(pair=None)  # argparse ignores a default that is given
    _add_text(parser)
    doc = "a head whose tensors are copied; all of them must have a place in the new head"
    _add_path(parser, "--start", "HEAD", doc)
    doc = "leave out tensors of --start that have no place in the new head"
    parser.add_argument("--start-partial", action="store_true", help=doc)
    doc = "settings: quick, or those of ParallelSpec's Table 3 with its printed losses (quick)"
    parser.add_argument("--recipe", default="quick", choices=tuple(RECIPES), help=doc)
    _add_recipe(parser, HeadOptions, HEAD_DEFAULTS[kind])


def _add_shorten(parser: argparse.ArgumentParser) -> None:
    _add_target(parser, "the head's")
    _add_text(parser)
    _add_path(parser, "--head", "DIR", "the head", required=True)
    _add_path(parser, "--out", "DIR", "new folder for the result", required=True)
    doc = "most frequent tokens of the answers in --text, which the head drafts; 0 for all (0)"
    parser.add_argument("--vocabulary", type=int, default=0, metavar="N", help=doc)
    doc = "type of the matrices (bf16)"
    parser.add_argument("--storage", default="bf16", choices=("bf16", "int8"), help=doc)
    doc = "matrices that stay in bf16"
    parser.add_argument("--keep", nargs="+", default=[], metavar="NAME", help=doc)


def _add_measurement(parser: argparse.ArgumentParser, use: str, card: str, count: int) -> None:
    _add_path(parser, "--data", "DIR", f"corpus whose held-out {use}")
    doc = f"the card ({card} in the pair's folder)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=doc)
    doc = f"prompts of each file ({count})"
    parser.add_argument("--count", type=int, default=count, metavar="N", help=doc)
    parser.add_argument("--window", type=int, default=256, metavar="N", help="longest text measured (256)")
    _add_prompts(parser)


def _run_pair(args: argparse.Namespace) -> int:
    settings = given(args, PairOptions)
    settings |= {role: Shape.parse(settings[role]) for role in ("target", "drafter")}
    options = PairOptions(**settings)
    from specscope.engine.training.pair import train_pair

    if not _train(train_pair, options, args):
        return 0
    card = CardSettings(data=options.data, prompts=tuple(args.prompts), window=options.sequence)
    return _write_card(*_find_pair(str(options.out)), card, options.out / CARD)


def _run_distil(args: argparse.Namespace) -> int:
    options = DistilOptions(**given(args, DistilOptions, pair=_find_pair(args.pair)[1]))
    from specscope.engine.training.pair import distil_drafter

    if _train(distil_drafter, options, args):
        _print(f"wrote {options.out}; measure it with specscope train card --pair {options.out}")
    return 0


def _run_head(args: argparse.Namespace) -> int:
    target, name = find_target(args)
    options = HeadOptions.of(**given(args, HeadOptions, target=target, target_name=name))
    from specscope.engine.training.heads.train import train_head
    from specscope.engine.training.loop import read_facts

    if not _train(train_head, options, args):
        return 0
    begun = read_facts(options.out).get("begun_from") or {}
    for title, part in (
        (f"copied from {options.start}", "copied"),
        (f"left out of {options.start}", "left_out"),
        ("random at the start", "random"),
    ):
        if names := begun.get(part):
            _print(f"{title}: {', '.join(names)}")
    _print(f"wrote {options.out}")
    return 0


def _run_shorten(args: argparse.Namespace) -> int:
    from specscope.engine.training.heads.train import shorten_head

    settings = {name: getattr(args, name) for name in ("text", "vocabulary", "keep")}
    facts = shorten_head(args.head, find_target(args)[0], args.out, int8=args.storage == "int8", **settings)
    if facts:
        share = "{tokens:,} of {of:,} tokens, {coverage:.2%} of the tokens of the answers"
        _print(share.format(**facts))
    _print(f"wrote {args.out}")
    return 0


def _run_heads(args: argparse.Namespace) -> int:
    from specscope.engine.training.heads.card import FOLDER, make_heads_card

    settings = _card_settings(args)
    pair, folder = _find_pair(args.pair)
    return _write(lambda: make_heads_card(pair, folder, settings), args.output or folder / FOLDER / CARD)


def _run_card(args: argparse.Namespace) -> int:
    settings = _card_settings(args)
    if not args.target and not args.drafter:
        pair, folder = _find_pair(args.pair)
        return _write_card(pair, folder, settings, args.output or folder / CARD)
    if not (args.target and args.drafter and args.output):
        raise UsageError("a card of two models needs --target, --drafter and --output")
    from specscope.engine.checkpoints.pair import Pair

    return _write_card(Pair.of(args.target, args.drafter), None, settings, args.output)


def _card_settings(args: argparse.Namespace) -> CardSettings:
    return CardSettings(data=args.data, prompts=tuple(args.prompts), count=args.count, window=args.window)


def _write_card(pair: Pair, folder: Path | None, settings: CardSettings, output: Path) -> int:
    from specscope.engine.training.card import make_card
    from specscope.engine.training.loop import read_facts

    return _write(lambda: make_card(pair, read_facts(folder) if folder else {}, settings), output)


def _write(make: Callable[[], str], output: Path) -> int:
    """Measure on one thread and write the card."""
    import torch

    torch.set_num_threads(1)
    text = make()
    with replacing(output) as file:
        file.write(text)
    _print(f"wrote {output}")
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def given(args: argparse.Namespace, options: type[Recipe], **more: Any) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(options)}
    return {name: value for name, value in vars(args).items() if name in names} | more


def _find_pair(name: str) -> tuple[Pair, Path]:
    from specscope.engine.checkpoints.catalog import PAIRS
    from specscope.engine.checkpoints.pair import Pair

    folder = Path(name)
    if (folder / "target").is_dir():
        drafter = folder / "drafter"
        return Pair.of(folder / "target", drafter if drafter.is_dir() else None), folder.resolve()
    return Pair.find(name), PAIRS / name


def find_target(args: argparse.Namespace) -> tuple[Path, str]:
    """Return the directory of `--target` or of the pair's target, and its name in the outputs."""
    from specscope.engine.checkpoints.sources import resolve

    if args.target is None:
        pair, folder = _find_pair(args.pair or "bundled")
        return pair.target_path, folder.name
    path = Path(args.target).expanduser()
    name = path.resolve().name if path.exists() else args.target
    return resolve(args.target, _report_download), name


def _report_download(progress: Download) -> None:
    if not progress.file:
        sys.stderr.write(f"{progress.work.lower()} {progress.model}; Ctrl-C stops it\n")


def _train(train: Callable[..., Path], options: Recipe, args: argparse.Namespace) -> bool:
    """Train until the end or Ctrl-C; return whether this is the main process, which writes."""
    import torch
    from accelerate import PartialState

    if args.threads is not None:
        if args.threads < 1:
            raise UsageError(f"threads is {args.threads}; it must be at least 1")
        torch.set_num_threads(args.threads)
    with cancel_on_interrupt() as cancel, _progress_bar() as show:
        try:
            train(options, progress=show, cancel=cancel, resume=args.resume)
        except RunCancelled as error:  # only a signal sets `cancel`
            raise KeyboardInterrupt(str(error)) from None
    return PartialState().is_main_process


@contextmanager
def cancel_on_interrupt() -> Generator[threading.Event]:
    """Turn the first Ctrl-C into an event; the second one interrupts at once."""
    cancel = threading.Event()

    def stop(*_: object) -> None:
        cancel.set()
        signal.signal(signal.SIGINT, handler)
        sys.stderr.write("\nstopping after this step; Ctrl-C again stops at once, without a checkpoint\n")

    handler = signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _progress_bar() -> Generator[Callable[[TrainingProgress], None]]:
    """Yield the function that shows a step, or the begin of a part; each phase has a bar."""
    bars = dict[str, Any]()

    def close() -> None:
        for bar in bars.values():
            bar.close()
        bars.clear()

    def show(progress: TrainingProgress) -> None:
        name, steps = progress.phase, progress.steps
        if not steps:
            sys.stderr.write(f"preparing the {name}\n")
            return
        if name not in bars:
            from tqdm import tqdm

            close()
            bars[name] = tqdm(total=steps, initial=progress.step - 1, desc=name, unit="step")
        if not isnan(progress.loss):
            bars[name].set_postfix(loss=f"{progress.loss:.3f}", refresh=False)
        bars[name].update(progress.step - bars[name].n)

    try:
        yield show
    finally:
        close()
