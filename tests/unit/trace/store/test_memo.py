"""Memos: values are found as they were kept, or not at all."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.memos import memos

from stepscope.errors import UnreadableInputError
from stepscope.trace.store import memo
from stepscope.trace.store.memo import Memo
from stepscope.trace.store.origin import identity_of, memo_directory

pytestmark = pytest.mark.usefixtures("cache")


@dataclass(frozen=True)
class Answer:
    """An answer."""

    text: str


def about(*inputs: Any) -> Memo[Answer]:
    return Memo(Answer, lambda: inputs)


def keep(text: str, *inputs: Any) -> Path:
    """Keeps an answer; returns its file."""
    before = set(memos())
    assert about(*inputs).make(lambda: Answer(text)) == Answer(text)
    (file,) = set(memos()) - before
    return file


def test_a_value_is_found_as_it_was_kept() -> None:
    assert about("a").find() is None
    text = "a\n ü\ud800"
    keep(text, "a")
    assert about("a").find() == Answer(text)
    assert about("b").find() is None
    assert about("a").make(lambda: Answer("another")) == Answer("another")
    assert about("a").find() == Answer("another")
    assert len(memos()) == 1


def test_all_inputs_are_part_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a")
    frames = [pl.DataFrame({"a": values}) for values in ([1], [2], [1.0])]
    others = ["a", 1, None, ("a", 1), Answer("a"), Answer("b"), b"a", identity_of(file), *frames]
    for number, one in enumerate(others):
        keep(str(number), one)
    for number, one in enumerate(others):
        assert about(one).find() == Answer(str(number))
    file.write_text("b")
    assert about(identity_of(file)).find() is None


def test_what_cannot_be_identified_is_not_kept(tmp_path: Path) -> None:
    def fails() -> Any:
        raise UnreadableInputError("a pipe")

    for one in (Memo(Answer, fails), about(pl.LazyFrame()), about(object()), about({1: {(): 1}})):
        assert one.find() is None
        assert one.make(lambda: Answer("text")) == Answer("text")
    with pytest.raises(UnreadableInputError):
        identity_of(tmp_path)
    assert not memos()


def test_what_changes_meanwhile_or_would_differ_the_next_time_is_not_kept() -> None:
    inputs = iter("ab")
    Memo(Answer, lambda: next(inputs)).make(lambda: Answer("text"))
    about("a").make(lambda: Answer("text"), lambda _: False)
    assert not memos()


@pytest.mark.parametrize("place", [0, 5, 40, -8, -1])
def test_a_changed_byte_is_noticed(place: int) -> None:
    file = keep("some text, long enough", "a")
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert about("a").find() is None


@pytest.mark.parametrize("length", [0, 1, 50, -1])
def test_a_torn_file_is_noticed(length: int) -> None:
    file = keep("some text, long enough", "a")
    file.write_bytes(file.read_bytes()[:length])
    assert about("a").find() is None


def test_a_renamed_file_is_noticed() -> None:
    one, other = keep("one", "a"), keep("other", "b")
    one.rename(other)
    assert about("b").find() is None


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    file = keep("text", "a")
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    assert about("a").find() is None
    file.unlink()
    os.mkfifo(file)
    assert about("a").find() is None
    about("a").make(lambda: Answer("text"))
    assert about("a").find() == Answer("text")
    directory = file.parent
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    assert about("a").find() is None
    about("b").make(lambda: Answer("text"))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_what_others_may_write_is_not_believed() -> None:
    before = os.umask(0)
    try:
        file = keep("text", "a")
    finally:
        os.umask(before)
    assert about("a").find() == Answer("text")
    for path in (file, file.parent):
        mode = path.stat().st_mode
        for others in (stat.S_IWGRP, stat.S_IWOTH):
            path.chmod(mode | others)
            assert about("a").find() is None
        path.chmod(mode)
    if os.getuid() == 0:  # only root gives files away
        for path in (file, file.parent):
            os.chown(path, 54_321, -1)
            assert about("a").find() is None
            os.chown(path, 0, -1)
    assert about("a").find() == Answer("text")


def test_few_are_kept_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_MEMOS", 3)
    monkeypatch.setattr(memo, "_WRITES_PER_CHECK", 1)
    oldest = keep("text", 0)
    left = oldest.with_name(".abandoned.tmp")
    left.write_bytes(b"unfinished")
    for path, moment in ((oldest, 1), (left, 2)):
        os.utime(path, (moment, moment))
    for number in (1, 2, 3):
        about(number).make(lambda: Answer("text"))
    assert len(list(memo_directory().iterdir())) == 3
    assert not oldest.exists()
    assert not left.exists()


def test_those_used_longest_ago_go_first_and_all_together_fit_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memo, "MOST_BYTES_TOGETHER", 1000)
    monkeypatch.setattr(memo, "_WRITES_PER_CHECK", 1)
    files = [keep("x" * 200, number) for number in range(3)]
    for moment, file in enumerate(files):
        os.utime(file, (moment, moment))
    assert about(0).find()
    about(3).make(lambda: Answer("x" * 200))
    assert [file.exists() for file in files] == [True, False, True]
    assert sum(file.stat().st_size for file in memos()) <= 1000


def test_many_small_writes_are_bounded_although_few_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_MEMOS", 100)
    for number in range(1000):
        about(number).make(lambda: Answer("text"))
    assert 50 < len(memos()) < 1000 / 2


def test_a_large_write_looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_BYTES_TOGETHER", 5000)
    monkeypatch.setattr(memo, "_LARGE_BYTES", 2000)
    for number in range(10):
        about(number).make(lambda: Answer("x" * 2000))
        assert sum(file.stat().st_size for file in memos()) <= 5000


def test_what_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_BYTES", 300)
    about("a").make(lambda: Answer("x" * 300))
    assert not memos()
    about("a").make(lambda: Answer("x" * 30))
    assert about("a").find() == Answer("x" * 30)
