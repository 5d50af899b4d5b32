"""What a killed process leaves: the steps in the ring that are not in the file."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.run.layout import RankLayout
from stepscope.run.step_record import (
    StepRecord,
    complete_steps,
    encode_step,
    read_last_steps,
    read_steps,
)
from stepscope.run.step_ring import RING_BYTES, create_ring, read_ring

RECORDS = [StepRecord(step, 100 * step, 90, phases={"forward": step}) for step in range(9)]


def line_of(record):
    return orjson.dumps(
        (dataclasses.astuple(record), record.start_ns), option=orjson.OPT_APPEND_NEWLINE
    )


@pytest.fixture
def rank(tmp_path):
    return RankLayout(tmp_path)


def leave(rank, in_file, in_ring, torn=b""):
    rank.steps.write_bytes(b"".join(map(encode_step, in_file)) + torn)
    rank.ring.write_bytes(b"".join(map(line_of, in_ring)) + bytes(1000))


@pytest.mark.parametrize("written", [0, 1, 5, 9])
@pytest.mark.parametrize("torn", [0, 20])
def test_steps_of_file_and_ring_are_one_record(rank, written, torn):
    half = encode_step(RECORDS[written])[:torn] if written < 9 else b""
    leave(rank, RECORDS[:written], RECORDS[2 if written > 2 else 0 :], half)
    assert read_steps(rank.steps) == (RECORDS, [])
    assert read_last_steps(rank.steps, 3) == RECORDS[-3:]
    complete_steps(rank.steps)
    assert not rank.ring.exists()
    assert rank.steps.read_bytes() == b"".join(map(encode_step, RECORDS))
    complete_steps(rank.steps)
    assert read_steps(rank.steps) == (RECORDS, [])


@given(st.data())
def test_a_row_that_was_cut_is_no_step(data):
    """A new row over older ones, cut at any byte: what can be read are whole rows alone."""
    old, new = RECORDS[0], StepRecord(7, 777, 1, kind="evaluation")
    cut = data.draw(st.integers(0, len(line_of(new))))
    found = rows_of(line_of(new)[:cut] + (3 * line_of(old))[cut:])
    whole = [orjson.loads(line_of(one))[0] for one in (old, new)]
    assert all(row in whole for row in found)
    assert cut < len(line_of(new)) or whole[1] in found


def rows_of(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ring"
        path.write_bytes(data)
        return read_ring(path)


@pytest.mark.parametrize(
    "data", [b"\n[1]\n[[1],1]\n[[1,2],2]\n{}\nnull\n[[0,[5]],[5]]\n", b"\xff" * 5000, b"[" * 5000]
)
def test_what_is_no_row_is_left_out(rank, data):
    rank.steps.write_bytes(encode_step(RECORDS[0]))
    rank.ring.write_bytes(data)
    assert read_steps(rank.steps) == (RECORDS[:1], [])


def test_a_ring_is_reserved_written_and_freed(tmp_path):
    ring = create_ring(tmp_path / "ring")
    assert ring is not None
    line = line_of(RECORDS[3])
    ring[0 : len(line)] = line
    assert (tmp_path / "ring").stat().st_size == RING_BYTES
    assert read_ring(tmp_path / "ring")[0][:2] == [3, 300]
    ring.close()
    assert create_ring(tmp_path / "ring") is None  # never over that of another process
    assert create_ring(tmp_path / "missing" / "ring") is None
