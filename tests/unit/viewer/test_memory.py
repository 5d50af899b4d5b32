"""The memory view's server: bounded pictures of a history, against what `stepscope memory` says."""

from __future__ import annotations

import json
import os
import pickle
import time

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.allocator import Allocator
from tests.support.snapshots import out_of_memory, train, two_devices
from tests.support.step_records import step_records, write_run
from tests.support.viewer import PATIENCE_S, decode, serving, training, viewing

from stepscope.commands.main import cli
from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.kinds import STACKED
from stepscope.memory.opening import open_snapshot
from stepscope.memory.questions.timeline import timeline
from stepscope.memory.view import held_at
from stepscope.run.layout import RankLayout
from stepscope.viewer.memory.history import MOST_DRAWN, DeviceHistory
from stepscope.viewer.memory.moments import CELLS, MOST_SEGMENTS, segments_at
from stepscope.viewer.origins import origins_of


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    found = {
        "training": train(Allocator(), steps=4, layers=10).snapshot(),
        "failed": out_of_memory(),
        "two": two_devices(),
    }
    for name, snapshot in found.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(snapshot))
    return folder


@pytest.fixture(scope="module")
def view(files):
    return open_snapshot(str(files / "training.pickle"))


@pytest.fixture(scope="module")
def history(view):
    return DeviceHistory(view, 0, view.origin_ns)


@pytest.fixture(scope="module")
def viewer(files):
    with serving([files / "training.pickle", files / "failed.pickle"]) as client:
        client.enter()
        wait(client)
        yield client


def wait(client):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        status = client.post("/api/traces/{}/memory/open", {}).json
        assert status["stage"] != "failed", status
        if status["stage"] == "ready":
            return
        time.sleep(0.02)
    raise AssertionError("the memory is never ready")


