"""Every program, schema and form of a snapshot gives the same rows as its dictionaries."""

from __future__ import annotations

import copy
import gzip
import json
import pickle

import numpy as np
import polars as pl
import pytest
from tests.support.snapshot_tables import (
    Found,
    expected_events,
    expected_segments,
    loaded,
    stack_of,
)
from tests.support.snapshots import FORMS, PROGRAMS, SCHEMAS, pickled_by_torch, plain_training

from stepscope.memory.reading import parse
from stepscope.memory.schema import TABLES
from stepscope.memory.view import MemoryView


def check(snapshot, data):
    read = loaded(data)
    found = Found(read)
    assert found.events() == expected_events(snapshot)
    assert found.segments() == expected_segments(snapshot)
    for name, types in TABLES.items():
        table = getattr(read, name)
        assert dict(table.collect_schema() if name == "events" else table.schema) == types
    return read


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_program_in_every_schema(program, schema):
    snapshot = SCHEMAS[schema](PROGRAMS[program]())
    read = check(snapshot, pickle.dumps(snapshot, 4))
    assert read.problems["problem"].to_list() == []
    if not isinstance(snapshot, list):
        assert read.settings == snapshot.get("allocator_settings", {})


@pytest.mark.sampled(40)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("program", ["training", "out of memory", "graph pools"])
def test_every_form(program, schema, form):
    snapshot = SCHEMAS[schema](PROGRAMS[program]())
    check(snapshot, FORMS[form](snapshot))


@pytest.mark.parametrize("form", ["protocol 2", "protocol 4", "torch", "json"])
def test_files_whose_values_take_64_bits(form, monkeypatch):
    """As of 4 GB on; the loops are other machine code then."""
    kinds = []

    def wide(_walk, _containers):
        kinds.append(np.int64)
        return np.int64

    monkeypatch.setattr(parse._Walk, "_handle", wide)
    for schema in ("today", "torch 2.0"):
        snapshot = SCHEMAS[schema](PROGRAMS["graph pools"]())
        check(snapshot, FORMS[form](snapshot))
    assert kinds


def test_the_pickle_of_torchs_writer_is_a_pickle():
    snapshot = plain_training()
    assert pickle.loads(pickled_by_torch(snapshot)) == snapshot


def test_a_packed_snapshot():
    snapshot = plain_training()
    check(snapshot, gzip.compress(pickle.dumps(snapshot, 4)))


def test_equal_stacks_and_frames_are_kept_once_whether_shared_or_not():
    snapshot = plain_training()
    stacks = {stack_of(event["frames"]) for event in snapshot["device_traces"][0]}
    stacks |= {stack_of(s["frames"]) for s in snapshot["segments"]}
    stacks |= {stack_of(b["frames"]) for s in snapshot["segments"] for b in s["blocks"]}
    frames = {frame for stack in stacks - {None} for frame in stack}
    for data in (
        pickle.dumps(snapshot, 4),
        pickle.dumps(json.loads(json.dumps(snapshot)), 4),
        json.dumps(snapshot).encode(),
    ):
        read = loaded(data)
        assert len(read.stacks) == len(stacks - {None})
        assert sorted(row[1:4] for row in read.frames.iter_rows()) == sorted(frames)


def test_annotations_in_the_order_of_the_file():
    snapshot = plain_training()
    rows = [
        (a["device"], a["name"], a["stage"] == "START", a["time_us"] * 1000)
        for a in snapshot["external_annotations"]
    ]
    assert rows
    assert list(loaded(pickle.dumps(snapshot)).annotations.iter_rows()) == rows


