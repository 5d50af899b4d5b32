"""What a killed process leaves: the steps in the ring that are not in the file."""

from __future__ import annotations

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
from stepscope.run.step_ring import (
    AFTER_CALL,
    BEGINS,
    DETAILED,
    NOTHING,
    PARTIAL,
    RING_BYTES,
    SLOT_BYTES,
    TEXT_START,
    WINDOW_BIT,
    StepDecoder,
    create_ring,
    read_ring,
)

EPOCH_NS = 1_000_000
OF_STEP = [
    {},
    {"phases": {"forward": 3, "saving": 7}, "loss": 0.5},
    {"phases": {"forward": 4, "backward": 0, "optimizer": 2}, "tokens": 0, "samples": 5},
    {"phases": {"forward": 6, "backward/communication": 2}},
]
"""What a step has beside its times: of four, the third is as most steps are."""
RECORDS = [
    StepRecord(
        step,
        EPOCH_NS + 100 * (step + 1),
        100,
        cpu_ns=60,
        queued_ns=5,
        data_wait_ns=step,
        data_wait_cpu_ns=step,
        **OF_STEP[step % 4],
    )
    for step in range(9)
]


def reading(record, *, flags=0):
    """The reading at the end of a step."""
    end_ns = record.start_ns + record.dur_ns - EPOCH_NS
    details, usual = None, NOTHING
    if "optimizer" in record.phases:
        usual = (*record.phases.values(), -1, record.tokens, record.samples)
    elif record.phases:
        details = {"phases": record.phases}
        details |= {} if record.loss is None else {"loss": record.loss}
    flags |= DETAILED if details else 0
    turns = end_ns // 100
    wait_ns = record.data_wait_ns
    ran_ns = 60 * turns
    return (
        end_ns,
        record.step,
        ran_ns,
        1 + 5 * turns,
        *(0, 0, 0),
        wait_ns,
        wait_ns,
        flags,
        *usual,
        end_ns,
        details,
    )


@pytest.mark.parametrize(
    ("after_us", "forward_us", "kept"),
    [(90, 200, False), (150, 200, True), (150, 700, True), (150, 800, False)],
)
@pytest.mark.parametrize("is_usual", [True, False])
def test_what_follows_the_models_call_is_kept_where_it_is_long(
    after_us, forward_us, kept, is_usual
):
    """From 0.1 ms and a fifth of forward on, in a step like others and in one that is not."""
    forward_ns, after_ns = forward_us * 1000, after_us * 1000
    usual, details = (forward_ns, 5, 6, after_ns, -1, -1), None
    if not is_usual:
        phases = {"forward": forward_ns, "backward": 5, "optimizer": 6}
        usual, details = NOTHING, {"phases": phases, AFTER_CALL: after_ns}
    decoder = StepDecoder(0)
    decoder.begin((0, 0, 0, 1, 0, 0, 0, 0, 0, 0, *NOTHING, 0, None))
    found = decoder.fields((9**9, 1, 0, 1, 0, 0, 0, 0, 0, 0, *usual, 9**9, details))
    assert found["phases"] == {"forward": forward_ns, "backward": 5, "optimizer": 6}
    assert found.get(AFTER_CALL) == (after_ns if kept else None)


def put(ring, row):
    if row[-1]:
        ring.put_text(row[0], row[-1])
    ring.put(row)


@pytest.fixture
def rank(tmp_path):
    return RankLayout(tmp_path)


def leave(rank, in_file, in_ring, torn=b""):
    rank.steps.write_bytes(b"".join(map(encode_step, in_file)) + torn)
    ring = create_ring(rank.ring, EPOCH_NS)
    first = in_ring[0]
    begin = StepRecord(first.step, first.start_ns - 100, 100)
    put(ring, reading(begin, flags=BEGINS))
    for record in in_ring:
        put(ring, reading(record))
    ring.close()


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


