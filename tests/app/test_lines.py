"""Command lines: what they print, or the exit code and the one line with which they are refused."""

from __future__ import annotations

import shlex
import shutil

import pytest

from specscope.traces.database.store import Store
from tests.app.commands import call, printed
from tests.traces.samples import sample_trace

CLUSTER = "--profile pearl-4xA100 --max-new-tokens 8"
NAMES = {
    "RUN": "run --method pearl --prompt x",
    "COMPARE": "compare --methods pearl --prompt Hi",
    "SWEEP": f"sweep --method speculative {CLUSTER}",
    "MEASURED": "sweep --method speculative",
    "LOAD": f"load --methods speculative {CLUSTER} --requests 4 --batch 2,1",
    "WHATIF": "whatif sample-speculative --profile pearl-4xA100",
    "PLAN": "plan --device cpu",
    "BENCH": "bench --pair bundled",
    "VIRTUAL": CLUSTER,
    "SET": f"compare --methods speculative,medusa --prompt Hello {CLUSTER} --set",
    "BOUND": f"compare --methods pearl,ssd --prompt Hi {CLUSTER} --fail-below",
    "GPUS": "plan --device cuda --memory",
}
"""What a word in capitals stands for."""
ANSWERED = """
diff sample-speculative sample-pearl                   | sample-speculative: Speculative decoding · sample · virtual · sample-2xGPU | sum
WHATIF --method pearl                                  | PEARL · | what-if of sample-speculative · virtual · pearl-4xA100 | recorded what-if plain decoding | tokens/s | Tested drafts:
WHATIF --over gamma=1:3                                | gamma tokens/s speed-up
COMPARE VIRTUAL                                        | the speed-ups have no range: one prompt in virtual time; give several prompts
SET medusa.acceptance=typical --set speculative.gamma=2 --temperature 0.9 | (lossy)
PLAN --memory 0=75MB,1=60MB                            | CPU core 0 | layers 0-3 | CPU core 1 | layers 4-7 | The pair fits with 2,048 tokens; its context is 2,304. | Can run: assisted, autoregressive, dsi, eagle, eagle2,
"""
"""Lines on the stored runs -> pieces of what they print, in this order, whatever the spaces."""
LINES = """
fly                                                    | fly
compare --methods '' --prompt x                        | --methods is empty
SET gamma=2                                            | --set gamma=2 is not METHOD.FIELD=VALUE with a method of --methods
SET pearl.gamma=2                                      | --set pearl.gamma=2 is not METHOD.FIELD=VALUE with a method of
SET speculative.gamma=-1                               | gamma is -1; it must be at least 1
run --method autoregressive --prompt x --target ./no/such/model | no/such/model
RUN --runtime warp                                     | there is no runtime 'warp'
RUN --tp 0                                             | tp is 0; it must be at least 1
RUN --drafter-tp 999                                   | drafter_tp is 999
RUN --tp 2 VIRTUAL                                     | instead of virtual
RUN --profile none                                     | there is no profile 'none'
RUN --pair none                                        | 'none'
run --method pearl --prompt-file missing.txt           | missing.txt
run --method pearl                                     | --prompt
COMPARE --repeat 0                                     | --repeat is 0; it must be at least 1 and at most 9
COMPARE --repeat 10                                    | --repeat is 10;
COMPARE --repeat 2 VIRTUAL                             | --repeat is 2; with --profile it must be 1
SWEEP --over gamma=1:40 --prompt Hi                    | gamma is 40; it must be at least 1 and at most 32
SWEEP --over gamma                                     | --over 'gamma' is not FIELD=VALUES
SWEEP --over width=1                                   | no sweep over 'width'; it has gamma, confidence, off_below, acceptance_rate, drafter
SWEEP --over gamma=1 --over gamma=2 --prompt Hi        | gamma is on both axes
MEASURED --over gamma=1                                | the sweep has no prompt
MEASURED --over acceptance_rate=0.5                    | have no models to measure; name a cluster
SWEEP --over drafter=int4 --prompt Hi                  | the same for every drafter; measure
MEASURED --over drafter=/small --prompt Hi             | a drafter (/small) without a target
SWEEP --over acceptance_rate=1.5                       | acceptance rate is 1.5
SWEEP --over acceptance_rate=0.5 --prompt Hi           | --prompt: drafts of a given
SWEEP --over acceptance_rate=0.5 --seeds 9             | seeds is 9
SWEEP --over gamma=1 --prompt Hi --passes 2            | passes is 2
SWEEP --over gamma=1 --set gamma=2 --prompt Hi         | is an axis of the sweep
SWEEP --over gamma=1 --set x=2 --prompt Hi             | has no field 'x'
MEASURED --over gamma=1 --profile none --prompt Hi     | there is no profile 'none'
SWEEP --over acceptance_rate=0.5 -o /none/x.html       | the folder of the output
sweep --method dsi --over lookahead=1 --over acceptance_rate=0.5 VIRTUAL | no cell has a speed-up: lookahead is 1; with
BOUND dsi=1.3                                          | --fail-below names 'dsi', which is not compared; choose of autoregressive, pearl, ssd
BOUND nonsense=1.3                                     | --fail-below names 'nonsense', which is not compared
BOUND pearl                                            | --fail-below 'pearl' is not METHOD=SPEEDUP; write for example pearl=1.3
BOUND pearl=fast                                       | is not METHOD=SPEEDUP
BOUND pearl=nan                                        | is not METHOD=SPEEDUP
BOUND pearl=-1                                         | is not METHOD=SPEEDUP
BOUND pearl=inf                                        | is not METHOD=SPEEDUP
BOUND pearl=1=2                                        | is not METHOD=SPEEDUP
BOUND pearl=1 --fail-below pearl=2                     | --fail-below names pearl twice
LOAD --rate 0                                          | the rate is 0; it must be at least 1e-06
LOAD --rate 1e-300                                     | the rate is 1e-300; it must be at least
LOAD --rate nan                                        | the rate is nan
LOAD --batch 0,2                                       | --batch is 0; it must be at least 1 and at most 64
LOAD --batch 1,x                                       | --batch is '1,x'; it must be whole numbers
LOAD --chunk 0                                         | --chunk is 0
LOAD --itl-ms 0                                        | --tpot-ms is 0
LOAD --requests 0                                      | --requests is 0
LOAD -o chart.pdf                                      | the output chart.pdf is no chart
LOAD --methods dsi                                     | dsi cannot run under load
LOAD --policy fast                                     | --policy has 'fast'; choose among fixed, by-batch, survival, minedraft
LOAD --methods autoregressive --policy survival        | plain decoding drafts nothing; name a method
LOAD --methods pearl --policy survival                 | pearl drafts and verifies at once by itself
LOAD --methods speculative,llma --policy minedraft     | llma drafts without a model
LOAD --methods nothing                                 | there is no method 'nothing'
whatif nowhere --profile pearl-4xA100                  | there is no run 'nowhere'
whatif sample-speculative                              | is of the profile 'sample-2xGPU': name a cluster for the what-if
WHATIF --method none                                   | there is no method 'none'
WHATIF --set gamma=99                                  | gamma is 99
WHATIF --set gamma                                     | is not FIELD=VALUE
WHATIF --over gamma                                    | --over 'gamma' is not FIELD=VALUES
WHATIF --over acceptance_rate=0.5                      | a replay has the recorded drafts
WHATIF --over width=1:3                                | has no sweep over 'width'
WHATIF --over gamma=0:99                               | gamma
WHATIF --over gamma=1:3 --store                        | --store keeps one replay
WHATIF --devices 0                                     | --devices is 0; it must be at least 1
WHATIF --profile-pair x                                | has no pair 'x'
diff sample-speculative nowhere                        | there is no run 'nowhere'
runs --limit 0                                         | --limit is 0
PLAN --memory 9999=1GB                                 | must name a device from 0 to
PLAN --context 0                                       | --context is 0; it must be at least 1 and at most 2304
PLAN --dtype int3                                      | no dtype 'int3'; choose one of auto, float32, bfloat16
PLAN --tp 999                                          | tp is 999; it must be at least 1
PLAN --drafter x                                       | a drafter (x) without a target
PLAN --head nowhere                                    | nowhere is no directory
plan --device cuda                                     | to plan for GPUs that are not here, name their memory, as in --memory
GPUS 1=12GB                                            | GPU 0 is not here: name its memory too
plan --memory 0=1GB,99999=1GB                          | GPU 1 is not here: name its memory too
plan --memory 9999999999=1GB                           | must name a device and its size
PLAN --memory 99999=1GB                                | 99999 must name a device from 0 to
PLAN --memory 0=20MB,1=20MB                            | no layer may be split; free are 0.0 MB on CPU core 0, 20.0 MB on CPU core 1
plan --target no-one/Llama-70B                         | a plan downloads nothing; give the path of its config.json
plan --target no-one/Llama-70B/int4                    | there is no such directory
plan --pair smollm2                                    | smollm2 is not downloaded; `specscope models get smollm2`
plan --target smollm2                                  | smollm2 is not downloaded; `specscope models get smollm2`
follow                                                 | nothing is named
follow --json                                          | nothing is named
follow --json --folder .                               | nothing is named
follow --folder nowhere                                | nowhere is no folder
follow nowhere/run.jsonl                               | nowhere is no folder
follow /usr/run.jsonl /etc/run.jsonl                   | two files have the name 'run.jsonl'
calibrate -o x.json                                    | x.json; a profile's name must end in .toml
calibrate -o /nowhere/at/all/x.toml                    | /nowhere/at/all/x.toml does not exist; make it first
calibrate --drafter d                                  | --drafter d needs --target; give both
calibrate --target t --pair bundled                    | --pair bundled and --target t exclude each other
calibrate --pair none                                  | there is no pair 'none'; choose one of bundled
calibrate --device tpu                                 | there is no device 'tpu'; choose auto, cpu or cuda
calibrate --target ./no/such/model                     | there is no such directory
bench --methods llma                                   | --methods needs --pair or --target
bench --limit 3                                        | --limit needs --pair or --target
bench --runtime ray                                    | --runtime needs --pair or --target
bench --address auto                                   | --address needs --pair or --target
BENCH --runtime virtual                                | --runtime virtual computes times; the bench measures
BENCH --address auto                                   | the runtime is local-process; use the runtime ray
BENCH --cuda                                           | --cuda needs no other models; leave out --pair
bench --drafter x                                      | --drafter needs --pair or --target
bench --head x                                         | --head needs --pair or --target
BENCH --methods nothing                                | there is no method 'nothing'
models get big                                         | choose one of smollm2
models get                                             | choose one of smollm2
models remove                                          | choose one of smollm2
models get smollm2 --patience -1                       | must be at least 0
play --pair gpt5                                       | choose one of smollm2, bundled
play --address 10.0.0.1:6379                           | --address '10.0.0.1:6379' needs --ray; give both or neither
play --ray --address ray://host:1                      | address is 'ray://host:1'; give host:port
play --ray --address 127.0.0.1:1                       | no Ray cluster answers at 127.0.0.1:1; start its head
"""
FAILING = ("/no/such/model", "--head nowhere", "/int4", "Llama-70B", "0=20MB,1=20MB", "127.0.0.1:1")
"""Ends of lines with exit code 1: models or a cluster cannot be read, found or held."""
LATE = ("LOAD --methods dsi", "BENCH --address auto")
"""Lines that are refused after the first progress."""


