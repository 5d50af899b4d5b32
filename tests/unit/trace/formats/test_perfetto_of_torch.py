"""Perfetto traces in torch's own layout: beginnings and ends in blocks, GPU work as stages."""

from __future__ import annotations

import gzip
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.support.viewer import training

from stepscope.analysis.timeline import timeline
from stepscope.trace.formats.perfetto.format import with_durations
from stepscope.trace.formats.perfetto.packets import BEGIN, END
from stepscope.trace.load import load
from stepscope.trace.schema import Category

perfetto_trace_pb2 = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the package perfetto"
)
STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}
WRITTEN = {"runtime": "cuda_runtime", "driver": "cuda_driver"}


class TorchWriter:
    """Writes a trace in the order of torch 2.15: names, blocks of CPU events, GPU stages."""

    def __init__(self):
        self.trace = perfetto_trace_pb2.Trace()
        first = self.packet()
        first.sequence_flags = 1
        self.interned = first.interned_data
        self.names = {}
        self.categories = {}
        for iid, name in enumerate(("Kernel", "Memcpy", "Memset", "Annotation"), 1):
            self.interned.gpu_specifications.add(iid=iid, name=name)

    def packet(self, time_ns=None):
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = 1
        if time_ns is not None:
            packet.timestamp = time_ns
        return packet

    def name(self, text):
        return self._interned(self.names, self.interned.event_names, text)

    def category(self, text):
        return self._interned(self.categories, self.interned.event_categories, text)

    def _interned(self, known, entries, text):
        if text not in known:
            known[text] = len(known) + 1
            entries.add(iid=known[text], name=text)
        return known[text]

    def thread(self, uuid, pid, tid, name="", process=""):
        thread = self.packet().track_descriptor
        thread.uuid = uuid
        thread.thread.pid, thread.thread.tid, thread.thread.thread_name = pid, tid, name

    def stream(self, number, title):
        iid = 100 + number
        self.interned.gpu_specifications.add(iid=iid, name=f"[{number:03}] {title}")
        return iid

    def block(self, slices):
        """Slices: start, end, track, name, category, arguments."""
        for start, _, track, name, category, args in slices:
            event = self.packet(start).track_event
            event.type, event.track_uuid, event.name_iid = BEGIN, track, self.name(name)
            if category:
                event.category_iids.append(self.category(category))
            for key, value in args.items():
                event.debug_annotations.add(name=key, int_value=value)
        for _, end, track, *_ in slices:
            event = self.packet(end).track_event
            event.type, event.track_uuid = END, track

    def stage(self, start, end, lane, stage, name="", args=(), grid=None):
        event = self.packet(start).gpu_render_stage_event
        event.duration, event.gpu_id, event.hw_queue_iid = end - start, 0, lane
        event.stage_iid = stage
        if name:
            event.name_iid = self.name(name)
        for key, value in dict(args).items():
            event.extra_data.add(name=key, value=str(value))
        if grid:
            for size in (event.launch.grid_size, event.launch.workgroup_size):
                size.x, size.y, size.z = grid
            event.launch.args.add(name="registers_per_thread", uint_value=32)

    def save(self, path):
        path.write_bytes(gzip.compress(self.trace.SerializeToString()))
        return path


def rows_of(trace):
    names = trace.names.select("name_id", "name")
    return (
        trace.events.join(names, on="name_id")
        .join(trace.derived.select("event", "step", "kind", "self_ns", "launch"), on="event")
        .filter(pl.col("category") != "other")
        .select(
            "name", "category", "start_ns", "dur_ns", "correlation", "external_id", "device",
            "stream", "step", pl.col("kind").cast(pl.String), "self_ns",
            is_launched=pl.col("launch").is_not_null(),
        )
        .collect()
        .sort("start_ns", "dur_ns", "name", "category")
    )  # fmt: skip


def test_a_profile_reads_as_its_json_does(tmp_path):
    trace = training().load()
    writer = TorchWriter()
    lanes = {lane["lane_id"]: lane for lane in trace.lanes.iter_rows(named=True)}
    for number, lane in lanes.items():
        if not lane["is_gpu"]:
            writer.thread(number + 1, int(lane["pid"]), int(lane["tid"]))
    streams = {
        stream: writer.stream(stream, f"stream {stream}")
        for stream in {lane["stream"] for lane in lanes.values() if lane["is_gpu"]}
    }
    host = []
    table = trace.events.join(trace.names.select("name_id", "name"), on="name_id").collect()
    for event in table.sort("start_ns").iter_rows(named=True):
        start, end, category = (
            event["start_ns"],
            event["start_ns"] + event["dur_ns"],
            event["category"],
        )
        links = {
            key: event[column]
            for key, column in (("correlation", "correlation"), ("External id", "external_id"))
            if event[column] is not None
        }
        if category in STAGES:
            extra = {"device id": event["device"], "stream id": event["stream"], **links}
            lane = streams[lanes[event["lane_id"]]["stream"]]
            writer.stage(start, end, lane, STAGES[category], event["name"], extra)
        elif category != Category.OTHER:
            written = WRITTEN.get(category, category)
            host.append((start, end, event["lane_id"] + 1, event["name"], written, links))
    writer.block(host)
    again = load(writer.save(tmp_path / "t.pftrace"))
    assert len(trace.events.filter(category="kernel").collect())
    assert_frame_equal(rows_of(again), rows_of(trace))
    assert_frame_equal(timeline(again).devices, timeline(trace).devices)
    assert not len(again.problems)


