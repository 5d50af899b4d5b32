"""What the server answers about a training, against what the command line answers."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.real_traces import path_of
from tests.support.viewer import build_index, decode, training, viewing
from tests.support.viewer_ranges import check_ranges, check_whole, measured

from stepscope.analysis.counters import counters_of
from stepscope.analysis.host.idle_gaps import idle_segments
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.partition import cause_label
from stepscope.run.figures import percent
from stepscope.trace.load import load
from stepscope.viewer import search as viewer_search
from stepscope.viewer.colours import Colour
from stepscope.viewer.flame import FlameBy, Forest, flame
from stepscope.viewer.ranges import range_totals
from stepscope.viewer.search import NameIndex, search
from stepscope.viewer.tiles import slice_tile


@pytest.fixture(scope="module")
def trace():
    return training().load()


def test_ranges_of_steps_are_what_show_says(trace):
    check_ranges(trace)
    check_whole(trace)


def test_halves_of_a_range_add_up_to_it(trace):
    basis, forest = measured(trace)
    step = trace.device_steps.row(1, named=True)
    start, end = step["start_ns"], step["end_ns"]
    middle = start + (end - start) // 3
    whole, left, right = (
        range_totals(basis, forest, a, b) for a, b in ((start, end), (start, middle), (middle, end))
    )
    for part in ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns", "total_ns"):
        values = [one["devices"][0][part] for one in (whole, left, right)]
        assert values[0] == values[1] + values[2], part
    for table, key in (("kernels", "total_ns"), ("operators", "device_ns")):
        assert whole[table][key] == left[table][key] + right[table][key]


def test_time_outside_the_recording_is_said_and_not_called_idle(trace):
    basis, forest = measured(trace)
    device = basis.devices[0]
    found = range_totals(basis, forest, device.last_ns - 500, device.last_ns + 10_000)
    mine = found["devices"][0]
    assert mine["outside_ns"] == 10_000
    assert mine["total_ns"] == 500
    before = range_totals(basis, forest, device.first_ns - 900, device.first_ns - 300)["devices"][0]
    assert (before["total_ns"], before["outside_ns"]) == (0, 600)


def test_the_host_s_flame_graph_holds_every_thread_and_adds_up(trace):
    forest = Forest.of(trace)
    step = trace.steps.row(1, named=True)
    tree = flame(trace, forest, step["start_ns"], step["end_ns"], FlameBy.HOST)
    assert int(tree.self_ns.sum()) == tree.whole_ns
    children = np.zeros(len(tree.name), np.int64)
    inner = tree.parent >= 0
    np.add.at(children, tree.parent[inner], tree.total_ns[inner])
    assert (children + tree.self_ns == tree.total_ns).all()
    assert (tree.parent[inner] < np.flatnonzero(inner)).all()


def path(tree, node):
    found = []
    while node >= 0:
        found.append(tree.name[node])
        node = int(tree.parent[node])
    return found[::-1]


def test_gpu_time_stands_under_the_modules_that_launched_it(trace):
    forest = Forest.of(trace)
    first, last = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    tree = flame(trace, forest, first, last + 10**9, FlameBy.MODULE)
    (node,) = [at for at, name in enumerate(tree.name) if "sgemm" in name]
    assert path(tree, node)[:-1] == ["nn.Module: Net_0", "nn.Module: Linear_0"]
    assert tree.total_ns[node] == 3 * 200_000
    above = [node, int(tree.parent[node]), int(tree.parent[tree.parent[node]])]
    assert tree.count[above].tolist() == [3, 3, 3]  # each module was called in each of three steps


@pytest.mark.parametrize("by", list(FlameBy))
def test_every_node_of_a_flame_graph_stands_for_something(trace, by):
    tree = flame(trace, Forest.of(trace), 0, 2**62, by)
    assert (tree.count > 0).all()


@pytest.mark.parametrize("by", list(FlameBy))
def test_nodes_of_a_flame_graph_have_the_colours_of_the_timeline(trace, by):
    index = build_index(trace)
    drawn: dict[str, set[int]] = {}
    for name, colour in zip(index.events.name.tolist(), index.events.colour.tolist(), strict=True):
        drawn.setdefault(index.names[name], set()).add(colour)
    tree = flame(trace, Forest.of(trace), 0, 2**62, by)
    assert len(tree.name) > 2
    for name, colour in zip(tree.name, tree.colour.tolist(), strict=True):
        assert colour in drawn.get(name, {int(Colour.OTHER)}), name


def test_every_event_is_drawn_once(trace):
    index = build_index(trace)
    assert sorted(index.events.event.tolist()) == list(range(index.event_count))
    for lane in index.lanes:
        if lane.rows_of == "events":
            rows = range(lane.first_row, lane.first_row + lane.rows)
            assert sum(int(np.diff(index.events.offsets)[row]) for row in rows) == lane.slices
            for row in rows:
                assert index.lane_of_row(row) is lane
    assert sum(lane.slices for lane in index.lanes if lane.rows_of == "events") == index.event_count
    assert index.lanes[0].kind == "steps"


def test_the_stack_of_an_event_is_its_chain_of_parents(viewer):
    trace = viewer.library.traces[0].content.trace
    parent = trace.derived.select("parent").collect()["parent"].to_list()
    names = (
        trace.events.join(trace.names, on="name_id", how="left", maintain_order="left")
        .collect()["name"]
        .to_list()
    )
    for event in range(0, len(parent), 5):
        chain, above = [], parent[event]
        while above is not None:
            chain.append(names[above])
            above = parent[above]
        found = viewer.get("/api/traces/{}/event", event=event)
        assert [one["name"] for one in found["stack"]] == chain[::-1]
        assert found["name"] == names[event]


def test_links_lead_there_and_back(viewer):
    derived = viewer.library.traces[0].content.trace.derived.collect()
    work = derived.filter(pl.col("launch").is_not_null(), pl.col("kind") != "none")
    assert len(work) > 5
    back = {
        "launched by": "launched",
        "operator": "GPU work of this operator",
        "forward of": "backward of",
    }
    for event in work["event"].to_list()[:20]:
        for link in viewer.get("/api/traces/{}/event", event=event)["links"]:
            other = viewer.get("/api/traces/{}/event", event=link["events"][0]["event"])
            titles = {one["title"]: one["events"] for one in other["links"]}
            assert event in [one["event"] for one in titles[back[link["title"]]]]


def test_search_finds_every_event_whose_name_has_the_text(trace):
    index = build_index(trace)
    names = trace.events.join(trace.names, on="name_id", how="left").collect()
    for text in ("SGEMM", "aten::", "(", ".", "", "nothing like it"):
        found = search(index, NameIndex.of(index), text)
        expected = names.filter(
            pl.col("name").str.to_lowercase().str.contains(text.lower(), literal=True)
        )
        assert found["total"] == (len(expected) if text else 0)
        starts = [hit["start_ns"] for hit in found["hits"]]
        assert starts == sorted(starts)
        assert sum(found["density"]) == found["total"]
    later = search(index, NameIndex.of(index), "sgemm", after_ns=index.end_ns // 2)
    assert later["before"] + len(later["hits"]) == later["total"] == 3


def test_lists_of_hits_follow_one_another_through_events_of_one_moment(monkeypatch):
    """Nested operators and those of other threads begin in the same nanosecond."""
    t = GpuTrace()
    with t.step():
        for burst in range(4):
            for thread in range(3):
                for number in range(burst + 1):
                    t.events.append(
                        {
                            "ph": "X",
                            "cat": "cpu_op",
                            "name": f"aten::tied{number}",
                            "pid": t.process,
                            "tid": 900 + thread,
                            "ts": t.now + burst * us(100),
                            "dur": us(20) - us(number),
                        }
                    )
        t.python(us(900))
    index = build_index(t.load())
    names = NameIndex.of(index)
    every = [one["event"] for one in search(index, names, "tied")["hits"]]
    assert len(every) == len(set(every)) == 3 * (1 + 2 + 3 + 4)
    for most in (1, 2, 3, 5, 7, 29, 30, 31):
        listed, following = [], [0, 0]
        while following is not None:
            monkeypatch.setattr(viewer_search, "MOST_HITS", most)
            found = search(index, names, "tied", *following)
            assert found["before"] == len(listed)
            listed += [one["event"] for one in found["hits"]]
            following = found["next"]
        assert listed == every


def test_tiles_come_as_the_engine_made_them(viewer):
    index = viewer.library.traces[0].content.index
    path = f"/api/traces/{viewer.library.traces[0].id}/slices"
    answer = viewer.ask(f"{path}?of=events&rows=0-2,4&start=1000&level=9&buckets=300")
    meta, columns = decode(answer.body)
    tile = slice_tile(index.events, 1000, 9, 300, [0, 1, 2, 4])
    assert meta["rows"] == [0, 1, 2, 4]
    assert meta["start_ns"] == tile.start_ns == 512
    assert columns["event"].tolist() == tile.event.tolist()
    # Less than a thousandth of a bucket is rounded off.
    starts = tile.item_start_ns - tile.start_ns
    assert np.abs(columns["start"] - starts).max() < 0.001 * tile.step_ns
    assert columns["share"].max() <= 1


def test_idle_slices_say_what_explains_them_in_the_words_of_the_report(viewer, trace):
    extras = viewer.get("/api/traces/{}/extras")
    assert extras["ready"]
    (lane,) = extras["lanes"]
    found = [viewer.get("/api/traces/{}/gap", row=row)["cause"] for row in range(lane["slices"])]
    assert found == [cause_label(cause) for cause in idle_segments(trace)["cause"]]
    assert {"input", "queued work waits"} <= set(found)


def test_a_gap_names_what_ended_it_and_what_the_host_did(viewer, trace):
    segments = idle_segments(trace)
    work = gpu_work(trace).table.sort("start_ns")
    starts = trace.columns("start_ns")["start_ns"].to_numpy()
    launched = 0
    for row, segment in enumerate(segments.iter_rows(named=True)):
        found = viewer.get("/api/traces/{}/gap", row=row)
        after = work.filter(pl.col("start_ns") >= segment["end_ns"])
        if after.is_empty():
            assert found["ended_by"] is None
            continue
        assert found["ended_by"]["event"] == after["event"][0]
        if after["launch"][0] is not None:
            launched += 1
            assert found["launch"]["event"] == after["launch"][0]
            assert found["late_ns"] == starts[after["launch"][0]] - segment["start_ns"]
            assert sum(one["self_ns"] for one in found["done"]) <= found["dur_ns"]
    assert launched


def test_counters_follow_the_allocator_and_the_queue(trace):
    found = {one.name: one for one in counters_of(trace, 0, None)}
    queue = found["launched and waiting, GPU 0"]
    assert queue.value.min() >= 0
    assert queue.value[-1] == 0
    memory = next(one for name, one in found.items() if name.startswith("allocated"))
    assert memory.unit == "bytes"
    assert memory.highest >= 3 << 20


@pytest.mark.parametrize(
    "query",
    [
        "slices?of=events&rows=0&start=x&level=3&buckets=5",
        "slices?of=events&rows=0&start=0&level=60&buckets=5",
        "slices?of=events&rows=0&start=0&level=3&buckets=99999999",
        "slices?of=events&rows=99999&start=0&level=3&buckets=5",
        "slices?of=events&rows=0-99999999999&start=0&level=3&buckets=5",
        "slices?of=nothing&rows=0&start=0&level=3&buckets=5",
        "slices?of=events&rows=-1&start=0&level=3&buckets=5",
        "range?start=10&end=5",
        "range?start=0&end=99999999999999999999",
        "flame?start=0&end=5&by=nothing",
        "event?event=99999999",
        "event?event=-1",
        "table?question=nothing",
        "table?question=timeline&steps=99",
        "table?question=timeline&steps=1-",
        "table?question=stragglers",
        "counter?number=99&start=0&level=3&buckets=5",
        "names?ids=0-99999999",
        "compare?with=nothing",
    ],
)
def test_impossible_requests_get_one_line(viewer, query):
    answer = viewer.ask(f"/api/traces/{viewer.library.traces[0].id}/{query}")
    assert answer.status == 400, answer.body
    assert answer.json["error"]
    assert "\n" not in answer.json["error"]


def test_moments_of_a_query_count_from_the_first_event_and_differences_stay(viewer, trace):
    query = "SELECT start_ns, dur_ns, dur_ns AS end_ns FROM events ORDER BY event"
    found = viewer.post("/api/traces/{}/sql", {"query": query}).json
    events = trace.columns("start_ns", "dur_ns")
    origin = int(viewer.get("/api/traces/{}/overview")["origin_ns"])
    assert origin > events["dur_ns"].max()
    starts, lengths = events["start_ns"] - origin, events["dur_ns"].to_list()
    assert found["rows"] == [list(row) for row in zip(starts, lengths, lengths, strict=True)]


def test_every_question_is_answered_as_tables(viewer):
    for one in viewer.get("/api/questions")["questions"]:
        found = viewer.get("/api/traces/{}/table", question=one["name"])
        assert found["scope"].startswith("Scope:")
        for table in found["tables"]:
            assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_findings_come_with_their_place(viewer):
    found = viewer.get("/api/traces/{}/findings")
    assert found["verdict"]
    assert (
        sum(part["total_ns"] for part in found["partition"]["parts"])
        == found["partition"]["total_ns"]
    )
    places = [one["place"] for one in found["findings"] if one["place"]]
    assert places
    end = viewer.get("/api/traces/{}/overview")["end_ns"]
    assert all(0 <= place["start_ns"] < place["end_ns"] <= end for place in places)


def test_a_stream_that_an_old_recorder_named_is_called_stream_once(tmp_path):
    kernel = {
        "ph": "X", "cat": "Kernel", "name": "gemm", "pid": 0, "tid": "stream 7 ", "ts": 5, "dur": 3,
        "args": {"device": 0, "stream": 7},
    }  # fmt: skip
    operator = {
        "ph": "X",
        "cat": "Operator",
        "name": "aten::mm",
        "pid": 9,
        "tid": 9,
        "ts": 1,
        "dur": 9,
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"traceEvents": [operator, kernel]}))
    titles = [lane.title for lane in build_index(load(path)).lanes if lane.kind == "stream"]
    assert [title.strip() for title in titles] == ["stream 7"]


def test_a_slice_says_in_a_sentence_where_it_comes_from(viewer):
    def said(name, place=0):
        hits = viewer.get("/api/traces/{}/search", text=name)["hits"]
        return viewer.get("/api/traces/{}/event", event=hits[place]["event"])["said"]

    of_kernel = said("ampere_sgemm_128x64_nn")
    assert re.fullmatch(
        r"Launched .* earlier by aten::mm in Linear_0, train\.py:10 \(forward\)", of_kernel
    )
    of_operator = said("aten::mm")
    assert of_operator.startswith("Launched 1 piece of GPU work of 200 µs in Linear_0, train.py:10")
    assert said("ProfilerStep") == ""


def test_frames_of_libraries_are_told_from_the_user_s(viewer):
    hits = viewer.get("/api/traces/{}/search", text="ampere_sgemm_128x64_nn")["hits"]
    event = viewer.get("/api/traces/{}/event", event=hits[0]["event"])
    (launch,) = next(one for one in event["links"] if one["title"] == "launched by")["events"]
    stack = viewer.get("/api/traces/{}/event", event=launch["event"])["stack"]
    kinds = {one["name"]: one["is_library"] for one in stack}
    assert kinds["train.py(10): forward"] is False
    assert kinds["nn.Module: Linear_0"] is False


def test_calls_whose_shapes_are_known_say_what_they_reach():
    path = path_of("h100_qwen_inference/trace.json.gz")
    with viewing([path]) as client:
        content = client.library.traces[0].content
        content.find_attained()
        event = next(one for one, (_, limit) in content.attained.items() if limit == "peak")
        said = client.get("/api/traces/{}/event", event=event)["said"]
        share = content.attained[event][0]
        assert said.endswith(f"calls of this shape reach {percent(share)} of the peak")
        assert 0 < share < 1
