"""What a file is that holds no counts, and what would: the words of a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from specscope.traces.imports.request_trace import is_object

_VLLM = "start vLLM with --per-request-spec-decode-metrics detailed"
_LLAMA = 'ask llama.cpp with "timings_per_token": true'
_SOURCES = f"{_VLLM}, or {_LLAMA}"
_FORMS = "docs/traces.md lists the forms"
_DIFFERENCE = "the server's /metrics before and after it count drafts: specscope import AFTER --since BEFORE"


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


_SGLANG = "give the server's log, or answers with meta_info"
_COUNTED = "its log and /metrics count such answers, too"
_VALUES: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (_is_request, "the request of a completion, not its answer", f"give the answer; {_SOURCES}"),
    (
        _has("default_generation_settings"),
        "llama.cpp's /props: settings",
        f"give its /metrics (llama-server --metrics), or {_LLAMA}",
    ),
    (
        _has("id", "n_ctx", "is_processing"),
        "llama.cpp's /slots: settings",
        f"give its /metrics (llama-server --metrics), or {_LLAMA}",
    ),
    (
        lambda row: is_object(row) and row.get("object") in ("list", "model"),
        "a list of models, as /v1/models gives it",
        f"give an answer or /metrics; {_SOURCES}",
    ),
    (
        _stopped,
        "an answer of vLLM that a stop string ended, for which it counts nothing (no speculative_decoding in metrics)",
        f'ask without "stop"; {_COUNTED}',
    ),
    (
        _several,
        "an answer of vLLM with n > 1, for which it counts nothing (no speculative_decoding in metrics)",
        f"ask with n = 1; {_COUNTED}",
    ),
    (
        _unmetered,
        "an answer of vLLM without metrics.speculative_decoding",
        f"{_VLLM} (or summary) and --speculative-config; {_COUNTED}",
    ),
    (
        lambda row: _has("choices", "stats")(row) and is_object(row["stats"]),
        "an answer of LM Studio that drafted nothing",
        'ask its /api/v0 with "draft_model"',
    ),
    (
        lambda row: is_object(row) and str(row.get("object", "")).endswith(".chunk"),
        "an event of a stream without counts",
        f"give all its events; {_SOURCES}",
    ),
    (_has("choices"), "an answer without counts of drafts", _SOURCES),
    (_has("tokens_predicted"), "an answer of llama.cpp without timings", _LLAMA),
    (
        _has("meta_info"),
        "an answer of SGLang without spec_verify_ct",
        "start it with --speculative-algorithm",
    ),
    (
        lambda row: _has("iter", "iterLatencyMS")(row),
        "a list of iterations of TensorRT-LLM without specDecodingStats",
        "set speculative_config and enable_iter_perf_stats",
    ),
    (lambda row: is_object(row) and bool(row.get("error")), "a server's error", "give an answer"),
    (
        lambda row: _has("benchmarks")(row) and isinstance(row["benchmarks"], list),
        "a report of GuideLLM: times and tokens of requests, nothing of drafts",
        _DIFFERENCE,
    ),
    (
        _has("input_config"),
        "AIPerf's summary of a run whose answers counted no drafts",
        f"{_VLLM}; AIPerf 0.12 and later then have the counts",
    ),
    (_has("eval_count"), "an answer of Ollama, which counts no drafts", "serve the model with llama-server"),
    (
        _has("question_id"),
        "a benchmark's questions, or answers without times",
        "give answers with wall_time, as Spec-Bench writes them",
    ),
    (_has("accept_length"), "a result of SGLang's bench: averages only", _SGLANG),
    (
        _has("duration", "total_output_tokens"),
        "a result of a bench without spec_decode_ fields: the server drafted nothing, or its /metrics were not read",
        "start it with --speculative-config",
    ),
    (
        lambda row: is_object(row) and ("architectures" in row or "model_type" in row),
        "a model's config.json",
        "specscope run --target FOLDER runs the model",
    ),
    (
        lambda row: is_object(row) and ("weight_map" in row or {"model", "added_tokens"} <= row.keys()),
        "a part of a model's folder",
        "specscope run --target FOLDER runs the model",
    ),
)
"""Whether a JSON value is of a kind; the first that fits counts."""

_BYTES: tuple[tuple[bytes, str, str], ...] = (
    (b"GGUF", "a model (GGUF)", "specscope run --target FILE runs it"),
    (
        b"SQLite format 3\0",
        "a database",
        "if it is SpecScope's, give it as --database, or export its runs as JSONL",
    ),
    (b"PK\x03\x04", "a zip archive", "unpack it and give a file of it"),
    (b"BZh", "packed by bzip2", "unpack it"),
    (b"\xfd7zXZ", "packed by xz", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "unpack it"),
    (b"%PDF", "a PDF", "give the log or the answers as text"),
    (b"\x89PNG", "a picture", "give the log or the answers as text"),
    (b"\xff\xd8\xff", "a picture", "give the log or the answers as text"),
)
_JSON = re.compile(rb'\s*(?:\{\s*"|\[\s*[{\["])')
_SAFETENSORS = re.compile(rb"^.{6}\x00\x00\{", re.DOTALL)
_TEXTS: tuple[tuple[str, str, str], ...] = (
    (
        r"\A(?:[ \t]*(?:#[^\n]*)?\n)*(?:import |from \S+ import |def |class |@\w|\"\"\"|\'\'\'|#![^\n]*python)",
        "a Python program",
        "specscope.record in it writes a file that is read",
    ),
    (r"^Accept length: +\d", "the output of SGLang's bench: averages only", _SGLANG),
    (
        r"\A\s*<(?i:!doctype html|html|\?xml)",
        "a page (HTML)",
        "give its data; a run of SpecScope is exported by specscope export --format jsonl",
    ),
    (
        r"\A(?:step,sequence,|id,device,kind,|tokens,seconds,)",
        "a table (CSV) of specscope export",
        "give the run as JSONL: specscope export --format jsonl",
    ),
    (
        r"\A[^,\n{\[]{1,80}(?:,[^,\n]{0,80}){3,400}\r?\n[^,\n]{0,80},",
        "a table (CSV)",
        "give the log or the answers that it was made of",
    ),
    (
        r"Speculative metrics: Draft acceptance rate",
        "a log of vLLM's old engine (V0): totals without the number of drafts",
        "vLLM 0.9 and later print SpecDecoding metrics",
    ),
    (
        r"draft acceptance(?: rate)? =|statistics [\w-]+: #calls",
        "a log of llama.cpp whose lines about drafts are cut",
        "give whole lines",
    ),
    (
        r"SpecDecoding metrics",
        "a log of vLLM whose lines about drafts are cut",
        "give whole lines, with Accepted and Drafted",
    ),
    (
        r"^(?:# (?:HELP|TYPE) )?vllm:\w+",
        "/metrics of vLLM without counters of drafts (spec_decode_num_drafts, …_draft_tokens, …_accepted_tokens)",
        "start it with --speculative-config",
    ),
    (
        r"^(?:# (?:HELP|TYPE) )?llamacpp:\w+",
        "/metrics of llama.cpp without counters of drafts",
        "start it with a drafter (-md FILE)",
    ),
    (
        r"^(?:# (?:HELP|TYPE) )?sglang:\w+",
        "/metrics of SGLang: averages of drafts, no counts",
        "give its log (Decode batch … accept len)",
    ),
    (r"^# (?:HELP|TYPE) \w", "/metrics without counters of drafts", "give those of vLLM or llama.cpp"),
    (
        r"Decode batch[.,]|server_args=ServerArgs\(",
        "a log of SGLang without accept len",
        "start it with --speculative-algorithm",
    ),
    (
        r"\b(?:INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d |Avg generation throughput|\(APIServer(?:_\d+)? pid=",
        "a log of vLLM without SpecDecoding metrics",
        "start it with --speculative-config and without --disable-log-stats; the line comes every 10 s while it drafts",
    ),
    (
        r"print_timing|eval time =|llama_model_loader|load_model: loading model|^(?:\S+ [A-Z] )?(?:srv|slot) +\w",
        "a log of llama.cpp without drafts",
        "start it with a drafter (-md FILE)",
    ),
    (r"^data: ?[{\[]", "a recorded stream without counts", _SOURCES),
    (
        r"\A(?:[ \t]*(?:#[^\n]*)?\n)*(?:\[\[?[\w.\"-]+\]\]?[ \t]*\n|[\w-]+ = )",
        "a file of settings (TOML)",
        "a latency profile is given as --profile FILE",
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
        kind = _first(lambda pattern: re.search(pattern, text, re.MULTILINE), _TEXTS)
    if kind is None and otherwise:
        return otherwise
    if kind is None and not rows and _JSON.match(content):
        kind = "JSON that is cut or broken", "give the whole file"
    if kind is None:
        what = "JSON" if rows else "no text" if b"\0" in content[:4096] else "text"
        kind = f"{what} of no form that is read" if rows or what == "text" else what, _FORMS
    return f"it is {kind[0]}; {kind[1]}"


def _first(fits: Callable[[Any], Any], table: Iterable[tuple[Any, str, str]]) -> tuple[str, str] | None:
    """Return what the first row of a table that fits says."""
    return next(((what, instead) for key, what, instead in table if fits(key)), None)


def _of_bytes(content: bytes) -> tuple[str, str] | None:
    if not content.strip():
        return "empty", "give a file with a run, a log or an answer"
    if _SAFETENSORS.match(content[:9]):
        return "a model's weights (safetensors)", "specscope run --target FOLDER runs the model"
    return _first(content.startswith, _BYTES)


def _of_value(row: Any) -> tuple[str, str] | None:
    if row in ({}, []):
        return "empty JSON", "give a file with a run, a log or an answer"
    return _first(lambda fits: fits(row), _VALUES)
