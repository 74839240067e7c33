"""Bounded reads of regular files, and writes that are complete or absent."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.files import parse_json, read_bytes, read_text, replacing


def test_only_regular_readable_files_within_the_limit_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("ä" * 5, encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"ab\xff")
    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path / "a.txt", 10) == "ä" * 5
    for read, path, most, message in (
        (read_text, tmp_path / "a.txt", 9, "has 10 bytes; the limit is 9"),
        (read_text, tmp_path / "b.txt", 10, "byte 2 is not UTF-8"),
        (read_bytes, "/dev/zero", 100, "not a regular file"),
        (read_bytes, tmp_path / "pipe", 100, "not a regular file"),
        (read_bytes, tmp_path, 100, "not a regular file|Is a directory"),
        (read_bytes, "/proc/self/status", 3, "more than 3 bytes"),  # it reports no size
        (read_bytes, tmp_path / "missing", 10, "cannot read"),
        (read_bytes, tmp_path / "a\0b", 10, "cannot read"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            read(path, most)
        assert "\n" not in str(error.value)


def test_json_that_nests_too_deeply_is_a_value_error():
    with pytest.raises(ValueError, match="nests too deeply"):
        parse_json("[" * 100_000)


def write_half(path):
    with replacing(path) as file:
        file.write("half")
        raise OSError(errno.ENOSPC, "full")


def test_a_replaced_file_is_new_or_unchanged(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)
    with pytest.raises(OSError, match="full"):
        write_half(path)
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write("new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


def test_devices_and_pipes_are_written_and_not_replaced(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    reader, writer = os.pipe()
    for path in (tmp_path / "null", Path(f"/proc/self/fd/{writer}")):
        with replacing(path) as file:
            file.write("x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert os.read(reader, 10) == b"x"
    os.close(reader)
    os.close(writer)
