"""What workers and runs share: the wire, rows of q, memory, the exchange of a group, limits."""

import gc
import os
import pickle
import random
import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.methods import find
from specscope.engine.run.run import Sequence
from specscope.engine.runtimes.process import Wire
from specscope.engine.types import Draft, DraftToken, Limits, Prefix, Sampling
from specscope.engine.worker import exchange, shared
from specscope.engine.worker.exchange import Exchange, exchange_memory
from specscope.engine.worker.jobs import Prefill
from specscope.engine.worker.shared import ROWS, QBuffer, SharedMemory

ids = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def _job(model, *prefixes):
    return Prefill(model, tuple(Prefix(n, np.asarray(t, dtype=np.int64)) for n, t in prefixes))


@given(
    st.lists(
        st.tuples(st.sampled_from(["target", "drafter"]), st.dictionaries(st.integers(0, 2), ids)), max_size=9
    )
)
def test_prefixes_survive_the_wire(sent):
    sender, receiver = Wire(), Wire()
    for model, prefixes in sent:
        packed = pickle.loads(pickle.dumps(sender.pack(_job(model, *prefixes.items()))))
        received = receiver.unpack(packed)
        assert {p.sequence: p.tokens.tolist() for p in received.prefixes} == prefixes


def test_the_wire_sends_only_new_tokens():
    wire = Wire()
    wire.pack(_job("target", (0, range(1000)), (1, range(5))))
    packed = wire.pack(_job("target", (0, range(1004)), (1, [0, 1, 7])))
    sent = [(sequence, kept, np.frombuffer(new, dtype=np.int64)) for sequence, kept, new in packed.prefixes]
    assert [(*place, new.tolist()) for *place, new in sent] == [(0, 1000, [*range(1000, 1004)]), (1, 2, [7])]


def test_rows_of_q_are_free_once_the_last_draft_is_gone():
    q_buffer = QBuffer("drafter", 8)
    q_buffer.close()
    lease = q_buffer.lease(5)
    draft = Draft(tuple(DraftToken(i, i - 1) for i in range(5)), (lease,))
    tail = draft[3:]
    del lease, draft
    gc.collect()
    rest = q_buffer.lease(ROWS - 5)
    with pytest.raises(SpecScopeError, match=f"{ROWS} rows"):
        q_buffer.lease(1)
    del tail
    gc.collect()
    assert (len(q_buffer.lease(5).rows), len(rest.rows)) == (5, ROWS - 5)


class Letters:
    """A detokenizer: token i is letter i of the alphabet."""

    def push(self, token):
        return chr(97 + token)

    def flush(self):
        return ""


def _decode(tokens, limits):
    sequence, streamed = Sequence(0, [0], limits, Letters()), ""
    for token in tokens:
        if not sequence.done:
            streamed += sequence.push(token)
    assert streamed == sequence.text
    return sequence.text, sequence.reason


