"""Traces of the torch profiler (Chrome's JSON) with the scopes of SGLang or vLLM.

Read: SGLang with pull request 38630 (merged in September 2026): `step[DRAFT ...]` is a step of the
drafter, `step[VERIFY ...]` one of the target. vLLM 0.32 with its V1 runner, started with
`VLLM_CUSTOM_SCOPES_FOR_PROFILING=1`: `gpu_model_runner: forward`, `sample` and `draft`, inside
`execute_context_a(b)_generation_c(d)`, or with `detailed_trace_annotation`
`execute_t_context_a(sqb...)_generation_c(sqd...)`: requests, and in brackets their tokens. Of a
file with scopes on a GPU only their times there are read: on the host, a scope ends before its
kernels do. Without a GPU, the host does the work itself. `ts` and `dur` are microseconds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.errors import shown
from specscope.engine.trace.events import Device, Footer, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.imported import Imported
from specscope.traces.imports.request_trace import FileForm, is_object, new_header, number

if TYPE_CHECKING:
    from specscope.engine.trace.events import SpanKind

_NAME = "a trace of the torch profiler with SGLang's step[...] or vLLM's gpu_model_runner scopes"
_HOW = (
    "vLLM writes them with VLLM_CUSTOM_SCOPES_FOR_PROFILING=1 and VLLM_USE_V2_MODEL_RUNNER=0, SGLang since its pull "
    "request 38630"
)
MOST_SCOPES = 500_000
DEVICE = "gpu0"
_UNKNOWN_COUNT = -1
_SGLANG = re.compile(r"step\[([A-Za-z_0-9]{1,40})(?: [^\]]{0,400})?\]")
_VLLM = re.compile(r"gpu_model_runner: (forward|sample|draft)")
_DETAILS = r"(?:sk\d{1,20}sqsq\d{1,30}sqsk\d{1,30})?"
_BATCH = re.compile(
    rf"execute_(?:\d{{1,9}}_)?context_\d{{1,9}}\((?:sq)?(\d{{1,9}}){_DETAILS}\)"
    rf"_generation_(\d{{1,9}})\((?:sq)?(\d{{1,9}}){_DETAILS}\)"
)
_GPU, _HOST = "gpu_user_annotation", "user_annotation"
_ON_GPU = (_GPU, "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")  # a file may have a list as category
"""Categories that only a profile of a GPU has."""
_MODES: dict[str, SpanKind] = {
    "VERIFY": "verify",
    "DECODE": "verify",
    "EXTEND": "prefill",
    "MIXED": "prefill",
}
"""Kinds of the target's steps of SGLang; `IDLE` is left out, and `DRAFT...` is of the drafter."""
_KINDS: dict[str, SpanKind] = {"forward": "verify", "sample": "sample", "draft": "draft"}
_UNKNOWN = (
    "number of tokens",
    "origin of each token",
    "texts of the tokens",
    "ids of the tokens",
    "accepted and rejected drafts",
    "prompt",
    "probabilities",
    "forwards of the drafter",
    "rows cached before each forward",
)


class _Scope(NamedTuple):
    """A named scope on the GPU, with times in microseconds."""

    start: float
    end: float
    name: str
    place: tuple[Any, Any]


class _Work(NamedTuple):
    """What a scope did."""

    kind: SpanKind
    model: str
    rows: int
    start: float
    end: float


def _recognises(row: Any) -> bool:
    return is_object(row) and isinstance(row.get("traceEvents"), list)


def _read(row: dict[str, Any]) -> Trace | None:
    if is_object(row.get("otherData")) and "lossless" in row["otherData"]:
        raise ValueError(
            "it is SpecScope's export for Perfetto; give the run as JSONL: specscope export --format jsonl"
        )
    events: list[Any] = row["traceEvents"]
    host = not any(is_object(event) and event.get("cat") in _ON_GPU for event in events)
    scopes = _scopes(events, _HOST if host else _GPU)
    vllm = any(_VLLM.fullmatch(scope.name) for scope in scopes)
    work = _vllm(scopes) if vllm else _sglang(scopes)
    engine = "vLLM" if vllm else "SGLang"
    if not work:
        where = "" if host else " on a GPU"
        raise ValueError(f"the file has no scopes of speculative decoding{where}; {_HOW}")
    imported = Imported(f"a profile of {engine} by torch", _UNKNOWN)
    name, kind = ("cpu0", "cpu") if host else (DEVICE, "cuda")
    device = Device(name, "drafter+target", f"{'CPU' if host else 'GPU'} · drafter and target", kind)
    header = new_header(imported, engine=engine, key="profile", content=work, devices=(device,))
    spans = _spans(work, name)
    return Trace(header, spans=spans, footer=Footer("done", (), (), max(span.end for span in spans)))


