"""Start and stop a real vLLM that serves the bundled pair, written without int8."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
START_S = 600


@contextmanager
def served(home: Path, folder: Path, *words: str, python: Path | None = None, **more: str) -> Iterator[str]:
    """Serve from the environment `home` in a folder with the pair and the log; give the address.

    Args:
        home: As tests/engines/setup.sh makes it.
        folder: The working directory.
        words: More of the command line.
        python: An interpreter that has more packages than that of `home`.
        more: More variables; `drafts` are settings of the drafts, as JSON.
    """
    if not (folder / "pair").exists():
        subprocess.run([sys.executable, str(HERE / "plain_pair.py"), str(folder / "pair")], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    drafts = {"method": "draft_model", "model": str(folder / "pair" / "drafter"), "num_speculative_tokens": 4}
    drafts |= json.loads(more.pop("drafts", "{}"))
    start = [str(python or home / "bin" / "python"), "-m", "vllm.entrypoints.cli.main", "serve"]
    start += [str(folder / "pair" / "target"), "--host", "127.0.0.1", "--port", str(port)]
    start += ["--max-model-len", "512", "--dtype", "float32", "--enforce-eager"]
    start += ["--speculative-config", json.dumps(drafts), "--per-request-spec-decode-metrics", "detailed"]
    more |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "KMP_BLOCKTIME": "0",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(home / "lib" / "libiomp5.so"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | more
    with (folder / "server.log").open("a") as log:
        process = subprocess.Popen([*start, *words], stdout=log, stderr=log, env=environment, cwd=folder)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait(60)
