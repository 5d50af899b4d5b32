"""Perfetto traces: those written by Perfetto's own schema, and our own exports read back."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.support.traces import trace_path
from tests.support.viewer import training

from stepscope.analysis.timeline import timeline
from stepscope.errors import UnreadableInputError
from stepscope.export.overlays import overlays_of
from stepscope.export.selection import cut
from stepscope.export.track_events import write_perfetto
from stepscope.trace.formats.perfetto.format import FORMAT
from stepscope.trace.load import load

perfetto_trace_pb2 = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the package perfetto"
)
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Writer:
    """Writes a trace as Perfetto's SDK does."""

    def __init__(self):
        self.trace = perfetto_trace_pb2.Trace()

    def packet(self, sequence=1):
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = sequence
        return packet

    def thread(self, uuid, pid, tid, name, process="python"):
        descriptor = self.packet().track_descriptor
        descriptor.uuid = uuid
        descriptor.thread.pid, descriptor.thread.tid = pid, tid
        descriptor.thread.thread_name = name
        descriptor.process.pid, descriptor.process.process_name = pid, process

    def track(self, uuid, name, parent=0):
        descriptor = self.packet().track_descriptor
        descriptor.uuid, descriptor.name = uuid, name
        if parent:
            descriptor.parent_uuid = parent

    def event(self, time_ns, kind, track=None, name=None, category=None, sequence=1, **args):
        packet = self.packet(sequence)
        packet.timestamp = time_ns
        event = packet.track_event
        event.type = kind
        if track is not None:
            event.track_uuid = track
        if name is not None:
            event.name = name
        if category is not None:
            event.categories.append(category)
        for key, value in args.items():
            annotation = event.debug_annotations.add()
            annotation.name = key
            fill(annotation, value)
        return event

    def slice(self, start, end, track, name, category, **args):
        self.event(start, BEGIN, track, name, category, **args)
        self.event(end, END, track)

    def save(self, path):
        path.write_bytes(self.trace.SerializeToString())
        return path


def fill(annotation, value):
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int) and value < 0:
        annotation.int_value = value
    elif isinstance(value, int):
        annotation.uint_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, list):
        for item in value:
            fill(annotation.array_values.add(), item)
    else:
        for key, item in value.items():
            entry = annotation.dict_entries.add()
            entry.name = key
            fill(entry, item)


@pytest.fixture
def writer():
    written = Writer()
    written.thread(1, 100, 101, "main")
    written.track(2, "GPU 0")
    written.track(3, "stream 7", 2)
    return written


def test_slices_arguments_and_lanes(writer, tmp_path):
    args = {
        "correlation": 5, "negative": -3, "share": 0.25, "text": 'a "b"\n', "yes": True,
        "grid": [1, 2, 3], "more": {"deep": [{"x": -1}], "empty": 0},
    }  # fmt: skip
    writer.slice(1_000, 9_000, 1, "aten::mm", "cpu_op")
    writer.slice(2_000, 3_000, 1, "cudaLaunchKernel", "cuda_runtime", correlation=5)
    writer.slice(4_001, 8_002, 3, "gemm", "kernel", device=0, stream=7, **args)
    trace = load(writer.save(tmp_path / "t.pftrace"))
    events = trace.events.join(trace.names.select("name_id", "name"), on="name_id").collect()
    events = events.sort("start_ns")
    assert events["name"].to_list() == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert events["start_ns"].to_list() == [1_000, 2_000, 4_001]
    assert events["dur_ns"].to_list() == [8_000, 1_000, 4_001]
    assert events["category"].to_list() == ["cpu_op", "runtime", "kernel"]
    kernel = events.row(2, named=True)
    assert (kernel["device"], kernel["stream"]) == (0, 7)
    assert trace.arguments(kernel["event"]) == {"device": 0, "stream": 7, **args}
    assert trace.derived.filter(event=kernel["event"]).collect()["launch"][0] is not None
    main = trace.lanes.filter(tid="101").row(0, named=True)
    assert (main["pid"], main["thread_name"], main["process_name"]) == ("100", "main", "python")
    stream = trace.lanes.filter("is_gpu").row(0, named=True)
    assert (stream["pid"], stream["tid"], stream["device"], stream["stream"]) == ("0", "7", 0, 7)
    assert not len(trace.problems)


def test_names_by_number_start_anew_where_the_writer_says_so(writer, tmp_path):
    for generation, name in enumerate(("first", "second")):
        packet = writer.packet()
        packet.sequence_flags = 1
        entry = packet.interned_data.event_names.add()
        entry.iid, entry.name = 1, name
        category = packet.interned_data.event_categories.add()
        category.iid, category.name = 1, "cpu_op"
        packet.trace_packet_defaults.track_event_defaults.track_uuid = 1
        event = writer.event(1_000 * generation, BEGIN)
        event.name_iid = 1
        event.category_iids.append(1)
        writer.event(1_000 * generation + 500, END)
    # Another sequence has names of its own.
    packet = writer.packet(sequence=2)
    entry = packet.interned_data.event_names.add()
    entry.iid, entry.name = 1, "other"
    writer.event(5_000, BEGIN, 3, sequence=2).name_iid = 1
    writer.event(6_000, END, 3, sequence=2)
    trace = load(writer.save(tmp_path / "t.pftrace"))
    found = trace.events.join(trace.names.select("name_id", "name"), on="name_id").collect()
    assert found.sort("start_ns")["name"].to_list() == ["first", "second", "other"]


