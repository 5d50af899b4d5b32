"""Perfetto's own schema reads what we write, and finds every slice."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
from tests.support.gpu_trace import GpuTrace, us

from stepscope.export.overlays import overlays_of
from stepscope.export.selection import cut
from stepscope.export.track_events import OneOfSeveral, write_perfetto

BEGIN, END, COUNTER = 1, 2, 4


class Replay:
    """Reads a file packet by packet, as Perfetto does."""

    def __init__(self, data: bytes) -> None:
        self.tracks = {}
        self.slices = []
        self.counters = defaultdict(list)
        names, open_slices = {}, defaultdict(list)
        trace = perfetto_trace_pb2.Trace()
        trace.ParseFromString(data)
        for packet in trace.packet:
            sequence = packet.trusted_packet_sequence_id
            for entry in packet.interned_data.event_names:
                names[sequence, entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            if event.type == COUNTER:
                self.counters[self.title(event.track_uuid)].append(
                    (packet.timestamp, event.double_counter_value)
                )
            elif event.type == BEGIN:
                open_slices[event.track_uuid].append((packet.timestamp, event, sequence))
            else:
                begin, opened, of = open_slices[event.track_uuid].pop()
                name = names[of, opened.name_iid]
                self.slices.append((opened.track_uuid, name, begin, packet.timestamp, opened))
        assert not any(open_slices.values()), "what begins ends"

    def title(self, track: int) -> str:
        """Names of a track and of what it stands under."""
        names = []
        while track:
            names.append(self.tracks[track].name)
            track = self.tracks[track].parent_uuid
        return " / ".join(reversed(names))


def written(trace, steps=None, several=None, findings=()):
    part = cut(trace, steps)
    overlays = overlays_of(trace, findings, part.start_ns, part.end_ns)
    pieces = []
    said = write_perfetto(part, overlays, pieces.append, several)
    return part, overlays, said, Replay(b"".join(pieces))


@pytest.fixture(scope="module")
def whole(trace):
    return written(trace)


def test_every_event_is_a_slice_with_its_name_and_times(trace, whole):
    _, overlays, said, replay = whole
    names = trace.names.collect()["name"].to_list()
    events = trace.events.collect()
    expected = Counter(
        (names[name_id], start, start + dur)
        for name_id, start, dur in events.select("name_id", "start_ns", "dur_ns").iter_rows()
    )
    expected += Counter(
        (name, start, start + dur)
        for name, start, dur in overlays.idle.select("name", "start_ns", "dur_ns").iter_rows()
    )
    assert Counter((name, start, end) for _, name, start, end, _ in replay.slices) == expected
    assert said.slices == len(events)
    assert said.annotations == len(overlays.idle) > 0


def test_tracks_stand_under_their_process_or_gpu(whole):
    titles = {whole[3].title(track) for track, *_ in whole[3].slices}
    assert "GPU 0 · NVIDIA H100 80GB HBM3 / GPU 0 stream 7" in titles
    assert "GPU 0 · NVIDIA H100 80GB HBM3 / why idle" in titles


def test_arguments_are_kept(trace, whole):
    kernel = next(one for *_, name, _, _, one in whole[3].slices if name.startswith("ampere"))
    found = json.loads(kernel.debug_annotations[0].legacy_json_value)
    event = trace.events.collect().filter(correlation=found["correlation"], device=0)["event"][0]
    assert found == trace.arguments(event)


def test_arrows_lead_from_the_launch_to_the_work(trace, whole):
    links = trace.derived.select("event", "launch").collect().drop_nulls("launch")
    ends = defaultdict(set)
    for _, _, start, _, opened in whole[3].slices:
        for flow in opened.flow_ids:
            ends[flow].add(start)
    starts = trace.columns("start_ns")["start_ns"].to_list()
    for event, launch in links.iter_rows():
        assert ends[launch + 1] >= {starts[event], starts[launch]}


def test_counters_are_those_of_the_trace(whole):
    _, overlays, said, replay = whole
    assert sum(len(values) for values in replay.counters.values()) == said.counters
    assert any("launched and waiting" in title for title in replay.counters)
    for series in overlays.counters:
        values = next(v for title, v in replay.counters.items() if title.endswith(series.name))
        assert values == list(zip(series.time_ns.tolist(), series.value.tolist(), strict=True))


def test_ranks_in_one_file_keep_their_own_names_and_tracks(trace):
    pieces = []
    other = GpuTrace()
    with other.step():
        other.launch("another_kernel", us(30))
    for number, one in enumerate((trace, other.load())):
        part = cut(one, None)
        overlays = overlays_of(one, (), part.start_ns, part.end_ns)
        several = OneOfSeveral(number, f"rank {number}", 10_000 * number)
        write_perfetto(part, overlays, pieces.append, several)
    replay = Replay(b"".join(pieces))
    found = {(replay.title(track).split(" / ")[0], name) for track, name, *_ in replay.slices}
    assert ("rank 1", "another_kernel") in found
    assert ("rank 0", "another_kernel") not in found
    start = next(start for _, name, start, *_ in replay.slices if name == "another_kernel")
    assert start == other.load().events.filter(device=0).collect()["start_ns"][0] + 10_000


def test_times_before_zero_are_moved():
    early = GpuTrace(start_ns=-5_000_000)
    with early.step():
        early.launch("kernel", us(30))
    _, _, said, replay = written(early.load())
    assert said.moved_ns == 5_000_000
    assert min(start for _, _, start, _, _ in replay.slices) == 0


def test_overlapping_kernels_of_a_stream_are_all_there(tmp_path):
    from stepscope.trace.load import load

    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": n, "dur": 10,
         "args": {"device": 0, "stream": 7}}
        for n in range(40)
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    _, _, said, replay = written(load(path))
    work = [one for one in replay.slices if one[1].startswith("k")]
    assert len(work) == said.slices == 40
    # The first stays, ten at once need ten tracks beside it: no two at once on one of them.
    assert 10 <= len({track for track, *_ in work}) <= 11
    assert said.left_out == 0
    assert np.ptp([start for _, _, start, _, _ in work]) == 39_000
