"""Shared memory: it uses neither /dev/shm nor a file, and an error names the size."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specscope.engine.errors import SpecScopeError
from specscope.engine.worker import shared
from specscope.engine.worker.shared import SharedMemory


def mapped(memory: SharedMemory, size: int) -> np.ndarray:
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
    try:
        with pytest.raises(
            SpecScopeError, match=r"cannot share 67,108,864 bytes of memory .* \(File too large\)"
        ):
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
