"""What a file is that holds no counts, and what would: the words of a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specscope.traces.imports.request_trace import is_object

_VLLM = "start vLLM with --per-request-spec-decode-metrics detailed"
_LLAMA = 'ask llama.cpp with "timings_per_token": true'
_SOURCES = f"{_VLLM}, or {_LLAMA}"
_FORMS = "docs/traces.md lists the forms"
_DIFFERENCE = "the server's /metrics before and after it count drafts: specscope import AFTER --since BEFORE"


class _Kind(NamedTuple):
    """A kind of file."""

    what: str
    instead: str
    """What to give in its place."""


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda row: is_object(row) and all(name in row for name in names)


def _is_request(row: Any) -> bool:
    answers = ("choices", "content", "text", "timings", "tokens_predicted", "response", "meta_info")
    asked = is_object(row) and ("messages" in row or "prompt" in row or "input" in row)
    return asked and not any(name in row for name in answers)


def _stopped(row: Any) -> bool:
    return _unmetered(row) and any(isinstance(one.get("stop_reason"), str) for one in row["choices"])


def _several(row: Any) -> bool:
    return _unmetered(row) and len(row["choices"]) > 1


def _unmetered(row: Any) -> bool:
    return (
        _has("choices", "metrics")(row)
        and isinstance(row["choices"], list)
        and all(map(is_object, row["choices"]))
        and not (is_object(row["metrics"]) and row["metrics"].get("speculative_decoding"))
    )


def _is_event(row: Any) -> bool:
    return is_object(row) and str(row.get("object", "")).endswith(".chunk")


def _is_plain_bench(row: Any) -> bool:
    return _has("duration", "total_output_tokens")(row)


_SGLANG = "give the server's log, or answers with meta_info"
_COUNTED = "its log and /metrics count such answers, too"
_VALUES: tuple[tuple[Callable[[Any], bool], _Kind], ...] = (
    (_is_request, _Kind("the request of a completion, not its answer", f"give the answer; {_SOURCES}")),
    (
        _has("default_generation_settings"),
        _Kind("llama.cpp's /props: settings", f"give its /metrics (llama-server --metrics), or {_LLAMA}"),
    ),
    (
        _has("id", "n_ctx", "is_processing"),
        _Kind("llama.cpp's /slots: settings", f"give its /metrics (llama-server --metrics), or {_LLAMA}"),
    ),
    (
        lambda row: is_object(row) and row.get("object") in ("list", "model"),
        _Kind("a list of models, as /v1/models gives it", f"give an answer or /metrics; {_SOURCES}"),
    ),
    (
        _stopped,
        _Kind(
            "an answer of vLLM that a stop string ended, for which it counts nothing (no speculative_decoding in metrics)",
            f'ask without "stop"; {_COUNTED}',
        ),
    ),
    (
        _several,
        _Kind(
            "an answer of vLLM with n > 1, for which it counts nothing (no speculative_decoding in metrics)",
            f"ask with n = 1; {_COUNTED}",
        ),
    ),
    (
        _unmetered,
        _Kind(
            "an answer of vLLM without metrics.speculative_decoding",
            f"{_VLLM} (or summary) and --speculative-config; {_COUNTED}",
        ),
    ),
    (
        lambda row: _has("choices", "stats")(row) and is_object(row["stats"]),
        _Kind("an answer of LM Studio that drafted nothing", 'ask its /api/v0 with "draft_model"'),
    ),
    (_is_event, _Kind("an event of a stream without counts", f"give all its events; {_SOURCES}")),
    (_has("choices"), _Kind("an answer without counts of drafts", _SOURCES)),
    (_has("tokens_predicted"), _Kind("an answer of llama.cpp without timings", _LLAMA)),
    (
        _has("meta_info"),
        _Kind("an answer of SGLang without spec_verify_ct", "start it with --speculative-algorithm"),
    ),
    (
        lambda row: _has("iter", "iterLatencyMS")(row),
        _Kind(
            "a list of iterations of TensorRT-LLM without specDecodingStats",
            "set speculative_config and enable_iter_perf_stats",
        ),
    ),
    (lambda row: is_object(row) and bool(row.get("error")), _Kind("a server's error", "give an answer")),
    (
        lambda row: _has("benchmarks")(row) and isinstance(row["benchmarks"], list),
        _Kind("a report of GuideLLM: times and tokens of requests, nothing of drafts", _DIFFERENCE),
    ),
    (
        _has("input_config"),
        _Kind(
            "AIPerf's summary of a run whose answers counted no drafts",
            f"{_VLLM}; AIPerf 0.12 and later then have the counts",
        ),
    ),
    (
        _has("eval_count"),
        _Kind("an answer of Ollama, which counts no drafts", "serve the model with llama-server"),
    ),
    (
        _has("question_id"),
        _Kind(
            "a benchmark's questions, or answers without times",
            "give answers with wall_time, as Spec-Bench writes them",
        ),
    ),
    (
        _has("accept_length"),
        _Kind("a result of SGLang's bench: averages only", _SGLANG),
    ),
    (
        _is_plain_bench,
        _Kind(
            "a result of a bench without spec_decode_ fields: the server drafted nothing, or its /metrics were not read",
            "start it with --speculative-config",
        ),
    ),
    (
        lambda row: is_object(row) and ("architectures" in row or "model_type" in row),
        _Kind("a model's config.json", "specscope run --target FOLDER runs the model"),
    ),
    (
        lambda row: is_object(row) and ("weight_map" in row or {"model", "added_tokens"} <= row.keys()),
        _Kind("a part of a model's folder", "specscope run --target FOLDER runs the model"),
    ),
)
"""Whether a JSON value is of a kind; the first that fits counts."""

_BYTES: tuple[tuple[bytes, _Kind], ...] = (
    (b"GGUF", _Kind("a model (GGUF)", "specscope run --target FILE runs it")),
    (
        b"SQLite format 3\0",
        _Kind("a database", "if it is SpecScope's, give it as --database, or export its runs as JSONL"),
    ),
    (b"PK\x03\x04", _Kind("a zip archive", "unpack it and give a file of it")),
    (b"BZh", _Kind("packed by bzip2", "unpack it")),
    (b"\xfd7zXZ", _Kind("packed by xz", "unpack it")),
    (b"\x28\xb5\x2f\xfd", _Kind("packed by zstd", "unpack it")),
    (b"%PDF", _Kind("a PDF", "give the log or the answers as text")),
    (b"\x89PNG", _Kind("a picture", "give the log or the answers as text")),
    (b"\xff\xd8\xff", _Kind("a picture", "give the log or the answers as text")),
)
_JSON = re.compile(rb'\s*(?:\{\s*"|\[\s*[{\["])')
_SAFETENSORS = re.compile(rb"^.{6}\x00\x00\{", re.DOTALL)
_TEXTS: tuple[tuple[re.Pattern[str], _Kind], ...] = (
    (
        re.compile(r"^Accept length: +\d", re.MULTILINE),
        _Kind("the output of SGLang's bench: averages only", _SGLANG),
    ),
    (
        re.compile(r"^\s*<(?:!doctype html|html|\?xml)", re.IGNORECASE),
        _Kind(
            "a page (HTML)",
            "give its data; a run of SpecScope is exported by specscope export --format jsonl",
        ),
    ),
    (
        re.compile(r"\A(?:step,sequence,|id,device,kind,|tokens,seconds,)"),
        _Kind("a table (CSV) of specscope export", "give the run as JSONL: specscope export --format jsonl"),
    ),
    (
        re.compile(r"\A[^,\n{\[]{1,80}(?:,[^,\n]{0,80}){3,400}\r?\n[^,\n]{0,80},"),
        _Kind("a table (CSV)", "give the log or the answers that it was made of"),
    ),
    (
        re.compile(r"Speculative metrics: Draft acceptance rate"),
        _Kind(
            "a log of vLLM's old engine (V0): totals without the number of drafts",
            "vLLM 0.9 and later print SpecDecoding metrics",
        ),
    ),
    (
        re.compile(r"draft acceptance(?: rate)? =|statistics [\w-]+: #calls"),
        _Kind("a log of llama.cpp whose lines about drafts are cut", "give whole lines"),
    ),
    (
        re.compile(r"SpecDecoding metrics"),
        _Kind(
            "a log of vLLM whose lines about drafts are cut", "give whole lines, with Accepted and Drafted"
        ),
    ),
    (
        re.compile(r"^(?:# (?:HELP|TYPE) )?vllm:\w+", re.MULTILINE),
        _Kind(
            "/metrics of vLLM without counters of drafts (spec_decode_num_drafts, …_draft_tokens, …_accepted_tokens)",
            "start it with --speculative-config",
        ),
    ),
    (
        re.compile(r"^(?:# (?:HELP|TYPE) )?llamacpp:\w+", re.MULTILINE),
        _Kind("/metrics of llama.cpp without counters of drafts", "start it with a drafter (-md FILE)"),
    ),
    (
        re.compile(r"^(?:# (?:HELP|TYPE) )?sglang:\w+", re.MULTILINE),
        _Kind(
            "/metrics of SGLang: averages of drafts, no counts", "give its log (Decode batch … accept len)"
        ),
    ),
    (
        re.compile(r"^# (?:HELP|TYPE) \w", re.MULTILINE),
        _Kind("/metrics without counters of drafts", "give those of vLLM or llama.cpp"),
    ),
    (
        re.compile(r"Decode batch[.,]|server_args=ServerArgs\("),
        _Kind("a log of SGLang without accept len", "start it with --speculative-algorithm"),
    ),
    (
        re.compile(
            r"\b(?:INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d |Avg generation throughput|\(APIServer(?:_\d+)? pid="
        ),
        _Kind(
            "a log of vLLM without SpecDecoding metrics",
            "start it with --speculative-config and without --disable-log-stats; the line comes every 10 s while it drafts",
        ),
    ),
    (
        re.compile(
            r"print_timing|eval time =|llama_model_loader|load_model: loading model|^(?:\S+ [A-Z] )?(?:srv|slot) +\w",
            re.MULTILINE,
        ),
        _Kind("a log of llama.cpp without drafts", "start it with a drafter (-md FILE)"),
    ),
    (
        re.compile(r"^data: ?[{\[]", re.MULTILINE),
        _Kind("a recorded stream without counts", _SOURCES),
    ),
    (
        re.compile(
            r"\A(?:[ \t]*(?:#[^\n]*)?\n)*(?:import |from \S+ import |def |class |@\w|\"\"\"|\'\'\'|#![^\n]*python)"
        ),
        _Kind("a Python program", "specscope.record in it writes a file that is read"),
    ),
    (
        re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\n)*(?:\[\[?[\w.\"-]+\]\]?[ \t]*\n|[\w-]+ = )"),
        _Kind("a file of settings (TOML)", "a latency profile is given as --profile FILE"),
    ),
)


def named(content: bytes, rows: list[Any], otherwise: str = "") -> str:
    """Return what a file without counts is, and what to give in its place.

    Args:
        content: The file.
        rows: Its JSON values, or the first of them.
        otherwise: What to say of a file of no kind that has a name here.
    """
    kind = _of_bytes(content) or next((_of_value(row) for row in rows[:1]), None)
    if kind is None:
        text = content[:1_000_000].decode("utf-8", "replace")
        kind = next((kind for pattern, kind in _TEXTS if pattern.search(text)), None)
    if kind is None and otherwise:
        return otherwise
    if kind is None and not rows and _JSON.match(content):
        kind = _Kind("JSON that is cut or broken", "give the whole file")
    if kind is None:
        what = "JSON" if rows else "no text" if b"\0" in content[:4096] else "text"
        kind = _Kind(f"{what} of no form that is read" if rows or what == "text" else what, _FORMS)
    return f"it is {kind.what}; {kind.instead}"


def _of_bytes(content: bytes) -> _Kind | None:
    if not content.strip():
        return _Kind("empty", "give a file with a run, a log or an answer")
    if _SAFETENSORS.match(content[:9]):
        return _Kind("a model's weights (safetensors)", "specscope run --target FOLDER runs the model")
    return next((kind for start, kind in _BYTES if content.startswith(start)), None)


def _of_value(row: Any) -> _Kind | None:
    if row in ({}, []):
        return _Kind("empty JSON", "give a file with a run, a log or an answer")
    return next((kind for fits, kind in _VALUES if fits(row)), None)
