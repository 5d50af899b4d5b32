"""Answers in a store: read as they were written, or not at all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stepscope.trace.store import cached_answers
from stepscope.trace.store.cached_answers import ANSWERS, CachedAnswers

KEY = "0123456789abcdef"


@pytest.fixture
def answers(tmp_path: Path) -> CachedAnswers:
    store = tmp_path / "trace.json.stepscope"
    store.mkdir()
    return CachedAnswers(store, "one")


def file_of(answers: CachedAnswers, key: str = KEY) -> Path:
    return answers.store / ANSWERS / f"{key}.json"


def test_an_answer_is_read_as_it_was_kept(answers: CachedAnswers) -> None:
    assert answers.read(KEY) is None
    text = json.dumps({"a\n": "ü\ud800", "b": [1.5, None]})
    answers.keep(KEY, text)
    assert answers.read(KEY) == text
    assert answers.read("fedcba") is None
    answers.keep(KEY, "another")
    assert answers.read(KEY) == "another"
    assert [entry.name for entry in file_of(answers).parent.iterdir()] == [f"{KEY}.json"]


def test_an_answer_is_of_one_store(answers: CachedAnswers) -> None:
    answers.keep(KEY, "text")
    assert CachedAnswers(answers.store, "two").read(KEY) is None
    file_of(answers).rename(file_of(answers, "fedcba"))
    assert answers.read("fedcba") is None


@pytest.mark.parametrize("place", [0, 5, 40, -8, -1])
def test_a_changed_byte_is_noticed(answers: CachedAnswers, place: int) -> None:
    answers.keep(KEY, "some text, long enough")
    content = bytearray(file_of(answers).read_bytes())
    content[place] ^= 1
    file_of(answers).write_bytes(content)
    assert answers.read(KEY) is None


@pytest.mark.parametrize("length", [0, 1, 50, -1])
def test_a_torn_file_is_noticed(answers: CachedAnswers, length: int) -> None:
    answers.keep(KEY, "some text, long enough")
    file_of(answers).write_bytes(file_of(answers).read_bytes()[:length])
    assert answers.read(KEY) is None


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_only_a_regular_file_in_the_store_is_read(answers: CachedAnswers, tmp_path: Path) -> None:
    answers.keep(KEY, "text")
    file = file_of(answers)
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    assert answers.read(KEY) is None
    file.unlink()
    os.mkfifo(file)
    assert answers.read(KEY) is None
    answers.keep(KEY, "text")
    assert answers.read(KEY) == "text"
    file.parent.rename(tmp_path / "elsewhere")
    file.parent.symlink_to(tmp_path / "elsewhere")
    assert answers.read(KEY) is None
    answers.keep("fedcba", "text")
    assert not (tmp_path / "elsewhere" / "fedcba.json").exists()


def test_few_are_kept_and_the_newest_stay(
    answers: CachedAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_answers, "MOST_ANSWERS", 3)
    answers.keep("0", "text")
    left = file_of(answers).parent / ".abandoned.tmp"
    left.write_bytes(b"unfinished")
    for path, moment in ((file_of(answers, "0"), 1), (left, 2)):
        os.utime(path, (moment, moment))
    for key in ("1", "2", "3"):
        answers.keep(key, "text")
    assert sorted(entry.name for entry in left.parent.iterdir()) == ["1.json", "2.json", "3.json"]


def test_those_used_longest_ago_go_first_and_all_together_fit_their_limit(
    answers: CachedAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_answers, "MOST_BYTES_TOGETHER", 1000)
    for moment, key in enumerate(("0", "1", "2")):
        answers.keep(key, "x" * 150)
        os.utime(file_of(answers, key), (moment, moment))
    assert answers.read("0")
    answers.keep("3", "x" * 150)
    names = {entry.name: entry.stat().st_size for entry in file_of(answers).parent.iterdir()}
    assert names.keys() == {"0.json", "2.json", "3.json"}
    assert sum(names.values()) <= 1000


def test_what_is_too_large_is_not_kept(
    answers: CachedAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_answers, "MOST_BYTES", 300)
    answers.keep(KEY, "x" * 300)
    assert not file_of(answers).parent.exists()
    answers.keep(KEY, "x" * 30)
    assert answers.read(KEY) == "x" * 30


def test_a_store_that_was_removed_does_not_come_back(answers: CachedAnswers) -> None:
    answers.store.rmdir()
    answers.keep(KEY, "text")
    assert not answers.store.exists()


def test_reading_marks_the_store_as_used(answers: CachedAnswers) -> None:
    answers.keep(KEY, "text")
    os.utime(answers.store, (1, 1))
    answers.read(KEY)
    assert answers.store.stat().st_mtime > 1
