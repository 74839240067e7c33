"""Runs on servers: recorded answers of llama.cpp and vLLM, addresses, errors, cancelling."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.servers.address import KEY, Address, ServerError
from specscope.engine.servers.checks import ACCEPTED, LENGTHS
from specscope.engine.servers.counters import read_counters
from specscope.engine.servers.kinds import find
from specscope.engine.servers.recording import trace_of
from specscope.engine.servers.steps import Answered, LlamaReader, VllmReader
from specscope.engine.trace.events import Commit, Device, Header
from specscope.engine.trace.ranges import LONGEST_DRAFT
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.checks import check
from specscope.traces.facts.imported import origin, with_unknown
from specscope.traces.facts.metrics import measure
from tests.engine.servers.replayed import RECORDED, llama, serving, stream, vllm

PROMPT = "List the numbers."
SERVER_DEVICE = Device("server:0", "drafter+target", "server", "server")
STREAMS: dict[str, tuple[int, int, int, str]] = {
    "llama-draft-chat-t0": (9, 8, 8, "stop"),
    "llama-draft-completion-t0": (20, 16, 16, "eos"),
    "llama-draft-completion-t0.8": (24, 20, 17, "length"),
    "llama-ngram-completion-t0": (20, 0, 0, "eos"),
    "vllm-pair-chat-t0": (40, 36, 30, "length"),
    "vllm-pair-chat-t0.8": (40, 136, 5, "length"),
    "vllm-pair-completion-t0": (40, 60, 28, "length"),
    "vllm-smol-completion-t0.8": (24, 34, 4, "length"),
}
"""Recorded stream -> tokens, and the server's own totals: drafted, accepted, why it ended."""


def events(name: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) for line in stream(name) if line.startswith(b"data: {")]


def read(name: str):
    reader = LlamaReader() if name.startswith("llama") else VllmReader(4)
    steps = [step for i, event in enumerate(events(name)) for step in reader.add(i, event)]
    return reader, reader.final([*steps, *reader.end()])


@pytest.mark.parametrize("name", STREAMS)
def test_the_steps_of_a_stream_have_the_servers_totals(name):
    tokens, drafted, accepted, reason = STREAMS[name]
    reader, steps = read(name)
    assert sum(len(step.tokens) for step in steps) == tokens
    assert (reader.told.drafted or 0, reader.told.accepted or 0) == (drafted, accepted)
    assert sum(step.drafted or 0 for step in steps) == drafted
    assert sum(step.accepted for step in steps) == accepted
    assert reader.told.reason == reason
    assert all(len(step.tokens) <= step.accepted + 1 for step in steps)
    assert reader.told.disordered == ("smol" in name)  # its arrays leave out steps without a draft


def test_merged_events_of_vllm_are_parted_by_its_arrays():
    name, reader = "vllm-pair-chat-t0", VllmReader(4)
    rows = events(name)
    merged = [row for row in rows if row["choices"] and row["choices"][0].get("token_ids")]
    first, second = merged[2]["choices"][0], merged[3]["choices"][0]
    second["token_ids"] = first["token_ids"] + second["token_ids"]
    second["delta"]["content"] = first["delta"]["content"] + second["delta"]["content"]
    second["logprobs"] = None
    rows.remove(merged[2])
    steps = [step for i, event in enumerate(rows) for step in reader.add(i, event)]
    assert [(s.drafted, s.accepted) for s in reader.final(steps)] == [
        (s.drafted, s.accepted) for s in read(name)[1]
    ]


def test_a_run_on_llama_cpp_is_a_trace_with_its_counts():
    heard: list[Any] = []
    with llama() as server:
        trace = specscope.connect(server.url).run(
            PROMPT, sampling=Sampling(0.8, seed=7), limits=Limits(24), listener=heard.append
        )
    check(trace)
    path, body = server.requests[-1]
    assert path == "/completion"
    assert (body["prompt"], body["n_predict"], body["temperature"], body["seed"]) == (PROMPT, 24, 0.8, 7)
    figures = measure(trace)
    assert (figures.tokens, figures.drafted, figures.accepted, figures.target_forwards) == (24, 20, 17, 6)
    assert (figures.c, figures.occupancy, figures.waiting) == (None, {}, {})  # a step is not divided
    assert {span.kind for span in trace.spans} == {"prefill", "step"}
    assert trace.header.clock == "measured · llama.cpp"
    assert trace.header.prompt_ids == ((1, 2, 3),)
    assert "work inside each step" in origin(with_unknown(trace).header).unknown
    assert trace.header.environment["server"]["notes"] == [
        "The server's totals agree: 20 drafted, 17 accepted."
    ]
    assert isinstance(heard[0], Header)
    assert "".join(row.text for row in heard if isinstance(row, Commit)) == trace.text


