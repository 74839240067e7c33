"""Many runs through the page's own requests, from several clients at once.

A server of its own gets what browsers send when Run is pressed. Every run must end as done in the
database with all of its rows, and the memory of the server and its workers must not grow after
the warm-up. `python -m tests.bench.soak [--json]`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from specscope.app.bench.figures import Bar, Measurement, Note
from specscope.engine.errors import SpecScopeError
from specscope.traces.database.store import Store
from tests.bench import script

ROOT = Path(__file__).resolve().parents[2]
RUNS, CLIENTS = 200, 8
NEW_TOKENS = 16
"""Most tokens of an answer."""
WARM_UP = 0.25
"""Share of the runs after which memory is measured for the first time."""
PATIENCE_S = 300.0
"""Seconds without an answer that a client waits for."""
PROMPTS = ("Tell me a story.", "Who are you?", "Write one sentence about the sea.")


BARS = {
    "soak_errors": Bar(at_most=0),
    "soak_lost": Bar(at_most=0),
    "soak_memory_growth": Bar(at_most=1.1),
    "server_start_s": Bar(at_most=5),
}


@contextmanager
def serving(database: Path) -> Generator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "specscope.app.main", "play", "--pair", "bundled"]
    command += ["--port", "0", "--db", str(database)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline().strip()
            if not line.startswith("SpecScope: http"):
                raise SpecScopeError(f"the server did not start; its first line is {line!r}")
            yield line.removeprefix("SpecScope: "), psutil.Process(child.pid)
        finally:
            child.terminate()


@dataclass(frozen=True, slots=True)
class Button:
    """The page's button Run: what a browser sends when it is pressed."""

    handler: int
    """Number of its handler."""
    values: tuple[Any, ...]
    """Values of all inputs when the page opens."""
    prompt: int
    """Index of the prompt in `values`."""
    length: int
    """Index of the largest number of new tokens."""

    @classmethod
    def of(cls, page: Mapping[str, Any]) -> Button:
        components = {c["id"]: c for c in page["components"]}
        names = {c["props"].get("elem_id"): number for number, c in components.items()}
        (handler,) = (d for d in page["dependencies"] if [names["run"], "click"] in d["targets"])
        inputs = handler["inputs"]
        values = tuple(components[number]["props"].get("value") for number in inputs)
        places = (inputs.index(names[name]) for name in ("prompt", "max-new-tokens"))
        return cls(handler["id"], values, *places)

    def pressed(self, prompt: str) -> list[Any]:
        changed = {self.prompt: prompt, self.length: NEW_TOKENS}
        return [changed.get(i, value) for i, value in enumerate(self.values)]


def measure(runs: int, clients: int, note: Note) -> dict[str, Measurement]:
    """Start at least `runs` runs with `clients` clients at once.

    A press of the button starts a run for each of the page's usual methods.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "traces.db"
        began = time.perf_counter()
        with serving(database) as (address, server):
            started = time.perf_counter() - began
            button = Button.of(_page(address))
            per_press = _press(address, button, PROMPTS[0], database)
            note(f"{clients} clients")
            warm: list[float] = []

            def pressed(done: int) -> None:
                note("")
                if not warm and done >= WARM_UP * presses:
                    warm.append(_mib(server))

            presses = max(1, -(-(runs - per_press) // per_press))
            failed = _presses(address, button, presses, clients, pressed)
            memory = _mib(server)
        facts = _stored(database, per_press * (1 + presses))
    total = Measurement((float(facts["expected"]),), "runs", detail={"clients": clients, **facts})
    messages = {"messages": failed[:5]}
    sizes = {"after_warm_up_mib": warm, "end_mib": memory}
    growth = memory / (warm or [memory])[0]
    return {
        "soak_runs": total,
        "soak_errors": Measurement((float(len(failed)),), "failed requests", detail=messages),
        "soak_lost": Measurement(
            (float(facts["lost"]),), "runs that are not stored as done with all their rows"
        ),
        "soak_memory_growth": Measurement((growth,), "memory at the end / after the warm-up", detail=sizes),
        "server_start_s": Measurement((started,), "seconds until the address is printed"),
    }


def _page(address: str) -> Mapping[str, Any]:
    return httpx.get(f"{address}/config", timeout=PATIENCE_S).raise_for_status().json()


def _press(address: str, button: Button, prompt: str, database: Path) -> int:
    """Press the button once, which loads the models; return the number of runs that it starts."""
    if problem := _ask(address, button, prompt):
        raise SpecScopeError(f"the first run failed: {problem}")
    with Store(database, readonly=True) as store:
        return store.runs()[1]


def _presses(
    address: str, button: Button, presses: int, clients: int, pressed: Callable[[int], None]
) -> list[str]:
    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(_ask, address, button, PROMPTS[i % len(PROMPTS)]) for i in range(presses)]
        failed = list[str]()
        for done, answer in enumerate(as_completed(asked), 1):
            failed += filter(None, [answer.result()])
            pressed(done)
    return failed


def _ask(address: str, button: Button, prompt: str) -> str:
    session = uuid.uuid4().hex[:10]
    body = {"data": button.pressed(prompt), "fn_index": button.handler, "session_hash": session}
    headers = {"Origin": address}
    try:
        with httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_S) as client:
            client.post("/gradio_api/queue/join", json=body).raise_for_status()
            with client.stream("GET", f"/gradio_api/queue/data?session_hash={session}") as lines:
                for line in lines.raise_for_status().iter_lines():
                    message = json.loads(line[5:]) if line.startswith("data:") else {}
                    if message.get("msg") == "process_completed":
                        return "" if message["success"] else str(message["output"])[:200]
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    return "the answer ended early"


def _mib(server: psutil.Process) -> float:
    """Return the memory that only the server and its workers use."""
    processes = [server, *server.children(recursive=True)]
    return sum(process.memory_full_info().uss for process in processes) / 2**20


def _stored(database: Path, expected: int) -> dict[str, int]:
    with Store(database, readonly=True) as store:
        rows = [row for offset in range(0, expected, 100) for row in store.runs(offset=offset, limit=100)[0]]
        whole = sum(store.load(row.header.run_id).status == "done" for row in rows)
    return {"expected": expected, "stored": len(rows), "lost": expected - whole}


if __name__ == "__main__":
    script.main(script.options(__doc__), lambda _, note: (measure(RUNS, CLIENTS, note), {}), BARS)
