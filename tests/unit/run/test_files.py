"""Atomic files, and the append-only file of lines."""

from __future__ import annotations

import os
import threading
import tracemalloc

import pytest

from stepscope.run import files
from stepscope.run.files import LineFile, digest_of, read_regular, replacing, write_atomically


def test_the_old_content_or_the_new_never_a_part(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomically(path, b"old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_bytes(b"ne")
        assert path.read_bytes() == b"old"
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_writers_at_the_same_moment_do_not_meet(tmp_path):
    path = tmp_path / "file"
    threads = [
        threading.Thread(target=lambda n=n: write_atomically(path, bytes([n]) * 10_000))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = path.read_bytes()
    assert len(data) == 10_000
    assert len(set(data)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_digest_is_of_the_content(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_bytes(b"a" * 3_000_000)
    two.write_bytes(b"a" * 3_000_000)
    assert digest_of(one) == digest_of(two)
    two.write_bytes(b"a" * 2_999_999 + b"b")
    assert digest_of(one) != digest_of(two)


def test_lines_are_on_the_disk_at_once(tmp_path):
    file = LineFile(tmp_path / "lines")
    for number in range(3):
        file.write(b"%d\n" % number)
        assert (tmp_path / "lines").read_bytes().count(b"\n") == number + 1
    file.close()
    file.close()
    file.write(b"late\n")
    assert file.lost_lines == 1
    assert file.problem is None


def test_a_second_opening_appends(tmp_path):
    for text in (b"a\n", b"b\n"):
        file = LineFile(tmp_path / "lines")
        file.write(text)
        file.close()
    assert (tmp_path / "lines").read_bytes() == b"a\nb\n"


def test_a_disk_that_refuses_loses_lines_and_says_so(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(28, "No space left on device")

    file = LineFile(tmp_path / "lines")
    monkeypatch.setattr(files.os, "write", refuse)
    file.write(b"a\n")
    file.write(b"b\n")
    file.close()
    assert file.lost_lines == 2
    assert file.problem == "No space left on device"


def test_a_line_cut_off_by_a_full_disk_does_not_spoil_the_next(tmp_path, monkeypatch):
    real_write = os.write
    outcomes = iter(["half", "refuse", "whole"])

    def flaky(descriptor, data):
        outcome = next(outcomes)
        if outcome == "half":
            return real_write(descriptor, data[: len(data) // 2])
        if outcome == "refuse":
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data)

    file = LineFile(tmp_path / "lines")
    monkeypatch.setattr(files.os, "write", flaky)
    file.write(b"first line\n")
    file.write(b"second line\n")
    file.close()
    assert file.lost_lines == 1
    assert (tmp_path / "lines").read_bytes().split(b"\n")[1] == b"second line"


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path):
    (tmp_path / "small.json").write_bytes(b"{}")
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "small.json", 256 << 20) == b"{}"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"12345")
    stale = os.stat_result((*(tmp_path / "file").stat()[:6], 2, 0, 0, 0))
    monkeypatch.setattr(files.os, "fstat", lambda _: stale)
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        read_regular(tmp_path / "file", 4)