def test_a_server_is_told_the_flag_that_it_lacks_and_no_other():
    counters = b"llamacpp:spec_decode_num_drafts_total 1\nllamacpp:spec_decode_num_draft_tokens_total 4\n"
    counters += b"llamacpp:spec_decode_num_accepted_tokens_total 2\n"
    with llama() as server:
        said = [find(Address.of(server.url)).line]
        server.answers["/metrics"] = counters
        said.append(find(Address.of(server.url)).line)
    assert ["With --metrics, the totals" in line for line in said] == [True, False]
    assert ["Its totals are checked, too." in line for line in said] == [False, True]


def test_a_chat_is_sent_in_the_models_template_so_that_ids_are_known():
    with llama() as server:
        trace = specscope.connect(server.url).run([{"role": "user", "content": "hi"}])
    assert [path for path, _ in server.requests] == ["/apply-template", "/tokenize", "/completion"]
    assert server.requests[-1][1]["prompt"] == "<user>hi<assistant>"
    assert -1 not in trace.token_ids()


def test_a_run_on_vllm_takes_draft_lengths_from_the_last_event():
    heard: list[Any] = []
    with vllm() as server:
        found = specscope.connect(server.url)
        assert (found.found.kind.name, found.found.version, found.found.longest) == ("vLLM", "0.32.0", 4)
        trace = found.run([{"role": "user", "content": "hi"}], listener=heard.append)
    check(trace)
    assert server.requests[-1][0] == "/v1/chat/completions"
    assert [(r.drafted, r.accepted) for r in trace.rounds][:3] == [(4, 2), (4, 3), (4, 4)]
    assert trace.header.prompt_ids[0][:3] == (1, 3, 1518)
    assert trace.header.environment["server"]["unknown"] == []
    first = trace.decisions[0]
    assert first.outcome == "accepted"
    assert first.p == pytest.approx(0.6463, abs=1e-3)  # by its log-probability


CHANCES: dict[str, tuple[float, float, dict[str, Any], float | None]] = {
    "scaled, sampled": (0.8, 1.0, {"prob": 0.07}, 0.07),
    "scaled, top-p": (0.8, 0.5, {"prob": 0.07}, 0.07),
    "scaled, greedy": (0.0, 1.0, {"prob": 1.0}, None),
    "unscaled, greedy": (0.0, 1.0, {"logprob": -1.0}, 0.36788),
    "unscaled, sampled": (0.8, 1.0, {"logprob": -1.0}, None),
    "nonsense": (0.8, 1.0, {"prob": "1"}, None),
    "too large": (0.8, 1.0, {"prob": 2}, None),
}


@pytest.mark.parametrize("name", CHANCES)
def test_p_of_llama_cpp_is_that_of_the_distribution_in_use(name):
    temperature, top_p, row, p = CHANCES[name]
    events = [json.loads(line.removeprefix(b"data: ")) for line in stream("llama-ngram-completion-t0")]
    lines = [f"data: {json.dumps(e | {'completion_probabilities': [row]})}".encode() for e in events[:6]]
    with llama("ngram-completion-t0") as server:
        server.events = lines
        drawn = Sampling(temperature, top_p=top_p)
        trace = specscope.connect(server.url).run(PROMPT, sampling=drawn, probabilities=True)
    check(trace)
    body = server.requests[-1][1]
    assert (body["n_probs"], body["post_sampling_probs"]) == (1, temperature > 0)
    assert trace.decisions[0].p == (None if p is None else pytest.approx(p, abs=1e-5))


def test_draft_lengths_that_vllm_does_not_tell_are_unknown():
    bare = [line for line in stream("vllm-pair-chat-t0") if b'"metrics"' not in line]
    with vllm() as server:
        server.events = bare
        trace = with_unknown(specscope.connect(server.url).run([{"role": "user", "content": "hi"}]))
    figures = measure(trace)
    assert (figures.tokens, figures.drafted, figures.acceptance_rate) == (40, None, None)