@example([0, 1, 2], ["ab"], 50)
@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.sampled_from([3, 50]),
)
def test_the_text_ends_before_the_first_stop_string_with_eos_or_at_the_most_tokens(tokens, stop, most):
    text, reason = _decode([*tokens, 25], Limits(most, tuple(stop), eos=(25,)))
    whole = "".join(chr(97 + t) for t in tokens[:most])
    cuts = [(whole.find(s) + len(s), whole.find(s)) for s in stop if s in whole]
    if not cuts:
        assert (text, reason) == (whole, "eos" if len(tokens) < most else "length")
        return
    first = min(end for end, _ in cuts)  # the stop text completed first ends the text ...
    assert (text, reason) == (whole[: min(start for end, start in cuts if end == first)], "stop")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(temperature=11), "temperature is 11; it must be at least 0 and at most 10"),
        (lambda: Sampling(temperature=float("nan")), "temperature is nan"),
        (lambda: Sampling(top_k=-1), "top_k is -1; it must be at least 0"),
        (lambda: Sampling(top_p=1.5), "top_p is 1.5; it must be more than 0 and at most 1"),
        (lambda: Sampling(seed=-1), "seed is -1"),
        (lambda: Limits(0), "max_new_tokens is 0; it must be at least 1"),
        (
            lambda: find("pearl").configure({"gamma": 2.5}),
            "gamma is 2.5; it must be a whole number of at least",
        ),
    ],
)
def test_settings_out_of_range_are_refused_with_value_and_range(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def join(ways, patience=5.0):
    """Return two or more workers of one exchange."""
    with closing(exchange_memory(ways)) as memory:
        return [Exchange(memory.path, rank, ways, patience) for rank in range(ways)]


def together(workers, work):
    """Run `work` for all workers at the same time; return the list of results."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(work, workers))


def value(turn, index):
    return torch.full((3, 5), float(1000 * turn + index)) + torch.arange(5) / 8


@pytest.mark.parametrize(
    ("ways", "count", "dtype"),
    [(2, 2, torch.bfloat16), (2, 5, torch.float32), (3, 4, torch.float32), (4, 2, torch.float32)],
)
def test_all_workers_get_the_tensors_of_the_turn(ways, count, dtype):
    like = torch.zeros(3, 5, dtype=dtype)

    def work(worker):
        luck = random.Random(worker.rank)
        for turn in range(200):
            if luck.random() < 0.05:
                time.sleep(luck.random() / 500)
            mine = {i: value(turn, i).to(dtype) for i in range(worker.rank, count, ways)}
            tensors = worker.swap(mine, count, like)
            assert len(tensors) == count
            for i, tensor in enumerate(tensors):
                assert torch.equal(tensor, value(turn, i).to(dtype)), (turn, i)
        return turn

    assert together(join(ways), work) == [199] * ways


def test_all_workers_stop_in_the_turn_in_which_one_was_stopped():
    def work(worker):
        return [worker.agree(stopped=worker.rank == 1 and turn == 7) for turn in range(12)]

    assert together(join(3), work) == [[turn == 7 for turn in range(12)]] * 3


def test_turns_of_an_earlier_run_do_not_count(monkeypatch):
    one, two = join(2, patience=0.2)
    like = torch.zeros(3, 5)

    def begin(run):
        one.begin(run), two.begin(run)

    def swapped(turn):
        return together([one, two], lambda w: w.swap({w.rank: value(turn, w.rank)}, 2, like))

    begin(1)
    swapped(1)
    with pytest.raises(SpecScopeError, match="rank 0"):
        two.agree(stopped=False)  # rank 0 has ended this run
    begin(2)
    with pytest.raises(SpecScopeError, match=r"rank 1 of a group of 2 devices did not come within 0\.2 s"):
        one.swap({0: value(2, 0)}, 2, like)
    begin(3)
    assert all(torch.equal(got[i], value(3, i)) for got in swapped(3) for i in (0, 1))
    monkeypatch.setattr(exchange, "FLOATS", 64)
    with pytest.raises(SpecScopeError, match="3 attention outputs of 40 numbers do not fit into 64"):
        one.swap({}, 3, torch.zeros(4, 10))


def mapped(memory, size):
    return np.memmap(memory.path, dtype=np.uint8, mode="r+", shape=size)


def test_shared_memory_has_no_file_name_and_is_not_in_dev_shm():
    folders = (Path("/dev/shm"), Path(shared.tempfile.gettempdir()))
    before = [set(folder.glob("specscope-*")) for folder in folders]
    with closing(SharedMemory(1 << 20)) as memory:
        one, two = mapped(memory, 1 << 20), mapped(memory, 1 << 20)
        assert os.stat(memory.path).st_dev != os.stat("/dev/shm").st_dev
        assert [set(folder.glob("specscope-*")) for folder in folders] == before
    two[-1] = 7
    assert one[-1] == 7, "mappings stay after closing"


def test_refused_memory_is_a_one_line_error_with_its_size():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    message = r"cannot share 67,108,864 bytes of memory .* \(File too large\)"
    try:
        with pytest.raises(SpecScopeError, match=message):
            SharedMemory(1 << 26)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_without_anonymous_files_the_disk_must_have_room_and_the_file_is_removed(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(shared.tempfile, "tempdir", str(tmp_path))
    with closing(SharedMemory(4096)) as memory:
        one, two = mapped(memory, 4096), mapped(memory, 4096)
        two[0] = 3
        assert one[0] == 3
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=65536))
    with pytest.raises(SpecScopeError, match=r"share 131,072 bytes in .*, which has 65,536 free; free some"):
        SharedMemory(131072)
    assert not list(tmp_path.iterdir())