def test_long_lists_come_in_pieces():
    """Python writes a list in pieces of a thousand."""
    snapshot = plain_training()
    event = snapshot["device_traces"][0][3]
    snapshot["device_traces"][0] = [{**event, "addr": k} for k in range(4321)]
    for form in FORMS.values():
        read = check(snapshot, form(snapshot))
        assert read.events.select("address").collect()["address"].to_list() == list(range(4321))


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (0, 0), (255, 255), (256, 256), (65535, 65535), (65536, 65536), (-1, -1), (-129, -129),
        (2**31 - 1, 2**31 - 1), (2**31, 2**31), (-(2**31), -(2**31)), (2**47 + 512, 2**47 + 512),
        (2**59, 2**59), (2**70, None), (1.5, None), (True, None), ("12", None),
        ([1], None), ({}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_every_width(number, kept, form):
    snapshot = {
        "segments": [],
        "device_traces": [[{"action": "alloc", "addr": 512, "size": 1, "stream": number}]],
    }
    if form == "torch" and isinstance(number, int) and number >= 2**63:
        pytest.skip("torch's writer has no longer numbers")
    read = loaded(FORMS[form](snapshot))
    assert read.events.select("stream").collect()["stream"].to_list() == [kept]
    assert read.problems["problem"].to_list() == ([] if kept is not None else ["bad_value"])


def test_none_is_a_number_that_the_file_does_not_say():
    """torch's CPU view of a profile writes None for addresses."""
    trace = [{"action": "alloc", "addr": None, "size": 1, "stream": None}]
    read = loaded(pickle.dumps({"segments": [], "device_traces": [trace]}))
    assert read.events.select("address", "stream").collect().rows() == [(None, None)]
    assert read.problems.is_empty()


@pytest.mark.parametrize("form", FORMS)
def test_hostile_names_are_only_data(form):
    names = [
        "<script>alert(1)</script>", "'; DROP TABLE events; --", "../../../etc/passwd", "a\x00b",
        "\\u0041 \\", 'quote " and \\" more', "\u2028 𝄞 é", "x" * 300, "size", "N/A",
    ]  # fmt: skip
    snapshot = plain_training()
    for event, name in zip(snapshot["device_traces"][0], names, strict=False):
        event["frames"] = [{"name": name, "filename": name[::-1], "line": 3}]
        event["user_metadata"] = name
    found = Found(loaded(FORMS[form](snapshot))).events()
    assert found == expected_events(snapshot)


def test_halves_of_surrogate_pairs_are_replaced():
    snapshot = plain_training()
    snapshot["device_traces"][0][0]["user_metadata"] = "half \ud800 pair"
    for form in ("protocol 4", "json"):
        texts = loaded(
            FORMS[form](snapshot) if form == "json" else pickle.dumps(snapshot, 4)
        ).texts["value"]
        assert "half" in texts[0]
        assert "pair" in texts[0]
        texts.str.to_uppercase()  # what is not valid UTF-8 fails here


def test_frames_with_more_keys_are_kept_apart():
    frame = {"name": "f", "filename": "g.py", "line": 1}
    more = {**frame, "fx_node_op": "call_function", "fx_original_trace": "y = relu(x)"}
    event = {"action": "alloc", "addr": 1, "size": 1, "stream": 0}
    trace = [{**event, "frames": [frame]}, {**event, "frames": [more]}]
    read = loaded(pickle.dumps({"segments": [], "device_traces": [trace]}))
    kept = read.frames.select("name", "line", "more").rows()
    assert kept[0] == ("f", 1, None)
    assert kept[1][:2] == ("f", 1)
    assert json.loads(kept[1][2]) == {
        "fx_node_op": "call_function",
        "fx_original_trace": "y = relu(x)",
    }


def test_what_is_not_understood_is_counted():
    snapshot = copy.deepcopy(plain_training())
    trace = snapshot["device_traces"][0]
    trace[0]["action"] = "defragment"
    trace[1]["temperature"] = 3
    trace[2]["size"] = -5
    trace.append("no event")
    snapshot["segments"][0]["blocks"][0]["state"] = "borrowed"
    snapshot["segments"].append(7)
    snapshot["external_annotations"].append({"name": "x"})
    snapshot["host_traces"] = [[1, 2]]
    read = loaded(pickle.dumps(snapshot))
    problems = dict(read.problems.select("problem", "count").iter_rows())
    assert problems == {
        "bad_value": 1,
        "extra_keys": 1,
        "host_memory": 2,
        "not_a_record": 3,
        "unknown_word": 2,
    }
    events = read.events.collect()
    assert len(events) == len(trace) - 1
    assert events["action"][0] == "other"
    assert events["size_bytes"][2] is None


def test_pinned_host_memory_is_summed_up():
    snapshot = plain_training()
    snapshot["host_segments"] = [
        {"address": 1, "total_size": 3 << 20, "blocks": [], "numa_node": 0}, {"total_size": 1 << 20}
    ]  # fmt: skip
    view = MemoryView(loaded(pickle.dumps(snapshot)))
    assert view.snapshot.problems.is_empty()
    assert any("4 MiB of pinned host memory" in note for note in view.notes(0))


def test_metadata_may_be_rich():
    event = {"action": "alloc", "addr": 1, "size": 1, "stream": 0}
    trace = [{**event, "user_metadata": {"layer": 3, "kind": ["a", None]}}, event]
    read = loaded(pickle.dumps({"segments": [], "device_traces": [trace]}))
    assert json.loads(read.texts["value"][0]) == {"layer": 3, "kind": ["a", None]}
    assert read.events.select(pl.col("metadata")).collect()["metadata"].to_list() == [0, None]
