"""Servers on the command line and in the playground's form and service: recorded answers."""

from __future__ import annotations

from typing import Any

import pytest

from specscope.app.jobs.runs import RunRequest
from specscope.app.tabs.requests import SERVER, FormError, make_requests
from specscope.app.tabs.servers import asked
from specscope.traces.database.store import Store
from tests.app.commands import answer, call
from tests.engine.servers.replayed import llama, serving, vllm

MESSAGE = [{"role": "user", "content": "hi"}]
FORM: dict[str, Any] = {
    "models": SERVER,
    "servers": "127.0.0.1:1",
    "server_key": "",
    "probabilities": False,
    "remote": False,
    "together": "",
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 0,
    "max_new_tokens": 24,
    "stop": "",
}


def test_run_prints_and_stores_what_the_server_told(capsys, db):
    with llama() as server:
        found = answer(
            capsys, "run", "--server", server.url, "--prompt", "Count.", "--seed", "7", *db, "--json"
        )
    assert found["server"]["kind"] == "llama.cpp"
    assert (found["metrics"]["drafted"], found["metrics"]["accepted"], len(found["token_ids"])) == (
        20,
        17,
        24,
    )
    assert (found["runtime"], found["profile"], found["prompt_ids"]) == ("llama.cpp", None, [1, 2, 3])
    with Store(db[1]) as store:
        trace = store.load(found["run_id"])
    assert (trace.status, trace.text, len(trace.rounds)) == ("done", found["text"], 6)
    assert trace.header.environment["server"]["notes"]