pytestmark = pytest.mark.usefixtures("shared_clusters")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with two runs, which lines name."""
    file = str(tmp_path_factory.mktemp("lines") / "traces.db")
    with Store(file) as store:
        store.insert(sample_trace("speculative", tokens=24), sample_trace("pearl", tokens=24))
    return file


def table(rows: str) -> pytest.MarkDecorator:
    """Return a mark that gives a test the words of each line and what it says."""
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows.strip().splitlines()]
    return pytest.mark.parametrize(
        ("line", "pieces"), [(row[0], row[1:]) for row in cells], ids=[row[0] for row in cells]
    )


def words(line: str) -> list[str]:
    return [part for word in shlex.split(line) for part in shlex.split(NAMES.get(word, "")) or [word]]


@table(ANSWERED)
def test_a_command_line_is_answered(capsys, stored, tmp_path, monkeypatch, line, pieces):
    monkeypatch.setenv("SPECSCOPE_DB", shutil.copy(stored, tmp_path))
    out = " ".join(printed(capsys, *words(line)).split())
    places = [out.find(piece) for piece in pieces]
    assert -1 not in places, out
    assert places == sorted(places), out


@table(LINES)
def test_a_wrong_command_line_is_refused_in_one_line(capsys, stored, tmp_path, monkeypatch, line, pieces):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSCOPE_DB", stored)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for name in ("app.web.server.serve", "engine.checkpoints.hub.download", "engine.checkpoints.catalog.get"):
        monkeypatch.setattr(f"specscope.{name}", lambda *_, **__: pytest.fail("a download, or a server"))
    if line.startswith("BOUND"):
        monkeypatch.setattr("specscope.open", None)
    code, out, err = call(capsys, *words(line))
    assert (code, out) == (1 if line.endswith(FAILING) else 2, "")
    assert pieces[0] in err
    if line not in LATE:
        assert err.startswith("specscope: ")
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
