"""Ray: two nodes on this machine write the rows of worker processes; a death has a name."""

import os
import re
import signal
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import psutil
import pytest

import specscope
from specscope.app.jobs.runs import RunRequest
from specscope.app.jobs.service import Service
from specscope.app.main import main
from specscope.app.ray import Ray
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.local_devices import devices_of
from specscope.engine.cluster.ray_cluster import Bundle, RayCluster
from specscope.engine.errors import ModelError, SpecScopeError, WorkerDied
from specscope.engine.runtimes.process import Setup
from specscope.engine.runtimes.ray.worker import RayWorker, References
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker.jobs import LoadModel
from specscope.traces.database.store import Store
from specscope.traces.view.document import view_model
from tests.engine.runtimes.processes import PROMPT, at_span
from tests.engine.runtimes.ray_nodes import Opened, assert_ended, await_spans, kill_node, two_nodes
from tests.engine.runtimes.test_contract import WARM, facts

SHORT = Limits(12)
TARGET = Pair.find("bundled").target_path
CONFIGS = {
    "speculative": {},
    "pearl": {"gamma": 3},
    "ssd": {"gamma": 3},
    "pearl in a pipeline": {"gamma": 3, "placement": "pipeline"},
    "ems": {"base": "speculative", "width": 2},
    "dsi": {},
}
"""Settings by name; its first word is the method. The pipeline also moves KV rows and states."""


@pytest.fixture(scope="module")
def nodes():
    if find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'specscope[ray]'")
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def on_ray(nodes):
    with specscope.open(runtime="ray", address=nodes.address) as opened:
        yield opened


@pytest.mark.slow
def test_two_sessions_never_have_the_same_device(nodes, monkeypatch):
    """The second one cannot reserve what the first has; what the first frees, it can."""
    first, second = (RayCluster(nodes.address, 1) for _ in range(2))
    one, two = (Bundle(node, "CPU", (f"cpu:{i}",)) for i, node in enumerate(first.nodes()))
    first.reserve([one, two])
    assert [node.free.get("CPU", 0) for node in second.nodes()] == [0, 0]
    message = r"did not reserve 1 CPU on node 2 \(.*\) in .* s; free now: 0 of 1 CPU on node 2 \("
    with monkeypatch.context() as patch:
        patch.setattr("specscope.engine.cluster.ray_cluster.RESERVE_S", 0.5)
        with pytest.raises(SpecScopeError, match=message):
            second.reserve([two])
    first.close()
    assert [node.free.get("CPU", 0) for node in second.nodes()] == [1, 1], "free when close() returns"
    with monkeypatch.context() as patch:
        patch.setattr("specscope.engine.cluster.ray_cluster.reachable", lambda *_: False)
        with pytest.raises(SpecScopeError, match=r"head of the Ray cluster \(.*\) does not answer; start"):
            second.nodes()
    second.reserve([one, two])
    assert second.places["cpu:1"].number == 1
    second.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_two_nodes_write_the_rows_and_text_of_worker_processes(name, on_ray, cluster):
    method = name.split()[0]
    prompts = (PROMPT, "Who are you?") if method == "ems" else (PROMPT,)
    for sampling in (Sampling(), WARM):
        settings = {"config": CONFIGS[name], "sampling": sampling, "limits": SHORT}
        trace, expected = (each.run(method, *prompts, **settings) for each in (on_ray, cluster))
        assert trace.footer.texts == expected.footer.texts
        assert {span.device for span in trace.spans} == {"cpu:0", "cpu:1"}
        if method != "dsi":  # its rounds depend on its timing
            assert facts(trace) == facts(expected)


