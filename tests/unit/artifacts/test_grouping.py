"""The table of operators by shape and by source line: parts of the table by name."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.artifacts.calls import gather
from stepscope.artifacts.key_averages import key_averages, write_csv, write_text

SUMS = ("self_cpu_ns", "self_device_ns", "self_cpu_bytes")


def event(name, start, dur, category="cpu_op", **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": dur,
        "pid": 1,
        "tid": 1,
        "args": args,
    }


def trace():
    return [
        event("train.py(3): main", 0, 100, "python_function"),
        event("train.py(9): step", 1, 60, "python_function"),
        event("torch/nn/functional.py(2): linear", 2, 20, "python_function"),
        event("<built-in function linear>", 3, 18, "python_function"),
        event("aten::linear", 4, 16, **{"Input Dims": [[8, 16], [4, 16], []], "External id": 1}),
        event("aten::mm", 5, 10, **{"Input Dims": [[8, 16], [16, 4]], "External id": 2}),
        event("aten::mm", 30, 10, **{"Input Dims": [[2, 2], [2, 2]], "External id": 3}),
        event("aten::mm", 70, 10, **{"Input Dims": [[8, 16], [16, 4]], "External id": 4}),
        event("gemm", 6, 50, "kernel", **{"External id": 2}),
    ]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("name", {("", "")}),
        ("shape", {("[8, 16], [16, 4]", ""), ("[2, 2], [2, 2]", "")}),
        ("source", {("", "train.py(9): step"), ("", "train.py(3): main")}),
        (
            "recorded",
            {
                ("[8, 16], [16, 4]", "train.py(9): step"),
                ("[2, 2], [2, 2]", "train.py(9): step"),
                ("[8, 16], [16, 4]", "train.py(3): main"),
            },
        ),
    ],
)
def test_the_rows_of_one_name(by, groups):
    averages = key_averages(gather(trace(), {}), by)
    rows = {(row.shapes, row.source): row for row in averages.operators if row.name == "aten::mm"}
    assert rows.keys() == groups
    assert sum(row.calls for row in rows.values()) == 3
    assert sum(row.self_device_ns for row in rows.values()) == 50_000


def test_without_shapes_and_stacks_the_recorded_grouping_is_by_name(tmp_path):
    bare = [event("aten::mm", 5, 10), event("aten::mm", 30, 10)]
    averages = key_averages(gather(bare, {}), "recorded")
    assert not averages.has_shapes
    assert not averages.has_sources
    write_csv(averages, tmp_path / "t.csv")
    head, row = csv.reader((tmp_path / "t.csv").read_text().splitlines())
    assert "shapes" not in head
    assert row[1:3] == ["aten::mm", "2"]


def test_text_and_csv_have_the_groups(tmp_path):
    averages = key_averages(gather(trace(), {}), "both")
    write_text(averages, tmp_path / "t.txt", 100)
    lines = (tmp_path / "t.txt").read_text().splitlines()
    assert lines[2].split()[-3:] == ["Input", "shapes", "Source"]
    assert any("[2, 2], [2, 2]  train.py(9): step" in line for line in lines)
    write_csv(averages, tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert {row["source"] for row in rows if row["name"] == "aten::linear"} == {"train.py(9): step"}


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["aten::a", "aten::b", "x.py(1): f", "torch/y.py(2): g"]),
        st.integers(0, 60),
        st.integers(1, 40),
        st.sampled_from([None, [[1]], [[2], []]]),
    ),
    max_size=20,
)


@given(CALLS, st.sampled_from(["shape", "source", "both", "recorded"]))
def test_the_groups_of_a_name_add_up_to_its_row(calls, by):
    events = []
    for name, start, dur, shape in calls:
        category = "cpu_op" if name.startswith("aten") else "python_function"
        args = {} if shape is None else {"Input Dims": shape}
        events.append(event(name, start, dur, category, **args))
    whole = {row.name: row for row in key_averages(gather(events, {})).operators}
    parts = key_averages(gather(events, {}), by).operators
    assert {row.name for row in parts} == set(whole)
    for name, row in whole.items():
        for column in SUMS:
            total = sum(getattr(part, column) for part in parts if part.name == name)
            assert total == getattr(row, column)
        assert all(part.calls > 0 for part in parts)
        # A call inside one of the same name but of another group is a call of its own.
        assert sum(part.calls for part in parts if part.name == name) >= row.calls
