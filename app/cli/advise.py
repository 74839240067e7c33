"""Say which method fits GPUs and two models: where each lies, how fast, how sure.

Nothing is downloaded or loaded. Sizes are those of a built-in shape or a config.json; times are
computed from data sheets (docs/advise.md), and the methods' own code runs on them in virtual time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.engine.errors import OutOfMemory, UsageError

if TYPE_CHECKING:
    from specscope.traces.advise.question import Question

QUESTION: options.Options = {
    "--gpus": (
        str,
        "NxCARD",
        "the cards, such as 2xH100; H100, H200, A100-40G, A100-80G, L40S, RTX-4090, RTX-5090, MI300X",
    ),
    "--target": (str, "SHAPE", "a shape such as llama-3.1-70b, or the path of a config.json"),
    "--drafter": (str, "SHAPE", "the same for the drafter"),
    "--dtype": (
        "bfloat16",
        "NAME",
        "the target's weights: bfloat16, float16, float32, fp8, int8, int4 (bfloat16)",
    ),
    "--drafter-dtype": (str, "NAME", "the drafter's weights (the target's dtype)"),
    "--acceptance": (
        "unknown",
        "RATE",
        "0.7, a range as 0.6:0.8, the rates by place as 0.9,0.8,0.7, or unknown: 0.5 to 0.95 (unknown)",
    ),
    "--recorded": (
        str,
        "RUN",
        "take the acceptance of a stored run: a similar pair's, whose drafts are replayed, or an imported log's",
    ),
    "--head-acceptance": (
        str,
        "RATE",
        "that of a drafting head of one layer, such as EAGLE's or MTP's, in chains; compares it, too",
    ),
    "--ngram-acceptance": (
        str,
        "RATE",
        "that of drafts copied from the text, as by prompt lookup or suffix trees; compares them, too",
    ),
    "--batch": ("1", "N,N", "sequences that are decoded at once, 1 to 64 (1)"),
    "--context": (1024, "N", "tokens of each prompt (1024)"),
    "--max-new-tokens": (128, "N", "new tokens of each answer, 16 to 512 (128)"),
    "--engine": (
        "graphs",
        "NAME",
        "graphs for CUDA graphs, as serving engines have; eager for transformers (graphs)",
    ),
    "--target-tp": (0, "N", "cards of the target: 1, 2, 4, 8; 0 searches (0)"),
    "--drafter-tp": (0, "N", "cards of the drafter; 0 searches (0)"),
    "--methods": (str, "A,B", "methods beside plain decoding (all of the map)"),
}
OPTIONS = (
    QUESTION,
    options.DATABASE,
    options.JSON,
    {"-o --output": (Path, "F", "the whole answer as one page: .html")},
)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.advise.answer import Answer, answered
    from specscope.traces.advise.words import facts, refusal

    common.check_output(args.output, "page", ".html")
    answer = Answer(question_of(args))
    with ExitStack() as stack:
        status = stack.enter_context(common.Status("racing the methods"))
        try:
            for done, total in answered(answer):
                status.text = f"racing the methods: {done} of {total} places"
            found = facts(answer)
        except OutOfMemory as error:
            raise OutOfMemory(refusal(answer.question, error)) from None
    if args.output is not None:
        from specscope.app.render.advise import page

        common.write_output(args.output, page(found))
    return common.answer(args, found, lines(found))


def question_of(args: argparse.Namespace) -> Question:
    from specscope.traces.advise.acceptance import acceptance_of, parse_other, parse_rates
    from specscope.traces.advise.question import Question, parse_batches, parse_gpus

    for name in ("gpus", "target", "drafter"):
        if not getattr(args, name):
            raise UsageError(
                f"--{name} is missing; as in --gpus 2xH100 --target llama-3.1-70b --drafter llama-3.1-8b"
            )
    count, card = parse_gpus(args.gpus)
    expected = parse_rates(args.acceptance)
    if args.recorded:
        if args.acceptance != "unknown":
            raise UsageError("--recorded has the acceptance of its run; leave out --acceptance")
        (trace,) = common.load_runs(args, [args.recorded]).values()
        expected = acceptance_of(trace)
    return Question(
        count,
        card,
        args.target,
        args.drafter,
        dtype=args.dtype,
        drafter_dtype=args.drafter_dtype or "",
        batches=parse_batches(args.batch),
        context=args.context,
        tokens=args.max_new_tokens,
        engine=args.engine,
        target_cards=args.target_tp,
        drafter_cards=args.drafter_tp,
        **expected._asdict(),
        others=(*parse_other("head", args.head_acceptance), *parse_other("ngrams", args.ngram_acceptance)),
        methods=tuple(dict.fromkeys(filter(None, (args.methods or "").split(",")))),
    )


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what `specscope advise` prints."""
    from specscope.app.render.advise import models_line, table_of

    yield f"{models_line(found)} · {found['clock']}"
    for part in found["batches"]:
        yield ""
        yield part["answer"]
        yield from part["notes"]
        yield from table_of(part).lines()
        if part["changes"]:
            yield "It would change:"
            yield from (f"  {change['text']}" for change in part["changes"])
    if found["left_out"]:
        yield ""
        yield "Left out:"
        yield from (f"  {name}: {reason}" for name, reason in found["left_out"].items())
