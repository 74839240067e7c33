"""Record a call of transformers' `generate`, with a model of any architecture, as a trace.

    with specscope.watch(model, assistant, tokenizer=tokenizer) as trace:
        model.generate(**inputs, assistant_model=assistant)

The loop is transformers' own. Hooks time the forwards; the call's candidate generator shows its
drafts, and the call's stopping criteria show the output. Nothing that they return is changed, and
after the context nothing is left in the models. docs/transformers.md describes use and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers import StoppingCriteriaList

from specscope.engine.errors import UsageError, named_arguments, shown
from specscope.engine.files import read_bytes
from specscope.engine.trace.appended import KeptLines, Lines
from specscope.engine.trace.events import Header
from specscope.engine.trace.generators import layers_of
from specscope.engine.trace.given import file_path
from specscope.engine.trace.jsonl import MOST_TRACE_BYTES, read_jsonl
from specscope.engine.trace.recorder import RECORDED, ended_by
from specscope.engine.trace.trace import Trace
from specscope.engine.trace.watched import RUNTIME, Call

if TYPE_CHECKING:
    import os

    import torch

NEEDED = ("_prefill", "_get_candidate_generator", "_get_stopping_criteria", "_valid_auto_compile_criteria")
"""Methods of transformers' targets that are observed."""
FORWARDS = ("register_forward_hook", "_is_stateful", "name_or_path")
"""What is used of a drafter, which needs no `generate`: DFlash's has none."""
DEVICES = ("cpu", "cuda")


@named_arguments
def watch(
    model: Any,
    assistant: Any = None,
    *,
    tokenizer: Any = None,
    path: str | os.PathLike[str] | None = None,
) -> AbstractContextManager[Trace]:
    """Record the one call of `model.generate` that is made in this context.

    Args:
        model: The target.
        assistant: The drafter, if the call has one.
        tokenizer: The target's; without it the trace has token ids in place of texts.
        path: A file that gets each row at once; by default the rows are kept in memory.

    Returns:
        The context of the trace, which is empty until the context ends.

    Raises:
        UsageError: The call cannot be recorded, or there was none.
    """
    _check(model, NEEDED)
    if assistant is not None:
        _check(assistant, FORWARDS)
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise UsageError(f"tokenizer is {shown(tokenizer)}; give one with decode, or leave it out")
    decode: Any = getattr(tokenizer, "decode", None)
    return _watching(model, assistant, decode, None if path is None else file_path(path))


@contextmanager
def _watching(
    model: Any, assistant: Any, decode: Callable[..., str] | None, path: Path | None
) -> Generator[Trace]:
    trace = Trace(Header("", "", RECORDED, "", {}, (), (), {}, {}, RUNTIME, "", (), "", ""))
    lines = KeptLines() if path is None else Lines(path, replace=True)
    call = Call(model, assistant, decode, lines)
    try:
        with _attached(call):
            yield trace
    except BaseException as error:
        with suppress(Exception):  # the block's own error is the one to see
            call.close(*ended_by(error))
            _keep(trace, lines)
        raise
    else:
        if not call.begun:
            raise UsageError("nothing was recorded; call generate of the watched model in the context")
        if call.running:  # the block has handled an exception of generate
            call.close("failed", "generate did not end its output")
        else:
            call.close()
        _keep(trace, lines)
    finally:
        lines.close()


def _keep(trace: Trace, lines: Lines | KeptLines) -> None:
    """Make the trace that of a recording."""
    content = lines.content if isinstance(lines, KeptLines) else read_bytes(lines.path, MOST_TRACE_BYTES)
    vars(trace).update(vars(read_jsonl(content.decode().split("\n"))))


def _check(model: Any, needed: Sequence[str]) -> None:
    name, version = type(model).__name__, transformers.__version__
    if lacking := [method for method in needed if not hasattr(model, method)]:
        what = "a model with `generate`" if needed is NEEDED else "a model of transformers"
        raise UsageError(
            f"{name} has no {lacking[0]} in transformers {version}; give {what}, or record the "
            "loop by specscope.record"
        )
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if model.device.type not in DEVICES or len(places) > 1:
        where = ", ".join(sorted(places)) if len(places) > 1 else model.device
        raise UsageError(f"{name} is on {where}; watch times models on the CPU or on one GPU")


@contextmanager
def _attached(call: Call) -> Generator[None]:
    """Observe the models; leave nothing behind."""
    model = call.model
    with ExitStack() as undo:
        for one in {id(m): m for m in (model, call.assistant) if m is not None}.values():
            for handle in _timed(call, one):
                undo.callback(handle.remove)
        undo.enter_context(_replaced(model, "_prefill", partial(_plain, call)))
        undo.enter_context(_replaced(model, "_get_candidate_generator", partial(_assisted, call)))
        undo.enter_context(_replaced(model, "_get_stopping_criteria", partial(_stopping, call)))
        yield


def _timed(call: Call, model: Any) -> tuple[Any, Any]:
    """Time the forwards of a model; return the handles of the hooks."""
    return (
        model.register_forward_pre_hook(call.forward_begins, with_kwargs=True),
        model.register_forward_hook(call.forward_ends),
    )


@contextmanager
def _replaced(owner: Any, name: str, wrapper: Callable[..., Any]) -> Generator[None]:
    """Call `wrapper(original, ...)` in place of a method of one object."""
    names: dict[str, Any] = vars(owner)
    before, absent = names.get(name), name not in names
    names[name] = partial(wrapper, getattr(owner, name))
    try:
        yield
    finally:
        del names[name]
        if not absent:
            names[name] = before


def _plain(
    call: Call, original: Any, input_ids: torch.Tensor, settings: Any, kwargs: Any, *args: Any, **more: Any
) -> Any:
    """Begin with plain generation; a model that drafts for itself calls it within assisted one."""
    if not call.drafting:
        call.begin(input_ids, settings, kwargs)
    return original(input_ids, settings, kwargs, *args, **more)


def _assisted(call: Call, original: Any, **kwargs: Any) -> Any:
    """Begin with assisted generation; observe its candidate generator."""
    generator = original(**kwargs)
    call.begin(kwargs["input_ids"], kwargs["generation_config"], kwargs["model_kwargs"], generator)
    if (layers := layers_of(generator)) is not None:
        _timed(call, layers)  # they end with their generator
    observed = {"get_candidates": call.candidates, "update_candidate_strategy": call.judged}
    for name, wrapper in observed.items():
        vars(generator)[name] = partial(wrapper, getattr(generator, name))
    return generator


def _stopping(call: Call, original: Any, *args: Any, **kwargs: Any) -> Any:
    criteria = original(*args, **kwargs)
    return criteria if call.drafting else _Stopping(criteria, call)


class _Stopping(StoppingCriteriaList):
    """The stopping criteria of a call, which see its output after each round."""

    def __init__(self, criteria: Any, call: Call) -> None:
        super().__init__(criteria)
        self._call = call

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        done: Any = super().__call__(input_ids, scores, **kwargs)
        self._call.round(input_ids, done)
        return done