@pytest.mark.parametrize(("told", "tokens"), [(5, 5), (7, None), (None, None)])
def test_another_server_has_texts_and_times_only(told, tokens):
    """An event may have several tokens: they are counted only if the server's number agrees."""
    words = [f'data: {{"choices": [{{"text": " word{i}"}}]}}'.encode() for i in range(5)]
    if told is not None:
        words.append(f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': told}})}".encode())
    words.append(b"data: [DONE]")
    with serving({"/v1/models": {"data": [{"id": "m"}]}}, words) as server:
        trace = with_unknown(specscope.connect(server.url).run(PROMPT))
    figures = measure(trace)
    assert (trace.text, trace.status) == (" word0 word1 word2 word3 word4", "done")
    assert (figures.tokens, figures.drafted) == (tokens, None)
    assert bool(figures.tokens_per_second) == (tokens is not None)


def test_several_prompts_are_requests_at_once_with_seeds_of_their_own():
    with llama(pause=0.01) as server:
        trace = specscope.connect(server.url).run("a", "b", sampling=Sampling(seed=5))
    check(trace)
    seeds = {body["prompt"]: body["seed"] for path, body in server.requests if path == "/completion"}
    assert seeds == {"a": 5, "b": 6}
    assert [len(ids) for ids in trace.outputs()] == [24, 24]
    assert [device.label for device in trace.header.devices] == [
        "llama.cpp · request 1",
        "llama.cpp · request 2",
    ]


def test_a_cancelled_run_keeps_what_came():
    stop = threading.Event()

    def listen(row: object) -> None:
        if isinstance(row, Commit):
            stop.set()

    with llama(pause=0.2) as server:
        trace = specscope.connect(server.url).run(PROMPT, listener=listen, cancel=stop)
    check(trace)
    assert trace.status == "cancelled"
    assert 0 < len(trace.commits) < 24


ENDS = {
    b'data: {"error": {"message": "slot is busy"}}': "ended with an error: 'slot is busy'",
    b"error: no memory": "ended with an error: 'no memory'",
    b"data: {nonsense": "which is no JSON",
    b"data: [1]": "expected an object",
    b"data: " + b"x" * 2**20: "sent more than 1048576 bytes",
    b'data: {"object": "error", "message": "no memory"}': "ended with an error: 'no memory'",
    b'data: {"error": "no key the-key"}': "ended with an error: 'no key ***'",
    b": ping": "ended its answer before the end",
}


@pytest.mark.parametrize("event", ENDS, ids=range(len(ENDS)))
def test_a_stream_that_ends_badly_is_a_failed_run_with_what_came(event):
    with llama() as server:
        server.events = [*server.events[:6], event]
        trace = specscope.connect(server.url, key="the-key").run(PROMPT)
    check(trace)
    assert trace.status == "failed"
    assert trace.commits
    assert server.url in trace.footer.error
    assert ENDS[event] in trace.footer.error


EVENTS: dict[str, tuple[bytes, str]] = {
    "no data": (b"data:\n\n: ping\n\nevent: x\ndata: ", ""),
    "several lines": (b'data: {"choices":\ndata: [{"text": "two"}]}', "two"),
    "no text": (b'data: {"choices": [{"text": 5}, {"delta": {"content": ["x"]}}]}', ""),
    "no choices": (b'data: {"choices": null, "usage": null}', ""),
    "no UTF-8": (b'data: {"choices": [{"text": "a\xff"}]}', "a\ufffd"),
    "half a character": (b'data: {"choices": [{"text": "a\\ud83d"}]}', "a?"),
    "thoughts": (b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}', "hm"),
    "thoughts of vLLM": (b'data: {"choices": [{"delta": {"reasoning": "hm", "content": null}}]}', "hm"),
    "another choice": (b'data: {"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}', "a"),
}


@pytest.mark.parametrize(
    "end", [b"data: [DONE]", b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}']
)
@pytest.mark.parametrize("name", EVENTS)
def test_an_odd_event_changes_nothing_but_its_own_text(name, end):
    event, text = EVENTS[name]
    with serving(
        {"/v1/models": {"data": [{"id": "m"}]}}, [b'data: {"choices": [{"text": "<b>"}]}', event, end]
    ) as s:
        trace = specscope.connect(s.url).run(PROMPT)
    check(trace)
    assert (trace.status, trace.text, trace.footer.error) == ("done", f"<b>{text}", "")


def test_an_old_llama_cpp_without_ids_and_counts_has_its_text():
    with llama() as server:
        server.events = [
            b'data: {"content": "a"}',
            b'data: {"content": "b"}',
            b'data: {"content": "", "stop": true}',
        ]
        trace = specscope.connect(server.url).run(PROMPT)
    assert (trace.text, trace.status) == ("ab", "done")
    assert trace.header.environment["server"]["unknown"][:2] == [ACCEPTED, LENGTHS]


MERGED = [([1], "a"), ([2, 3], "bc"), ([4], "d")]
METRICS: dict[str, tuple[bytes | None, list[tuple[int, int]], list[str], str]] = {
    "no drafts": (b"vllm:generation_tokens_total 5\n", [(0, 0)] * 3, [], ""),
    "drafts": (
        (RECORDED / "vllm-metrics.txt").read_bytes(),
        [(4, 1), (4, 0)],
        [ACCEPTED, LENGTHS],
        "The server's counters say 0 drafted, 0 accepted.",
    ),
    "no counters": (None, [(1, 1), (0, 0)], [ACCEPTED, LENGTHS], "vLLM sends them with"),
}


@pytest.mark.parametrize("name", METRICS)
def test_tokens_that_vllm_merged_are_accepted_drafts_only_if_it_drafts(name):
    """And draft lengths that it does not tell are compared with no counter."""
    metrics, rounds, unknown, note = METRICS[name]
    rows = [{"choices": [{"token_ids": ids, "text": text}]} for ids, text in MERGED]
    sent = [f"data: {json.dumps(row)}".encode() for row in [*rows, {"choices": [], "metrics": None}]]
    answers = {"/v1/models": {"data": [{"id": "pair", "owned_by": "vllm"}]}, "/metrics": metrics}
    with serving(answers, [*sent, b"data: [DONE]"]) as server:
        trace = specscope.connect(server.url).run(PROMPT)
    check(trace)
    assert (trace.text, trace.status) == ("abcd", "done")
    assert [(r.drafted, r.accepted) for r in trace.rounds] == rounds
    told = trace.header.environment["server"]
    assert told["unknown"] == unknown
    assert note in " ".join(told["notes"])
    assert bool(told["notes"]) == bool(note)


@pytest.mark.parametrize("serve", [llama, vllm, None])
def test_a_request_draws_as_the_run_says_whatever_the_servers_defaults_are(serve):
    drawn, model = Sampling(0.8, top_k=5), f"/models/{'x' * 200}"
    with serve() if serve else serving({"/v1/models": {"data": [{"id": model}]}}, []) as server:
        specscope.connect(server.url).run(PROMPT, sampling=drawn)
        body = server.requests[-1][1]
    assert (body["temperature"], body["top_k"]) == (0.8, 5)
    if serve is None:
        assert body["model"] == model
    else:
        assert body["repeat_penalty" if serve is llama else "repetition_penalty"] == 1
        assert body["min_p"] == body["presence_penalty"] == body["frequency_penalty"] == 0


def test_a_server_that_sends_byte_after_byte_is_left_before_the_run_too(monkeypatch):
    monkeypatch.setattr("specscope.engine.servers.address.MOST_ASK_S", 0.5)
    with llama() as server:
        found = specscope.connect(server.url)
        server.answers["/tokenize"], server.drip = b" " * 1000, 0.01
        with pytest.raises(ServerError, match=r"sent no whole answer within 0\.5 s"):
            found.run(PROMPT)


ODD: list[Any] = [None, True, -1, 1e400, "x", [], {}, [None], {"a": 1}, 2**63, float("nan"), "\ud800"]


@pytest.mark.parametrize("name", ["llama-draft-completion-t0.8", "vllm-pair-chat-t0"])
def test_any_value_in_an_event_is_read_without_an_error(name):
    """A server is no friend: each entry of each event is replaced by each odd value in turn."""

    def replaced(value: Any, odd: Any):
        if isinstance(value, dict):
            for key in value:
                yield {**value, key: odd}
                yield from ({**value, key: inner} for inner in replaced(value[key], odd))
        elif isinstance(value, list) and value:
            yield from ([inner, *value[1:]] for inner in replaced(value[0], odd))
        else:
            yield odd

    rows = events(name)
    chosen = [rows[0], rows[2], rows[-1]]
    for odd in ODD:
        for row in chosen:
            for changed in replaced(row, odd):
                reader = LlamaReader() if name.startswith("llama") else VllmReader(4)
                steps = [s for i, e in enumerate([rows[1], changed, rows[2]]) for s in reader.add(i, e)]
                reader.final([*steps, *reader.end()])


HOSTILE = {
    "a counter": (LlamaReader, {"tokens": [1], "content": "a", "timings": {"draft_n": 2**52, "draft_n_accepted": 2**52}}),
    "many ids": (VllmReader, {"choices": [{"token_ids": [1] * 5000, "text": "a"}]}),
    "the longest draft": (VllmReader, {"choices": [], "metrics": {"speculative_decoding": {"num_spec_tokens": 2**52}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_number_of_a_server_makes_a_draft_longer_than_any_is(name):
    make, event = HOSTILE[name]
    reader = make()
    plain = {"tokens": [7], "content": "b", "timings": {}, "choices": [{"token_ids": [7, 8], "text": "b"}]}
    steps = [step for row in (plain, event, plain) for step in reader.add(0, row)]
    answer = Answered(0, reader.final([*steps, *reader.end()]), reader.told)
    header = Header("run", "", "", "", {}, ("",), ((),), {}, {}, "", "", (SERVER_DEVICE,), "", "")
    trace = trace_of(header, [answer], "")
    check(trace)
    assert max((r.drafted for r in trace.rounds), default=0) <= LONGEST_DRAFT


def test_an_answer_of_too_many_drafts_fails_and_keeps_what_came(monkeypatch):
    monkeypatch.setattr("specscope.engine.servers.recording.MOST_TOKENS", 20)
    with llama() as server:
        trace = specscope.connect(server.url).run(PROMPT)
    check(trace)
    assert trace.status == "failed"
    assert "more than 20 tokens and drafts" in trace.footer.error
    assert trace.commits


ADDRESSES = {
    "http://127.0.0.1:8080": "http://127.0.0.1:8080",
    "127.0.0.1:8080/v1/": "http://127.0.0.1:8080",
    "https://[::1]/proxy/v1": "https://[::1]:443/proxy",
    "localhost": "http://localhost:80",
    "http://a:0//": "http://a:0",
    "a:1/v1/chat/completions": "http://a:1",
    "a:1/x/v1/models/": "http://a:1/x",
    "a:1/v1/x": "http://a:1/v1/x",
}
NO_ADDRESSES = [
    "",
    "  ",
    "ftp://a",
    "http://",
    "http://a:99999",
    "http://u:secret@a",
    "http://a/?x=1",
    "http://a b",
    "http://a\nb",
    "http://[::1",
    "http://a..b",
    f"http://{'a' * 64}.b",
    "http://a/ü",
    "http://u:secret@ü",
    "@a",
]


def test_addresses():
    assert {text: Address.of(text).url for text in ADDRESSES} == ADDRESSES
    for text in NO_ADDRESSES:
        with pytest.raises(UsageError, match="the server's address") as error:
            Address.of(text)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("host", ["10.0.0.1", "example.com", "127.0.0.1.example.com", "0.0.0.0"])
def test_another_machine_is_asked_only_after_a_confirmation(host):
    with pytest.raises(UsageError, match=r"another machine.*remote=True"):
        specscope.connect(f"http://{host}:1")


def test_a_key_is_sent_and_stored_nowhere(monkeypatch):
    monkeypatch.setenv(KEY, "secret-of-the-server")
    with llama() as server:
        trace = specscope.connect(server.url).run(PROMPT)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-of-the-server"}
    assert "secret-of-the-server" not in repr(trace.header) + repr(Address.of("a", "secret-of-the-server"))


def test_servers_that_do_not_answer_or_are_none_are_named():
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:9 does not answer"):
        specscope.connect("127.0.0.1:9")
    with serving({}, []) as server, pytest.raises(ServerError, match="neither /v1/models nor /props"):
        specscope.connect(server.url)


def test_counters_of_both_engines_are_read_and_subtracted():
    llamas, vllms = (
        read_counters((RECORDED / f"{name}-metrics.txt").read_text()) for name in ("llama", "vllm")
    )
    assert (llamas.drafts, llamas.drafted, llamas.accepted, llamas.places) == (28, 104, 98, (28, 24, 24, 22))
    assert (vllms.drafts, vllms.drafted, vllms.accepted) == (186, 744, 135)
    assert vllms.since(llamas).places == tuple(
        b - a for a, b in zip(llamas.places, vllms.places, strict=True)
    )
    assert llamas.since(vllms) is None  # the server was started anew
    assert read_counters("# nothing\n") is None


def test_no_torch_is_needed():
    with llama() as server:
        code = f"import sys, specscope; t = specscope.connect({server.url!r}).run('a'); print(len(t.commits), 'torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["24", "False"]
