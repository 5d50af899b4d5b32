"""Small files that unpack to gigabytes: answered or refused within a gigabyte, and said."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import IO, cast

import polars as pl
import pytest
from tests.support.bombs import EVENT, OPENINGS, UNITS, write_bomb
from tests.support.limited import LOAD, run_limited

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.memory.load import load_snapshot
from stepscope.trace.load import load
from stepscope.trace.source import limits

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="peak memory is read from /proc"
)
SIZE = 600_000_000
REFUSALS = ("not a trace", "not a recorder's file", "nor any other known trace format")


def check(path: Path, opening: str) -> None:
    ending = run_limited(LOAD, path)
    assert ending.exit_code == 0, ending.errors[-2000:]
    assert ending.peak_bytes < 1_000_000_000
    if "EVENT" in opening or isinstance(ending.answer, list):
        events, problems = ending.answer
        assert events <= 2
        assert problems
    else:
        assert path.name in ending.answer
        assert any(words in ending.answer for words in REFUSALS), ending.answer


@linux
@pytest.mark.parametrize(
    ("opening", "unit"),
    [("header", "nested"), ("name", "backslashes")],
)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, opening: str, unit: str) -> None:
    path = write_bomb(tmp_path / "bomb.json.gz", OPENINGS[opening], UNITS[unit], SIZE)
    assert path.stat().st_size < 1_000_000
    check(path, opening)


@linux
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("unit", UNITS)
def test_every_bomb_is_refused_in_bounded_memory(tmp_path: Path, unit: str) -> None:
    for opening in OPENINGS:
        check(write_bomb(tmp_path / "bomb.json.gz", OPENINGS[opening], UNITS[unit], SIZE), opening)


@linux
def test_zstd_unpacks_a_piece_at_a_time(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra zstd")
    packer = zstandard.ZstdCompressor(1).compressobj()
    path = tmp_path / "bomb.json.zst"
    with path.open("wb") as file:
        file.write(packer.compress(b'{"traceEvents":[' + EVENT))
        for _ in range(2000):
            file.write(packer.compress(b" " * 1_000_000))
        file.write(packer.flush())
    assert path.stat().st_size < 300_000
    ending = run_limited(LOAD, path)
    assert ending.answer == [1, ["no_more_events", "truncated"]], ending.errors
    assert ending.peak_bytes < 1_000_000_000


def test_the_events_before_the_limit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "1MB")
    packed = gzip.compress(b"[" + b",".join([EVENT] * 30_000) + b"]")
    trace = load(io.BytesIO(packed), store=False)
    events = trace.events.collect().height
    assert 6_000 < events < 1_000_000 / len(EVENT)
    problems = dict(trace.problems.select("problem", "message").iter_rows())
    assert "limit 1 MB; STEPSCOPE_INPUT_LIMIT=SIZE" in problems["input_limit"]

    monkeypatch.setenv(limits.VARIABLE, "1GB")
    whole = load(io.BytesIO(packed), store=False)
    assert whole.events.collect().height == 30_000
    assert not len(whole.problems)


def test_packed_events_beyond_a_recorders_ratio_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"[" + b",".join([EVENT] * 20_000) + b"]")
    assert len(b"[" + EVENT * 20_000) > limits.MOST_RATIO * len(packed)
    assert not len(load(io.BytesIO(packed), store=False).problems)  # small, whatever the ratio
    monkeypatch.setattr(limits, "ALWAYS_BYTES", 1000)
    assert "input_limit" in load(io.BytesIO(packed), store=False).problems["problem"].to_list()


def test_packed_events_shorter_than_a_recorders_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"[" + b'{"ph":"X","ts":1},' * 2_000_000 + b"{}]", 1)
    monkeypatch.setattr(limits, "ALWAYS_EVENTS", 1000)
    trace = load(io.BytesIO(packed), store=False)
    assert len(packed) < trace.events.collect().height < 2_000_000
    (message,) = trace.problems.filter(pl.col("problem") == "input_limit")["message"]
    assert f"limit {len(packed) // 2:,} events" in message


def test_top_level_values_are_kept_up_to_a_thousand(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for key in ('"k%d"', '"k"'):  # each of its own, and all the same
        members = "".join(f',{key.replace("%d", str(n))}:"v"' for n in range(50_000))
        path.write_bytes(b'{"traceEvents":[' + EVENT + b"]" + members.encode() + b"}")
        trace = load(path, store=False)
        assert trace.events.collect().height == 1
        assert trace.metadata.collect().height == 1000
        problems = dict(trace.problems.select("problem", "count").iter_rows())
        assert problems["too_many_members"] == 49_000


class Endless:
    """A stream without end."""

    def __init__(self, opening: bytes, unit: bytes) -> None:
        self._ready = opening
        self._unit = unit

    def read(self, size: int) -> bytes:
        if len(self._ready) < size:
            self._ready += self._unit * (size // len(self._unit) + 1)
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece


@pytest.mark.sampled(1)
@pytest.mark.parametrize("unit", [b"\n", b"[", b'{"a": 1},'])
def test_a_stream_without_end_and_events_is_refused(unit: bytes) -> None:
    with pytest.raises(UnreadableInputError, match="no event"):
        load(cast("IO[bytes]", Endless(b"[", unit)))


def test_a_stream_of_events_without_end_stops_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv(limits.VARIABLE, "40MB")
    trace = load(cast("IO[bytes]", Endless(b"[", EVENT + b",")))
    assert "input_limit" in trace.problems["problem"].to_list()
    assert 0 < trace.events.collect().height < 40_000_000 / len(EVENT)


def test_a_footer_too_large_to_read_keeps_the_events(tmp_path: Path) -> None:
    path = write_bomb(tmp_path / "t.json.gz", OPENINGS["footer"], b"1", 150_000_000)
    trace = load(path)
    assert trace.events.collect().height == 1
    assert len(trace.problems)


@linux
@pytest.mark.slow
def test_a_snapshot_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = write_bomb(tmp_path / "snapshot.pickle.gz", b"\x80\x04]", b"N", SIZE)
    ending = run_limited(
        """
from stepscope.errors import StepscopeError
from stepscope.memory.load import load_snapshot
try:
    load_snapshot(arguments[0])
except StepscopeError as error:
    answer = str(error)
""",
        path,
    )
    assert ending.exit_code == 0, ending.errors[-2000:]
    assert "holds more than" in ending.answer
    assert ending.peak_bytes < 1_000_000_000


@pytest.mark.parametrize("given", ["much", "0", "-3GB", "3 apples"])
def test_the_limit_is_a_size(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(limits.VARIABLE, given)
    with pytest.raises(UsageError, match="is not a size such as 200GB"):
        load(io.BytesIO(gzip.compress(b"[]")))
    with pytest.raises(UsageError, match="is not a size such as 200GB"):
        load_snapshot(io.BytesIO(gzip.compress(b"\x80\x04N.")))