@pytest.mark.slow
def test_the_trace_has_the_clock_the_samples_and_the_reservation_of_each_node(on_ray):
    trace = on_ray.run("speculative", PROMPT, limits=Limits(300))
    facts, devices = trace.header.environment, trace.header.devices
    here, there = (facts["clocks"][device.name] for device in devices)
    assert (here["offset_ns"], here["uncertainty_ns"]) == (0, 0)
    assert here["node"].startswith("node 1 (")
    assert there["node"].startswith("node 2 (")
    assert abs(there["offset_ns"]) <= there["uncertainty_ns"] < 1e9, "both nodes read one clock"
    labels = [track["label"] for track in view_model([trace])["runs"][0]["tracks"]]
    assert labels[0] == f"{here['node']} · CPU 0 · drafter"
    assert labels[1] == f"{there['node']} · CPU 0 · target · clock ±{there['uncertainty_ns'] / 1e6:.2g} ms"
    for number, device in enumerate(devices):
        samples = [sample for sample in trace.occupancy if sample.device == device.name]
        assert samples, "sampled ten times a second"
        times = [s.time for s in samples]
        assert times == sorted(times)
        assert 0 < times[0] <= times[-1] < trace.footer.time + 1e9, "on the run's clock"
        assert max(sample.busy for sample in samples) > 0
        assert min(sample.memory for sample in samples) > 50 << 20, "resident bytes of its own process"
        assert facts["reserved"][device.name].partition(", ")[2] == f"bundle {number}"


@pytest.mark.slow
def test_a_node_without_the_model_or_with_another_specscope_or_none_is_named(on_ray, monkeypatch, tmp_path):
    (worker,) = on_ray.placement.workers_for(on_ray.placement.base).by_model["target"]
    wait = worker.prepare(LoadModel("elsewhere", partial(load, "/nowhere/at/all")))
    with pytest.raises(ModelError, match=r"node 2 \(.*\) cannot load a model: /nowhere/at/all: there is no"):
        wait()
    pid, worker.pid = worker.pid, 0
    with monkeypatch.context() as patch:
        patch.setattr("specscope.engine.runtimes.ray.worker.release", lambda _: "9")
        with pytest.raises(SpecScopeError, match=r"node 2 .* has SpecScope .*, this machine 9: install one"):
            worker.answer(os.getpid)
    worker.pid = 0
    assert worker.answer(os.getpid) == pid
    (tmp_path / "absent.py").write_text("class Server:\n    def call(self, function):\n        return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import ray

    actor = ray.remote(import_module("absent").Server).options(num_cpus=0).remote()
    absent = RayWorker(Setup("x", worker.devices[0], 1, None), worker.node, References(), actor)
    message = r"node 2 .* cannot start \(ModuleNotFoundError: No module named 'absent'\); install SpecScope"
    with pytest.raises(WorkerDied, match=message):
        absent.answer(os.getpid)


@pytest.mark.slow
def test_a_killed_actor_ends_its_run_with_a_name(nodes, on_ray, capfd):
    pids, began = [worker.pid for worker in on_ray.placement.workers], list[float]()

    def kill():
        began.append(time.monotonic())
        os.kill(pids[0], signal.SIGKILL)

    name = f"the worker on node 1 ({nodes.head_node.node_ip_address}) · CPU 0 (process {pids[0]}) died"
    with pytest.raises(WorkerDied, match=re.escape(name)):
        on_ray.run("pearl", PROMPT, limits=Limits(1000), listener=at_span(6, kill))
    assert time.monotonic() - began[0] < 10
    on_ray.close()
    assert not any(capfd.readouterr()), "Ray prints nothing of its own"
    assert_ended(pids)


@pytest.mark.slow
def test_the_page_shows_clocks_stops_and_names_a_killed_node_and_its_next_run_uses_what_is_left(
    nodes, on_ray, capfd, tmp_path
):
    on_ray.close()  # its devices are free
    second = next(node for node in nodes.list_all_nodes() if node is not nodes.head_node)
    Ray(nodes.address).check()
    service = Service(tmp_path / "runs.db", opened := Opened())
    place = {"prompt": PROMPT, "runtime": "ray", "address": nodes.address}

    stopped = service.start(RunRequest("pearl", limits=Limits(1000), **place))
    await_spans(stopped)
    stopped.cancel()
    assert (stopped.wait(10), stopped.state) == (True, "cancelled")

    failed = service.start(RunRequest("pearl", limits=Limits(1000), **place))
    await_spans(failed)
    began = time.monotonic()
    kill_node(second)
    assert (failed.wait(10), failed.state) == (True, "failed"), time.monotonic() - began
    assert failed.error.startswith("the worker on node 2 (")

    rest = service.start(RunRequest("autoregressive", limits=SHORT, target=str(TARGET), **place))
    assert (rest.wait(60), rest.state, rest.error) == (True, "done", "")
    service.close()

    store = Store(tmp_path / "runs.db")
    one, two, left = (store.load(run.run_id) for run in (stopped, failed, rest))
    store.close()
    assert (one.status, two.footer.error, left.status) == ("cancelled", failed.error, "done")
    assert " · target · clock ±" in view_model([one])["runs"][0]["tracks"][1]["label"]
    assert {device.label.split(" (")[0] for device in left.header.devices} == {"node 1"}
    assert [len(pids) for pids in opened.pids] == [2, 1], "one session until the node died"
    assert not any(capfd.readouterr()), "Ray prints nothing of its own"
    assert_ended([pid for pids in opened.pids for pid in pids])


@pytest.mark.slow
def test_the_command_starts_a_cluster_of_this_machine_and_leaves_nothing(nodes, capsys, tmp_path):
    folder, before = Path(tempfile.gettempdir()), {p.pid for p in psutil.Process().children(recursive=True)}
    words = ["--target", str(TARGET), "--prompt", PROMPT, "--max-new-tokens", "8"]
    words += ["--db", str(tmp_path / "runs.db"), "--tp", str(min(2, len(devices_of("cpu"))))]
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["run", "--method", "autoregressive", "--runtime", "ray", *words]) == 0
    assert "measured · ray" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is handler
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before
    assert not list(folder.glob("specscope-ray-*"))