def _scopes(events: list[Any], category: str) -> list[_Scope]:
    """Return the named scopes, by start, of the stream or the thread with the most of them."""
    scopes: list[_Scope] = []
    for event in events:
        if not is_object(event) or event.get("ph") != "X" or event.get("cat") != category:
            continue
        name = event.get("name")
        if not isinstance(name, str) or not any(form.fullmatch(name) for form in (_SGLANG, _VLLM, _BATCH)):
            continue
        start, length = number(event, "ts"), number(event, "dur")
        if length < 0 or not 0 <= start < 1e16 or length > 1e12:
            raise ValueError(f"scope {shown(name)} starts at {start:g} µs and lasts {length:g} µs")
        scopes.append(_Scope(start, start + length, name, (_place(event, "pid"), _place(event, "tid"))))
        if len(scopes) > MOST_SCOPES:
            raise ValueError(f"the file has more than {MOST_SCOPES} scopes, the most that are read")
    work = Counter(scope.place for scope in scopes if not _BATCH.fullmatch(scope.name))
    gpus = {gpu for gpu, _ in work}
    if len(gpus) > 1:
        raise ValueError(
            f"the file has scopes of {len(gpus)} {'GPUs' if category == _GPU else 'processes'}; give the file of one rank"
        )
    ((place, _),) = work.most_common(1) or [((0, 0), 0)]
    return sorted(scope for scope in scopes if scope.place == place)


def _place(event: dict[str, Any], name: str) -> str:
    value = event.get(name)
    if type(value) not in (int, str):
        raise ValueError(f"{name} of an event is {shown(value)}; expected a number or a text")
    return str(value)[:80]


def _sglang(scopes: list[_Scope]) -> list[_Work]:
    work: list[_Work] = []
    for scope in scopes:
        match = _SGLANG.fullmatch(scope.name)
        mode = match[1] if match else "IDLE"
        if mode == "IDLE":
            continue
        if mode.startswith("DRAFT"):
            work.append(_Work("draft", "drafter", _UNKNOWN_COUNT, scope.start, scope.end))
        elif mode in _MODES:
            work.append(_Work(_MODES[mode], "target", _UNKNOWN_COUNT, scope.start, scope.end))
        else:
            raise ValueError(
                f"scope {shown(scope.name)} is of another version of SGLang; expected step[DRAFT ...] and "
                "step[VERIFY ...], as SGLang writes since its pull request 38630"
            )
    if work and not any(item.kind == "draft" for item in work):
        raise ValueError(
            "the file has no scope step[DRAFT ...], so nothing was drafted while it was recorded"
        )
    return work


def _vllm(scopes: list[_Scope]) -> list[_Work]:
    """Return the work of vLLM's scopes; a forward without a generating request is a prefill."""
    batches = [scope for scope in scopes if _BATCH.fullmatch(scope.name)]
    starts = [batch.start for batch in batches]
    work: list[_Work] = []
    for scope in scopes:
        match = _VLLM.fullmatch(scope.name)
        if match is None:
            continue
        kind, rows = _KINDS[match[1]], _UNKNOWN_COUNT
        if kind == "verify":
            at = bisect_right(starts, scope.start) - 1
            batch = _BATCH.fullmatch(batches[at].name) if at >= 0 and batches[at].end >= scope.end else None
            if batch:
                rows = int(batch[1]) + int(batch[3])
                kind = "verify" if int(batch[2]) else "prefill"
        model = "drafter" if kind == "draft" else "target"
        work.append(_Work(kind, model, rows, scope.start, scope.end))
    return work


def _spans(work: list[_Work], device: str) -> list[Span]:
    """Return the work as spans. A draft belongs to the step of the verification after it."""
    first, step, spans = work[0].start, 1, list[Span]()
    for index, item in enumerate(work):
        prefill = item.kind == "prefill" and step == 1
        spans.append(
            Span(
                id=index,
                device=device,
                kind=item.kind,
                start=round((item.start - first) * 1000),
                end=round((item.end - first) * 1000),
                model=item.model,
                step=0 if prefill else step,
                sequence=-1,
                rows=item.rows,
                context=_UNKNOWN_COUNT,
                outcome="done",
            )
        )
        step += item.kind == "verify"
    return spans


PROFILER = FileForm(_NAME, _recognises, _read)