@given(at=st.integers(SLOT_BYTES, 10 * SLOT_BYTES), size=st.integers(1, 300))
def test_what_was_not_written_whole_is_no_step(tmp_path_factory, at, size):
    """A part of the readings that still is what was there before: the others are right."""
    rank = RankLayout(tmp_path_factory.mktemp("rank"))
    leave(rank, [], RECORDS)
    data = bytearray(rank.ring.read_bytes())
    data[at : at + size] = bytes(len(data[at : at + size]))
    rank.ring.write_bytes(data)
    found, problems = read_steps(rank.steps)
    assert problems == []
    assert len(found) >= len(RECORDS) - 5
    inside = {
        step
        for step in range(-1, 9)
        if at < (step + 3) * SLOT_BYTES and at + size > (step + 2) * SLOT_BYTES
    }
    for record in found:
        if not {record.step, record.step - 1} & inside:
            assert record == RECORDS[record.step]


@pytest.mark.parametrize("cut", [0, 1, 10, 20])
def test_a_line_of_text_that_was_cut_is_no_detail_of_a_step(rank, cut):
    leave(rank, [], RECORDS)
    data = bytearray(rank.ring.read_bytes())
    start = data.index(b"\n", TEXT_START) + 1 + cut
    data[start : start + 8] = b'"forward'
    rank.ring.write_bytes(data)
    assert [record.step for record in read_steps(rank.steps)[0]] == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("steps", [2000, 2047, 2048, 5000])
def test_the_newest_steps_are_there_however_many_there_were(rank, steps):
    turns = []
    ring = create_ring(rank.ring, EPOCH_NS)
    ring.turned = lambda: turns.append(len(turns))
    for step in range(-1, steps):
        phases = {"forward": step, "more": 10**12} if step % 3 else {}
        put(ring, reading(StepRecord(step, EPOCH_NS + 100 * (step + 2), 100, phases=phases)))
    found = read_ring(rank.ring)
    newest = [fields["step"] for fields in found if fields["step"] >= steps - 1000]
    assert newest == list(range(steps - 1000, steps))
    assert found[-1].get("phases", {}) == (
        {"forward": steps - 1, "more": 10**12} if (steps - 1) % 3 else {}
    )
    assert len(turns) >= steps // 513
    ring.close()


def test_a_reading_says_what_the_step_was(rank):
    ring = create_ring(rank.ring, EPOCH_NS)
    put(ring, reading(RECORDS[3], flags=BEGINS))
    put(ring, reading(RECORDS[3], flags=PARTIAL | 5 << WINDOW_BIT))
    (fields,) = read_ring(rank.ring)
    assert (fields["is_partial"], fields["window"]) == (True, 4)
    ring.close()


@pytest.mark.parametrize(
    "data", [b"", b"steps 2\n", b"steps 2\n" + b"\xff" * RING_BYTES, b"\xff" * RING_BYTES]
)
def test_what_is_no_ring_is_left_out(rank, data):
    rank.steps.write_bytes(encode_step(RECORDS[0]))
    rank.ring.write_bytes(data)
    assert read_steps(rank.steps) == (RECORDS[:1], [])


@pytest.mark.parametrize("kind", ["ext4", "nfs"])
def test_a_ring_is_reserved_written_and_freed(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("stepscope.run.step_ring._file_system", lambda _: kind)
    ring = create_ring(tmp_path / "ring", EPOCH_NS)
    assert ring is not None
    for record in RECORDS[2:4]:
        put(ring, reading(record))
    assert (tmp_path / "ring").stat().st_size == RING_BYTES
    (fields,) = read_ring(tmp_path / "ring")
    assert (fields["step"], fields["phases"]) == (3, RECORDS[3].phases)
    ring.close()
    assert create_ring(tmp_path / "ring", 0) is None  # never over that of another process
    assert create_ring(tmp_path / "missing" / "ring", 0) is None