def test_arguments_of_gpu_work_are_those_of_json(tmp_path):
    writer = TorchWriter()
    lane = writer.stream(26, "DP")
    group = {"Process Group Name": "0", "Collective name": "all_reduce", "Group size": 8}
    extra = {"device id": 0, "stream id": 7, "context id": 1, "correlation": 5, **group}
    writer.stage(100, 300, lane, 1, "gemm", {**extra, "Global rank": "[0, 1]"}, (2, 3, 4))
    writer.stage(300, 400, lane, 2, args={"stream id": 26, "bytes": 12, "arch": "sm_90"})
    trace = load(writer.save(tmp_path / "t.pftrace"))
    events = trace.events.join(trace.names.select("name_id", "name"), on="name_id").collect()
    kernel, copy = events.sort("start_ns").iter_rows(named=True)
    assert (kernel["name"], kernel["device"], kernel["stream"]) == ("gemm", 0, 26)
    assert trace.arguments(kernel["event"]) == {
        "device": 0, "stream": 26, "original_stream": 7, "context": 1, "correlation": 5, **group,
        "Global rank": [0, 1], "grid": [2, 3, 4], "block": [2, 3, 4], "registers per thread": 32,
    }  # fmt: skip
    assert (copy["name"], copy["category"], copy["bytes"]) == ("Memcpy", "gpu_memcpy", 12)
    assert trace.arguments(copy["event"]) == {"stream": 26, "bytes": 12, "arch": "sm_90"}
    assert trace.lanes["thread_name"].to_list() == ["DP"]


def test_synchronisation_and_overhead_have_no_category_there(tmp_path):
    writer = TorchWriter()
    writer.thread(1, 0, 7, "stream 7")
    writer.thread(2, 2**31 - 1, 0, "Overhead")
    writer.block(
        [
            (100, 300, 1, "Event Sync", "", {"cuda_sync_kind": 1, "stream": 7, "device": 0}),
            (50, 80, 2, "Buffer Flush", "", {}),
        ]
    )
    trace = load(writer.save(tmp_path / "t.pftrace"))
    found = trace.events.select("category", "device", "stream").collect().sort("category")
    assert found.rows() == [("device_sync", 0, 7), ("overhead", None, None)]


def test_counters_of_gpus(tmp_path):
    writer = TorchWriter()
    descriptor = writer.interned.gpu_counter_descriptors.add(iid=1, gpu_id=3)
    for number, name in enumerate(("Power (W)", "Cycles")):
        descriptor.counter_descriptor.specs.add(counter_id=number, name=name)
    for time_ns, number, kind, value in (
        (100, 0, "double_value", 250.5), (150, 1, "int_value", 7), (200, 9, "int_value", 1),
    ):  # fmt: skip
        event = writer.packet(time_ns).gpu_counter_event
        event.counter_descriptor_iid = 1
        event.counters.add(counter_id=number, **{kind: value})
    writer.stage(100, 300, writer.stream(7, "stream 7"), 1, "gemm")
    trace = load(writer.save(tmp_path / "t.pftrace"))
    found = trace.counters.join(trace.names, on="name_id").collect().sort("time_ns")
    assert found["name"].to_list() == ["Power (W)", "Cycles"]
    assert [json.loads(text)["value"] for text in found["args"]] == [250.5, 7]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30), st.integers(0, 30)), max_size=12),
    st.booleans(),
)
def test_blocks_keep_durations(slices, is_streamed):
    """Slices that nest or follow one another, as blocks or in the order in which they happened."""
    rows = []  # type, track, time, index of the slice
    for at, (track, start, lasting) in enumerate(slices):
        end = start + lasting
        rows.extend(((BEGIN, track, start, at), (END, track, end, at)))
    if is_streamed:
        rows.sort(key=lambda row: row[2])
    else:
        rows.sort(key=lambda row: row[0])
    events = pl.DataFrame(
        {
            "type": np.array([row[0] for row in rows], np.int64),
            "track": np.array([row[1] for row in rows], np.int64),
            "time_ns": np.array([row[2] for row in rows], np.int64),
            "slice": np.array([row[3] for row in rows], np.int64),
        }
    )
    found = with_durations(events)
    known = found.filter(pl.col("dur_ns").is_not_null())
    if is_streamed:
        assert not len(known)
        assert_frame_equal(found.drop("dur_ns"), events)
    else:
        assert dict(known.select("slice", "dur_ns").iter_rows()) in (
            {at: lasting for at, (_, _, lasting) in enumerate(slices)},
            {},  # time never goes back: the order of events says the same
        )
        times = events["time_ns"].to_list()
        assert bool(len(known)) == (times != sorted(times))
