"""The step record's lines: there and back, and what a killed process leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.run.step_record import (
    MOST_PHASE_NAMES,
    StepRecord,
    decode_step,
    encode_step,
    read_steps,
)

wholes = st.integers(-(2**53), 2**53)
optional = st.none() | wholes
peaks = st.integers(1, 4).flatmap(
    lambda n: st.tuples(*[st.tuples(*[wholes] * n), st.tuples(*[wholes] * n)])
)
records = st.builds(
    lambda peak, **rest: StepRecord(
        **rest, peak_allocated_bytes=peak[0], peak_reserved_bytes=peak[1]
    ),
    peak=st.just(((), ())) | peaks,
    step=wholes,
    start_ns=wholes,
    dur_ns=wholes,
    data_wait_ns=wholes,
    phases=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), wholes),
    kind=st.sampled_from(["train", "evaluation", "checkpoint", 'odd "kind"\n']),
    is_partial=st.booleans(),
    window=optional,
    gc_ns=wholes,
    compile_ns=wholes,
    tokens=optional,
    samples=optional,
    device_ns=optional,
    device_phases=st.dictionaries(st.sampled_from(["forward", "a/b"]), wholes),
)


@given(records)
def test_a_record_survives_the_round_trip(record):
    line = encode_step(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_step(line) == record


def test_defaults_are_left_out():
    line = encode_step(StepRecord(3, 10, 20))
    assert line == b'{"step":3,"start_ns":10,"dur_ns":20,"data_wait_ns":0}\n'


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"[]", "object"),
        (b'{"step":1,"start_ns":2}', "dur_ns"),
        (b'{"step":1.5,"start_ns":2,"dur_ns":3}', "1.5"),
        (b'{"step":true,"start_ns":2,"dur_ns":3}', "True"),
        (b'{"step":1,"start_ns":2,"dur_ns":3,"phases":4}', "not iterable"),
        (b'{"step":1,"start_ns":2,"dur_ns":3,"phases":[1]}', "sequence"),
        (b'{"step":1,"start_ns":2,"dur_ns":3,"peak_allocated_bytes":7}', "not iterable"),
        (b'{"step":1,"st', "JSON|unexpected end|unclosed"),
        (b"\xff\xfe", "UTF-8|JSON"),
    ],
)
def test_what_is_no_record_says_why(line, word):
    with pytest.raises(ValueError, match=word):
        decode_step(line)


def test_a_truncated_last_line_costs_that_line_only(tmp_path):
    path = tmp_path / "steps.jsonl"
    lines = [encode_step(StepRecord(n, n, 1)) for n in range(3)]
    path.write_bytes(b"".join(lines)[:-9])
    found, problems = read_steps(path)
    assert [record.step for record in found] == [0, 1]
    assert len(problems) == 1
    assert "line 3" in problems[0]


def test_a_bad_line_in_the_middle_is_skipped_and_reported(tmp_path):
    path = tmp_path / "steps.jsonl"
    good = encode_step(StepRecord(0, 0, 1))
    path.write_bytes(good + b"\x00\x00\n" + good)
    found, problems = read_steps(path)
    assert len(found) == 2
    assert len(problems) == 1


def test_a_missing_file_has_no_records(tmp_path):
    assert read_steps(tmp_path / "steps.jsonl") == ([], [])


def test_names_of_phases_with_numbers_in_them_are_added_up(tmp_path):
    path = tmp_path / "steps.jsonl"
    written = [
        StepRecord(step, 0, 100, phases={f"batch {step}": 30, f"batch {step}/part": 10, "all": 50})
        for step in range(2000)
    ]
    path.write_bytes(b"".join(map(encode_step, written)))
    read, problems = read_steps(path)
    (problem,) = problems
    assert "more phases" in problem
    names = {name for record in read for name in record.phases}
    assert len(names) <= MOST_PHASE_NAMES + 2  # with a known one that had others inside
    assert read[0].phases == written[0].phases
    assert read[-1].phases == {"all": 50, "more phases": 30}
    for record in read:  # nothing is lost, and nothing counts twice
        assert sum(ns for name, ns in record.phases.items() if "/" not in name) == 80


def test_phases_inside_a_known_one_stay_inside_it(tmp_path):
    path = tmp_path / "steps.jsonl"
    written = [StepRecord(step, 0, 9, phases={"a": 5, f"a/{step}": 3}) for step in range(400)]
    path.write_bytes(b"".join(map(encode_step, written)))
    read, _ = read_steps(path)
    assert read[-1].phases == {"a": 5, "a/more phases": 3}


def test_a_few_hundred_phases_are_left_as_they_are(tmp_path):
    path = tmp_path / "steps.jsonl"
    phases = {f"phase {number}": number for number in range(MOST_PHASE_NAMES)}
    path.write_bytes(encode_step(StepRecord(0, 0, 10**6, phases=phases)))
    assert read_steps(path) == ([StepRecord(0, 0, 10**6, phases=phases)], [])