def test_prompts_of_a_file_are_runs_or_requests_at_once(capsys, db, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    words = ["run", "--prompt-file", str(prompts), "--chat", *db, "--json"]
    with llama() as server:
        alone = answer(capsys, *words, "--server", server.url)
        two = answer(capsys, *words, "--server", server.url, "--at-once", "2")
    assert len(alone["sequences"]) == 3
    assert [len(run.get("sequences", [run])) for run in two["sequences"]] == [2, 1]


def test_compare_has_a_baseline_that_drafts_nothing(capsys, db):
    with llama("draft-completion-t0") as drafts, llama("ngram-completion-t0", pause=0.02) as plain:
        words = ["compare", "--server", drafts.url, "--server", plain.url, "--prompt", "Count.", *db]
        found = answer(capsys, *words, "--json", "--repeat", "2")["servers"]
        code, out, _ = call(capsys, *words)
    assert [row["acceptance_rate"] for row in found] == [1.0, None]
    assert found[1]["speedup"] == 1.0
    assert 1 < found[0]["speedup_low"] <= found[0]["speedup"] <= found[0]["speedup_high"]
    assert (found[0]["speedup_from"], found[1]["speedup_low"]) == ("the range of 2 passes", None)
    assert "× by 6% for a single pass" in out
    assert found[0]["equal_to_first"]
    assert found[1]["equal_to_first"]
    assert code == 0
    assert "side by side: specscope report" in out


REFUSED = {
    "run --server http://10.0.0.1:1 --prompt a": "Confirm that with --remote",
    "run --server ftp://a --prompt a": "the server's address is 'ftp://a'",
    "run --server URL --prompt a --pair bundled": "--pair is of SpecScope's own engine",
    "run --server URL --prompt a --set gamma=2": "--set is of SpecScope's own engine",
    "run --server URL --server URL --prompt a": "to compare servers, use specscope compare",
    "run --server URL --prompt a --at-once 65": "--at-once is 65; it must be at least 1 and at most 64",
    "run --method pearl --prompt a --chat": "--chat is for a run on a server",
    "run --prompt a": "one of the arguments --method --server is required",
    "run --method pearl --server URL --prompt a": "not allowed with argument",
    "compare --server URL --prompt a --repeat 0": "--repeat is 0",
    "compare --server URL --prompt a --fail-below pearl=1": "compare methods",
}


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_use_is_one_line_and_exit_code_2(capsys, db, line):
    with llama() as server:
        code, out, err = call(capsys, *line.replace("URL", server.url).split(), *db)
    assert (code, out) == (2, "")
    assert REFUSED[line] in err.strip().split("\n")[-1]


def test_a_server_that_fails_is_exit_code_1_and_what_came_is_stored(capsys, db):
    with llama() as server:
        server.events = [*server.events[:6], b'data: {"error": {"message": "no slot"}}']
        code, _, err = call(capsys, "run", "--server", server.url, "--prompt", "a", *db)
    assert code == 1
    assert "no slot" in err
    with Store(db[1]) as store:
        (row,), _ = store.runs()
    assert row.status == "failed"
    assert call(capsys, "run", "--server", "127.0.0.1:9", "--prompt", "a", *db)[0] == 1


def test_the_form_has_one_request_for_each_server():
    requests = make_requests(
        {**FORM, "servers": "127.0.0.1:1\nlocalhost:2", "together": "x\n\ny"}, MESSAGE, "g"
    )
    assert [request.server for request in requests] == ["http://127.0.0.1:1", "http://localhost:2"]
    assert [len(request.further) for request in requests] == [2, 2]
    assert requests[0].models == ()
    assert requests[0].title == "http://127.0.0.1:1"


BLAMED = {
    "servers": {"servers": " "},
    "servers ": {"servers": "\n".join(f"127.0.0.1:{i}" for i in range(1, 6))},
    "servers  ": {"servers": "nonsense://x"},
    "together": {"together": "\n\n".join("abc" for _ in range(64))},
    "max-new-tokens": {"max_new_tokens": 0},
    "server-key": {"server_key": "a\nb"},
}


@pytest.mark.parametrize("where", BLAMED)
def test_a_wrong_value_leads_to_its_control(where):
    with pytest.raises(FormError) as failure:
        make_requests({**FORM, **BLAMED[where]}, MESSAGE, "g")
    assert failure.value.where == where.strip()


def test_the_page_says_what_a_server_will_show():
    with llama() as first, vllm() as second:
        shown = asked(f"{first.url}\n{second.url}\n127.0.0.1:9\nhttp://10.1.1.1:1", "", False)
    assert [word in shown for word in ("llama.cpp", "vLLM 0.32.0", "does not answer", "another machine")] == [
        True
    ] * 4
    with serving({"/v1/models": {"data": [{"id": "<b>x</b>"}]}}, []) as server:
        assert "&lt;b&gt;" in asked(server.url, "", False)
    assert "Type the address" in asked(" ", "", False)


def test_a_key_of_the_form_is_sent_and_stored_nowhere(service):
    with llama() as server:
        assert "llama.cpp" in asked(server.url, "typed-secret", False)
        values = {**FORM, "servers": server.url, "server_key": "typed-secret", "probabilities": True}
        run = service.start(*make_requests(values, MESSAGE, "g"))
        assert run.wait(20)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer typed-secret"}
    assert server.requests[-1][1]["n_probs"] == 1
    stored = service.store.load(run.run_id)
    assert "typed-secret" not in repr(stored) + repr(run.request)


def test_the_service_shows_rows_live_and_stores_the_whole(service):
    with vllm() as server:
        run = service.start(RunRequest("", MESSAGE, runtime=SERVER, server=server.url))
        assert run.wait(20)
    assert run.state == "done", run.error
    assert [(r.drafted, r.accepted) for r in service.trace(run.ticket).rounds][:2] == [(4, 2), (4, 3)]
    assert service.store.load(run.run_id).rounds == service.trace(run.ticket).rounds


def test_a_server_that_is_not_there_is_blamed_on_its_control(service):
    run = service.start(RunRequest("", MESSAGE, runtime=SERVER, server="http://127.0.0.1:9"))
    assert run.wait(20)
    assert (run.state, run.refused) == ("failed", True)
