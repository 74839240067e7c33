"""Files that hold no counts are refused in one line: what they are, and what would give counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specscope.engine.errors import UsageError
from specscope.traces.imports.reading import read_traces

SERVERS = Path(__file__).parent / "imported" / "servers"
ANSWER = {"id": "a", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "x"}}]}
CHUNK = {"id": "a", "object": "chat.completion.chunk", "choices": [{"delta": {"content": "x y"}}]}
VALUES: dict[str, tuple[Any, str]] = {
    "a request": ({"model": "m", "messages": []}, "the request of a completion, not its answer; give the answer"),
    "a request of a completion": ({"prompt": "x", "n_predict": 4}, "the request of a completion"),
    "settings": ({"default_generation_settings": {}, "total_slots": 1}, "llama.cpp's /props: settings; give its /metrics"),
    "slots": ([{"id": 0, "n_ctx": 9, "is_processing": False}], 'llama.cpp\'s /slots.*"timings_per_token": true'),
    "models": ({"object": "list", "data": [{"id": "m", "object": "model"}]}, "a list of models"),
    "an answer": (ANSWER, "an answer without counts of drafts; start vLLM with --per-request-spec"),
    "no metrics": ({**ANSWER, "metrics": None}, "without metrics.speculative_decoding; start vLLM with --per-request-spec"),
    "times alone": ({**ANSWER, "metrics": {"mean_itl_ms": 1.0}}, "without metrics.speculative_decoding"),
    "a stop string": (
        {**ANSWER, "metrics": None, "choices": [{"stop_reason": "END"}]},
        'a stop string ended, for which it counts nothing.*ask without "stop"; its log and /metrics',
    ),
    "two answers": ({**ANSWER, "metrics": None, "choices": [{}, {}]}, "n > 1, for which it counts nothing.*ask with n = 1"),
    "an event": (CHUNK, "an event of a stream without counts; give all its events"),
    "an error": ({"error": {"message": "no"}}, "a server's error"),
    "SGLang": ({"text": "x", "meta_info": {"completion_tokens": 3}}, "an answer of SGLang without spec_verify_ct; start it with"),
    "TensorRT-LLM": ([{"iter": 1, "iterLatencyMS": 2.0}], "without specDecodingStats; set speculative_config"),
    "GuideLLM": ({"metadata": {}, "benchmarks": [{}]}, "GuideLLM: times and tokens of requests, nothing of drafts.*--since"),
    "AIPerf": ({"input_config": {}, "request_latency": {"avg": 1.0}}, "AIPerf's summary of a run whose answers counted no drafts"),
    "a bench": ({"duration": 1.0, "total_output_tokens": 4}, "a bench without spec_decode_ fields"),
    "SGLang's bench": ({"duration": 1.0, "accept_length": 2.0}, "averages only; give the server's log"),
    "Ollama": ({"model": "m", "response": "x", "eval_count": 3}, "an answer of Ollama, which counts no drafts"),
    "questions": ({"question_id": 1, "turns": ["x"]}, "questions.*give answers with wall_time"),
    "a config": ({"architectures": ["A"], "model_type": "a"}, "a model's config.json"),
    "nothing": ([], "empty JSON"),
    "other JSON": ({"a": 1}, r"JSON of no form that is read; docs/traces\.md"),
}  # fmt: skip
TEXTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b" \n", "it is empty"),
    "a page": (b"<!DOCTYPE html>\n<html>", "a page"),
    "a table": (b"step,sequence,position\n1,0,2\n", "a table .CSV. of specscope export; give the run as JSONL"),
    "a program": (b"#!/usr/bin/env python\n\nimport os\n", "a Python program"),
    "a program with commas": (b'"""Small, short, other."""\nimport json, os, sys\n', "a Python program"),
    "a profile": (b"# my device\n\nname = 'x'\n[[devices]]\n", "settings .TOML.; a latency profile is given as --profile"),
    "a model": (b"GGUF\x03\0\0\0", "a model .GGUF."),
    "weights": (b"\x40\0\0\0\0\0\0\0{}", "a model's weights"),
    "a database": (b"SQLite format 3\0\x10", "a database"),
    "a stream": (f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n".encode(), "a recorded stream without counts; start vLLM"),
    "vLLM": (b"(APIServer pid=1) INFO 08-06 09:03:44 [loggers.py:2] Engine 000: x\n", "a log of vLLM without SpecDecoding metrics"),
    "old vLLM": (b"INFO 08-06 09:03:44 Speculative metrics: Draft acceptance rate: 0.5\n", "vLLM's old engine"),
    "SGLang": (b"[2026-06-10 15:25:25] Decode batch, #running-req: 1, #token: 3\n", "a log of SGLang without accept len; start it"),
    "llama.cpp": (b"slot print_timing: id 0 | task 0 |\n", "a log of llama.cpp without drafts; start it with a drafter"),
    "counters": (b"# HELP vllm:x y\nvllm:num_requests_running 1.0\n", "/metrics of vLLM without counters of drafts"),
    "averages": (b"sglang:spec_accept_length 2.3\n", "/metrics of SGLang: averages of drafts, no counts"),
    "other counters": (b"# HELP go_threads x\ngo_threads 1\n", "/metrics without counters of drafts"),
    "cut JSON": (b'[{"timings": {"predicted_n": 3,', "JSON that is cut or broken; give the whole file"),
    "other text": (b"hello\n", r"text of no form that is read; docs/traces\.md"),
    "no text": (b"\0\1\2", "no text; docs"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [*((json.dumps(value).encode(), words) for value, words in VALUES.values()), *TEXTS.values()],
    ids=[*VALUES, *(f"text: {name}" for name in TEXTS)],
)
def test_a_file_without_counts_is_named(tmp_path, content, words):
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_traces(file)
    assert str(caught.value).startswith(f"cannot import {file}: it is ")
    assert "\n" not in str(caught.value)


def test_a_folder_is_named(tmp_path):
    with pytest.raises(UsageError, match="it is a folder; give a file"):
        read_traces(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="it is a model's folder"):
        read_traces(tmp_path)


def test_settings_of_a_real_server_are_named():
    with pytest.raises(UsageError, match=r"llama\.cpp's /props"):
        read_traces(SERVERS / "llama-props.json")