def test_counters_and_instants(writer, tmp_path):
    writer.track(4, "memory", 2)
    for time_ns, value in ((1_000, 5.5), (2_000, -1.0)):
        writer.event(time_ns, COUNTER, 4).double_counter_value = value
    writer.event(1_500, INSTANT, 1, "mark", "x")
    writer.slice(1_000, 2_000, 1, "op", "cpu_op")
    trace = load(writer.save(tmp_path / "t.pftrace"))
    counters = trace.counters.collect()
    assert [json.loads(text)["value"] for text in counters["args"]] == [5.5, -1.0]
    assert trace.names.collect().filter(pl.col("name_id").is_in(counters["name_id"].implode()))[
        "name"
    ].to_list() == ["memory"]
    assert trace.instants.collect()["time_ns"].to_list() == [1_500]


def exported(trace, path):
    part = cut(trace, None)
    overlays = overlays_of(trace, (), part.start_ns, part.end_ns)
    with path.open("wb") as file:
        write_perfetto(part, overlays, file.write)
    return load(path)


def work_of(trace):
    """What the profiler recorded, with what launched it; without what an export adds."""
    names = trace.names.select("name_id", "name")
    table = trace.events.join(names, on="name_id").join(
        trace.derived.select("event", "step", "launch", "kind"), on="event"
    )
    launch = trace.events.select(launch="event", launched_ns="start_ns")
    return (
        table.filter(pl.col("category") != "other")
        # The export has annotations of a stream on a track beside it.
        .with_columns(stream=pl.when(pl.col("category") != "gpu_user_annotation").then("stream"))
        .join(launch, on="launch", how="left")
        .select(
            "name", "category", "start_ns", "dur_ns", "correlation", "external_id", "device",
            "stream", "bytes", "step", "launched_ns", pl.col("kind").cast(pl.String),
        )
        .collect()
        .sort("start_ns", "dur_ns", "name", "category")
    )  # fmt: skip


def test_an_export_comes_back(tmp_path):
    trace = training().load()
    again = exported(trace, tmp_path / "t.pftrace")
    assert_frame_equal(work_of(again), work_of(trace))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress((tmp_path / "t.pftrace").read_bytes()))
    assert_frame_equal(work_of(load(packed)), work_of(trace))


@pytest.mark.parametrize(
    "name", [pytest.param("mi300x_resnet_train", marks=pytest.mark.slow), "a100_nccl_train"]
)
def test_exports_of_real_traces_answer_alike(name, tmp_path):
    trace = load(trace_path(f"{name}/trace.json.gz"))
    again = exported(trace, tmp_path / "t.pftrace")
    assert_frame_equal(work_of(again), work_of(trace))
    assert_frame_equal(timeline(again).devices, timeline(trace).devices)


@pytest.mark.slow
def test_truncated_anywhere_it_is_read_or_refused(writer, tmp_path):
    for number in range(8):
        writer.slice(1_000 * number, 1_000 * number + 500, 1, f"op{number}", "cpu_op", x="é" * 9)
    whole = writer.trace.SerializeToString()
    path = tmp_path / "t.pftrace"
    counts = []
    for size in range(40, len(whole), 5):
        path.write_bytes(whole[:size])
        try:
            trace = load(path)
        except UnreadableInputError as error:
            assert str(path) in str(error)
            continue
        counts.append(len(trace.events.collect()))
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_a_number_where_entries_belong_does_not_point_outside_the_file(writer, tmp_path):
    number = b"\x80\x94\xeb\xdc\x03"  # 10 ** 9
    writer.slice(1_000, 9_000, 1, "gemm", "cpu_op", x=10**9, y=2)
    path = writer.save(tmp_path / "t.pftrace")
    whole = path.read_bytes()
    assert b"\x18" + number in whole  # "uint_value" becomes a "dict_entries" that is no message
    path.write_bytes(whole.replace(b"\x18" + number, b"\x58" + number))
    trace = load(path)
    assert trace.arguments(0) == {"y": 2}


def test_without_track_events_it_says_what_it_is(tmp_path):
    trace = perfetto_trace_pb2.Trace()
    for number in range(5):
        trace.packet.add().timestamp = number
    path = tmp_path / "t.pftrace"
    path.write_bytes(trace.SerializeToString())
    with pytest.raises(UnreadableInputError, match="a Perfetto trace without track events"):
        load(path)


@pytest.mark.parametrize(
    "beginning",
    [b'\n{"traceEvents": []}', b"\n" * 50 + b"{}", b"\n[" + b" " * 200, b"", b"\n", b"\n\n\n\n"],
)
def test_json_is_never_taken_for_it(beginning):
    assert not FORMAT.recognises(beginning)
