"""Bounded reads of regular files, and writes that are complete or absent."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.files import parse_json, read_bytes, read_text, replacing


def test_a_file_within_the_limit_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("ä" * 5, encoding="utf-8")
    assert read_text(path, 10) == "ä" * 5
    with pytest.raises(UsageError, match="has 10 bytes; the limit is 9"):
        read_text(path, 9)


def test_only_regular_files_are_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/zero", pipe, tmp_path):
        with pytest.raises(UsageError, match=r"not a regular file|Is a directory"):
            read_bytes(path, 100)


def test_a_file_that_reports_no_size_is_limited():
    with pytest.raises(UsageError, match="more than 3 bytes"):
        read_bytes("/proc/self/status", 3)


@pytest.mark.parametrize("name", ["missing", "a\0b"])
def test_the_error_for_an_unreadable_path_is_one_line(tmp_path, name):
    with pytest.raises(UsageError, match="cannot read"):
        read_bytes(tmp_path / name, 10)


def test_the_error_for_invalid_utf8_names_the_byte(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\xff")
    with pytest.raises(UsageError, match="byte 2 is not UTF-8"):
        read_text(path, 10)


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


def test_a_device_is_written_and_not_replaced(tmp_path):
    with replacing(
        tmp_path / "link",
    ) as file:
        file.write("x")
    (tmp_path / "null").symlink_to("/dev/null")
    with replacing(tmp_path / "null") as file:
        file.write("x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_pipe_is_written_directly():
    reader, writer = os.pipe()
    with replacing(Path(f"/proc/self/fd/{writer}")) as file:
        file.write("x")
    assert os.read(reader, 10) == b"x"
    os.close(reader)
    os.close(writer)
