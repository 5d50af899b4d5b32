"""A census says whose each block was, by address and time."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.census import (
    CLOCK_TOLERANCE_NS,
    SIGHTINGS,
    Census,
    census_path,
    join_census,
    parse_census,
    read_census,
)
from stepscope.memory.replay.allocations import ALLOCATIONS

HEAD = {"census": 1, "clock": "unix_ns"}
MS = 1_000_000


def census(*records):
    return parse_census([json.dumps(record).encode() for record in (HEAD, *records)], "a file")


def lives(*rows):
    """Allocations from (device, address, bytes, start, free); None: not in the recording."""
    table = {name: [] for name in ALLOCATIONS}
    for number, (device, address, size, start, free) in enumerate(rows):
        known = {
            "allocation": number, "device": device, "address": address, "requested_bytes": size,
            "size_bytes": size, "start_event": None if start is None else number,
            "start_ns": start, "free_ns": free,
        }  # fmt: skip
        for name, column in table.items():
            column.append(known.get(name))
    return pl.DataFrame(table, schema=ALLOCATIONS)


def test_lines_become_sightings():
    found = census(
        {"names": ["a.weight", "b.bias"]},
        {"kind": "parameter", "device": 1, "time_ns": 7, "step": 3, "addresses": [10, 20],
         "bytes": [4, 8], "names": [1, None]},
        {"names": ["c"]},
        {"kind": "activation", "device": 0, "times_ns": [8, 9], "addresses": [30, 40],
         "names": [2, 99]},
    )  # fmt: skip
    assert found.skipped_lines == 0
    assert found.sightings.schema == SIGHTINGS
    assert found.sightings.rows() == [
        ("parameter", 1, 7, 3, 10, 4, "b.bias"),
        ("parameter", 1, 7, 3, 20, 8, None),
        ("activation", 0, 8, None, 30, None, "c"),
        ("activation", 0, 9, None, 40, None, None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b'{"kind": "treasure", "device": 0, "time_ns": 1, "addresses": [1]}',
        b'{"kind": "input", "device": 0, "time_ns": 1, "addresses": 5}',
        b'{"kind": "input", "device": 0, "time_ns": 1, "addresses": [1], "bytes": [1, 2]}',
        b'{"kind": "input", "device": "x", "time_ns": 1, "addresses": [1]}',
        b'{"kind": "input", "device": 0, "time_ns": 1, "addresses": ["x"]}',
        b'{"kind": "input", "device": 0, "time_ns": 1e400, "addresses": [1]}',
        b'{"kind": ["input"], "device": 0, "time_ns": 1, "addresses": [1]}',
        b'{"kind": "input", "device": 0, "time_ns": 1, "addresses": [1], "names": [[]]',
    ],
)
def test_damaged_lines_are_skipped_and_counted(line):
    good = b'{"kind": "input", "device": 0, "time_ns": 1, "addresses": [5]}'
    found = parse_census([json.dumps(HEAD).encode(), line, good], "a file")
    assert found.skipped_lines == 1
    assert found.sightings["address"].to_list() == [5]


def test_a_file_that_is_no_census_is_refused(tmp_path):
    path = census_path(tmp_path / "x.pickle")
    assert path.name == "x.pickle.census.jsonl"
    with pytest.raises(UnreadableInputError, match=r"x\.pickle\.census\.jsonl"):
        read_census(path)
    for text in ("hello\n", '{"census": 2}\n'):
        path.write_text(text)
        with pytest.raises(UnreadableInputError, match="version"):
            read_census(path)
    path.write_text(json.dumps(HEAD) + "\n")
    assert read_census(path).sightings.is_empty()


def test_a_block_that_was_seen_as_several_kinds_is_the_first_in_rank():
    found = join_census(
        census(
            {"kind": "activation", "device": 0, "time_ns": 20, "addresses": [512]},
            {"names": ["w"]},
            {"kind": "parameter", "device": 0, "time_ns": 30, "addresses": [512], "names": [0]},
        ),
        lives((0, 512, 100, 10, 50)),
    )
    assert found.allocations.rows() == [(0, "parameter", "w")]
    assert found.unmatched == 0


def test_what_is_too_large_for_a_block_does_not_belong_to_it():
    seen = {"kind": "input", "device": 0, "time_ns": 20, "addresses": [512], "bytes": [101]}
    found = join_census(census(seen), lives((0, 512, 100, 10, 50)))
    assert found.allocations.is_empty()
    assert found.unmatched == 1


def test_a_census_without_allocations_matches_nothing():
    seen = {"kind": "input", "device": 0, "time_ns": 20, "addresses": [512]}
    assert join_census(census(seen), lives()).unmatched == 1
    assert join_census(census(), lives((0, 1, 1, 1, 1))).allocations.is_empty()


def test_clocks_may_differ_by_a_little():
    blocks = lives((0, 512, 100, 10 * MS, 50 * MS))
    for off, is_found in ((-MS, True), (-3 * MS, False)):
        seen = {"kind": "input", "device": 0, "time_ns": 10 * MS + off, "addresses": [512]}
        assert join_census(census(seen), blocks).unmatched == (not is_found)
    for off, is_found in ((MS, True), (3 * MS, False)):
        seen = {"kind": "input", "device": 0, "time_ns": 50 * MS + off, "addresses": [512]}
        assert join_census(census(seen), blocks).unmatched == (not is_found)


TIMES = st.integers(0, 12).map(lambda number: number * 10 * CLOCK_TOLERANCE_NS)


@st.composite
def histories(draw):
    """Blocks that follow one another at a few addresses of two devices."""
    rows = []
    for device in (0, 1):
        for address in (512, 1024, 4096):
            cuts = sorted(draw(st.sets(TIMES, max_size=8)))
            for start, free in zip(cuts[::2], cuts[1::2], strict=False):
                rows.append((device, address, draw(st.sampled_from([64, 128])), start, free))
    return rows


SEEN = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.sampled_from([512, 1024, 4096, 9999]),
        st.sampled_from([None, 64, 128]),
        TIMES.map(lambda time: time + 5 * CLOCK_TOLERANCE_NS),
    ),
    max_size=20,
)


@given(histories(), SEEN)
def test_the_block_is_the_one_that_lived_there_then(rows, seen):
    table = pl.DataFrame(
        [("input", d, t, None, a, size, f"name {k}") for k, (d, a, size, t) in enumerate(seen)],
        schema=SIGHTINGS,
        orient="row",
    )
    found = join_census(Census(table, 0), lives(*rows))
    expected, unmatched = {}, 0
    for number, (device, address, size, time) in enumerate(seen):
        mine = [
            k for k, (d, a, room, start, free) in enumerate(rows)
            if (d, a) == (device, address) and start <= time < free and (size or 0) <= room
        ]  # fmt: skip
        unmatched += not mine
        for block in mine:
            expected.setdefault(block, []).append((time, number))
    assert found.unmatched == unmatched
    assert dict(found.allocations.select("allocation", "name").iter_rows()) == {
        block: f"name {min(sightings)[1]}" for block, sightings in expected.items()
    }