DEAD_HEAD = """
import threading, time
import psutil
from specscope.engine.cluster.ray_cluster import RayCluster

def kill():
    while not (heads := [p for p in psutil.Process().children() if p.name() == "gcs_server"]):
        time.sleep(0.02)
    time.sleep(0.3)  # Ray waits for it now
    heads[0].kill()

threading.Thread(target=kill, daemon=True).start()
RayCluster(None, 1)
"""


@pytest.mark.slow
def test_a_head_that_dies_while_ray_starts_ends_the_command_with_one_line(nodes):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    began, folder = time.monotonic(), Path(tempfile.gettempdir())
    ended = run([sys.executable, "-c", DEAD_HEAD], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    line = r"specscope: cannot start Ray: its head \(process \d+\) ended; start it again\n"
    assert re.fullmatch(line, ended.stderr)
    assert time.monotonic() - began < 30, "with the imports, on a busy machine"
    assert not list(folder.glob("specscope-ray-*"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--runtime", "ray"], 2, "--runtime ray needs: pip install 'specscope[ray]'"),
        (["--address", "auto"], 2, "address is 'auto', but the runtime is local-process; use the runtime ray"),
        (["--runtime", "ray", "--address", "ray://host:1"], 2, "address is 'ray://host:1'; give host:port"),
        (["--runtime", "ray", "--address", "127.0.0.1:1"], 1, "no Ray cluster answers at 127.0.0.1:1"),
        (["--runtime", "ray", "--device", "tpu"], 2, "there is no device 'tpu'; choose auto, cpu or cuda"),
    ],
)  # fmt: skip
def test_bad_use_ends_with_one_line(words, code, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    database = ["--db", str(tmp_path / "runs.db")]
    assert main(["run", "--method", "speculative", "--prompt", "Hi", *words, *database]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