def said(*words):
    """What the command line says, as JSON."""
    found = CliRunner().invoke(cli, ["memory", *map(str, words), "--format", "json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_the_columns_of_a_whole_history_are_the_timeline_s_rows(view, history):
    asked = timeline(view, buckets=200).timeline
    found = history.columns(by_event=False, start=0, end=2**50, number=200)
    shown = np.searchsorted(found.event, asked["event"].to_numpy())
    assert (found.event[shown] == asked["event"].to_numpy()).all()
    assert (found.allocated_bytes[shown] == asked["allocated_bytes"].to_numpy()).all()
    assert (found.reserved_bytes[shown] == asked["reserved_bytes"].to_numpy()).all()
    for place, category in enumerate(STACKED):
        name = f"{category}_bytes"
        known = asked[name].to_numpy() if name in asked.columns else 0
        assert (found.categories[place][shown] == known).all()


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_each_column_is_what_was_held_at_its_moment(view, history, data):
    by_event = data.draw(st.booleans())
    last = int(history.axis(by_event)[-1])
    start = data.draw(st.integers(-last, last))
    end = data.draw(st.integers(start, 2 * last + 1))
    found = history.columns(by_event, start, end, data.draw(st.integers(1, 60)))
    assert (np.diff(found.event) >= 0).all()
    assert (found.categories.sum(axis=0) == found.allocated_bytes).all()
    assert (found.reserved_bytes >= found.allocated_bytes).all()
    column = data.draw(st.integers(0, len(found.event) - 1))
    held = held_at(view.allocations, 0, int(found.event[column])).filter(pl.col("size_bytes") > 0)
    assert found.allocated_bytes[column] == held["size_bytes"].sum()
    drawn = found.allocation[(found.first <= column) & (column < found.last)]
    assert len(found.allocation) + found.others <= len(view.allocations)
    if not found.others:
        assert sorted(drawn) == sorted(held["allocation"])


def test_no_peak_is_lost_however_few_the_columns(history):
    for number in (1, 3, 7, 50):
        found = history.columns(by_event=False, start=0, end=2**50, number=number)
        assert found.allocated_bytes.max() == history.allocated_bytes.max()
        assert found.reserved_bytes.max() == history.reserved_bytes.max()


def test_of_many_allocations_the_largest_are_drawn_and_the_others_counted(tmp_path):
    path = tmp_path / "many.pickle"
    path.write_bytes(pickle.dumps(train(Allocator(), steps=20, layers=20).snapshot()))
    view = open_snapshot(str(path))
    history = DeviceHistory(view, 0, view.origin_ns)
    found = history.columns(by_event=True, start=0, end=2**50, number=2000)
    assert len(found.allocation) == MOST_DRAWN
    assert found.others > 100
    in_column = np.zeros((len(STACKED), len(found.event)), np.int64)
    for category, first, last, size in zip(
        found.category, found.first, found.last, found.size_bytes, strict=True
    ):
        in_column[category, first:last] += size
    assert (in_column <= found.categories).all()


def test_the_peak_is_what_the_command_line_says(viewer, files):
    asked = said(files / "training.pickle", "peak")
    found = viewer.get("/api/traces/{}/memory/state")
    for name in ("event", "allocated_bytes", "requested_bytes", "reserved_bytes", "categories"):
        assert found[name] == asked[name], name
    lines = {row[0]: row[1] for table in found["tables"] if table["name"] == "lines"
             for row in table["rows"]}  # fmt: skip
    assert lines == {row["line"]: row["allocated_bytes"] for row in asked["lines"]}
    about = viewer.get("/api/traces/{}/memory")
    assert about["peak"]["event"] == asked["event"]
    held = said(files / "training.pickle", "held", "--at", "event 40")
    at = viewer.get("/api/traces/{}/memory/state", at="event 40")
    assert (at["allocated_bytes"], at["categories"]) == (
        held["allocated_bytes"],
        held["categories"],
    )


def test_segments_hold_what_is_reserved_and_what_is_allocated(view):
    end = view.end(0).event
    for event in (-1, 5, 100, view.peak(0).event, end):
        state = segments_at(view, 0, event)
        curve = view.curve(0).filter(pl.col("event") == event).row(0, named=True)
        reserved = sum(one["size_bytes"] for one in state["segments"]) + state["others_bytes"]
        assert reserved == curve["reserved_bytes"]
        assert len(state["segments"]) <= MOST_SEGMENTS
        for one in state["segments"]:
            assert sum(cell[1] for cell in one["cells"]) == one["size_bytes"]
            assert len(one["cells"]) <= 2 * CELLS
        if not state["others"]:
            held = sum(one["allocated_bytes"] for one in state["segments"])
            # A block that was gone at the snapshot may have been larger than its rounded request.
            assert curve["allocated_bytes"] <= held <= reserved
            assert event != end or held == curve["allocated_bytes"]


def test_an_allocation_says_whose_it_is_and_how_long_it_lived(viewer, view):
    data = viewer.ask(
        f"/api/traces/{viewer.library.traces[0].id}/memory/columns?start=0&end=99999999&columns=300"
    )
    meta, columns = decode(data.body)
    numbers = columns["allocation"].astype(int).tolist()
    rows = [view.allocations.row(number, named=True) for number in numbers]
    freed = [row["start_ns"] is not None and row["free_ns"] is not None for row in rows]
    for place in (int(columns["size"].argmax()), freed.index(True), freed.index(False)):
        found = viewer.get("/api/traces/{}/memory/allocation", number=numbers[place])
        row = rows[place]
        assert found["size_bytes"] == row["size_bytes"] == columns["size"][place]
        assert found["line"] == meta["texts"][meta["text"][place]]
        assert found["category"] == STACKED[columns["category"][place]]
        lasted_ns = row["free_ns"] - row["start_ns"] if freed[place] else None
        assert found["lasted_ns"] == lasted_ns
        assert found["stack"][0]["text"] == found["line"]


def test_a_failed_request_is_marked(viewer, files):
    failed = open_snapshot(str(files / "failed.pickle")).out_of_memory(0)
    asked = said(files / "failed.pickle", "held", "--at", "oom")
    identifier = viewer.library.traces[1].id
    second = f"/api/traces/{identifier}/memory"
    viewer.ask(f"{second}/open", "POST", b"{}", headers={"Sec-Fetch-Site": "same-origin"})
    until = time.monotonic() + PATIENCE_S
    while not (about := viewer.get(second))["ready"] and time.monotonic() < until:
        time.sleep(0.02)
    assert [row["event"] for row in about["failed"]] == failed["event"].to_list()
    assert [row["size_bytes"] for row in about["failed"]] == failed["size_bytes"].to_list()
    assert about["failed"][-1]["event"] == asked["event"]
    assert viewer.get(f"{second}/state", at="oom")["allocated_bytes"] == asked["allocated_bytes"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("memory?device=7", "no device 7"),
        ("memory/state?at=later", "not a moment"),
        ("memory/columns?start=0&end=9&columns=0", "columns must be"),
        ("memory/columns?start=0&end=9&columns=99999", "columns must be"),
        ("memory/allocation?number=99999999", "there are allocations 0 to"),
        ("overview", "it has no timeline"),
    ],
)
def test_bad_requests_get_one_line(viewer, path, words):
    answer = viewer.ask(f"/api/traces/{viewer.library.traces[0].id}/{path}")
    assert answer.status == 400
    assert words in answer.json["error"]


def test_a_device_is_chosen_and_the_fullest_comes_first(files):
    with serving([files / "two.pickle"]) as client:
        client.enter()
        wait(client)
        view = open_snapshot(str(files / "two.pickle"))
        about = client.get("/api/traces/{}/memory")
        assert about["devices"] == [0, 1]
        assert about["device"] == view.fullest_device
        for device in (0, 1):
            found = client.get("/api/traces/{}/memory", device=device)
            assert found["peak"]["allocated_bytes"] == view.peak_bytes(device)


def test_a_trace_with_memory_events_of_the_host_has_memory_and_another_has_none(viewer_memory):
    client, has_memory = viewer_memory
    assert client.get("/api/traces/{}/extras")["has_memory"] is has_memory
    if has_memory:
        wait(client)
        about = client.get("/api/traces/{}/memory")
        assert about["devices"] == [-1]
        assert client.get("/api/traces/{}/memory/state")["segments"] is None
    else:
        answer = client.post("/api/traces/{}/memory/open", {})
        assert answer.status == 400
        assert "no memory events" in answer.json["error"]


@pytest.fixture(params=[True, False], ids=["with", "without"])
def viewer_memory(request, tmp_path):
    document = json.loads(training(1).json())
    if request.param:
        for event in document["traceEvents"]:
            if event["name"] == "[memory]":
                event["args"] |= {"Device Type": 0, "Device Id": -1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with viewing([path]) as client:
        yield client, request.param


def test_a_run_shows_the_newest_snapshot_of_each_rank(files, tmp_path):
    run = write_run(tmp_path, {0: step_records([100] * 3), 1: step_records([100] * 3)})
    snapshots = RankLayout(run / "rank00001").snapshots
    snapshots.mkdir()
    for age, name in ((9, "failed"), (5, "training")):
        target = snapshots / f"{name}.pickle"
        target.write_bytes((files / f"{name}.pickle").read_bytes())
        os.utime(target, (1e9 - age, 1e9 - age))
    (found,) = origins_of([str(run)])
    assert (found.title, found.rank, found.is_memory) == ("rank 1, memory", 1, True)
    assert found.path == str(snapshots / "training.pickle")


def test_a_directory_of_snapshots_opens_its_newest_and_without_any_the_error_says_so(
    files, tmp_path
):
    (found,) = origins_of([str(files)])
    assert found.is_memory
    with pytest.raises(UnreadableInputError, match="found no run"):
        origins_of([str(tmp_path)])


def test_a_snapshot_without_a_history_shows_what_it_holds(tmp_path):
    snapshot = train(Allocator(), steps=1).snapshot()
    snapshot["device_traces"] = [[] for _ in snapshot["device_traces"]]
    path = tmp_path / "still.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    with serving([path]) as client:
        client.enter()
        wait(client)
        about = client.get("/api/traces/{}/memory")
        assert (about["events"], about["has_times"]) == (0, False)
        state = client.get("/api/traces/{}/memory/state")
        assert state["allocated_bytes"] == about["peak"]["allocated_bytes"] > 0
        assert state["segments"]["segments"]
