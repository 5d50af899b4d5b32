"""Writes traces as Perfetto reads them best: a protobuf file of track events (`.pftrace`).

Layout
    One group of tracks per process and per GPU, one track per thread and per stream, sub-tracks for
    slices that overlap without nesting (`slices.py`). Arrows lead from each launching call to its
    work, and from forward operators to their backward operators. Overlays follow as tracks of their
    own: why each GPU is idle, findings, counters. Times are the trace's own, in ns; a trace that
    begins before 0 is moved so that it begins at 0. Several ranks follow one another in one file,
    each with tracks and names of its own, on one clock.

Field numbers are those of perfetto/protos/perfetto/trace/track_event. Names and categories are
written once and referred to by number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.counters import Series
from stepscope.export import protobuf as pb
from stepscope.export.overlays import Overlays
from stepscope.export.request import parts_of
from stepscope.export.selection import Cut
from stepscope.export.slices import BANDS, Marks, mark, marks_of
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace

_ROWS_AT_ONCE = 200_000
_LINE_BREAK = r"\n\s*"
"""Line breaks of JSON text are never part of a value."""

# Packet
_PACKET, _TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 1, 8, 10, 11, 12, 13, 60
_STATE_CLEARED, _NEEDS_STATE = 1, 2
# Track event
_CATEGORY_IID, _ANNOTATION, _TYPE, _NAME_IID, _TRACK = 3, 4, 9, 10, 11
_DOUBLE_VALUE, _FLOW = 44, 47
_BEGIN, _END, _COUNTER = 1, 2, 4
# Annotation
_JSON_VALUE, _ANNOTATION_NAME = 9, 10
# Descriptor
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER_OF, _RANK = 1, 2, 3, 4, 5, 8, 12
_INT32_MAX = 2**31 - 1
_FORWARD_FLOWS = 1 << 40
"""Arrows from forward to backward operators have numbers from here on, launches below."""


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        annotations: Slices that Stepscope added.
        left_out: Slices that found no place.
    """

    slices: int
    annotations: int
    counters: int
    left_out: int
    moved_ns: int


@dataclass(frozen=True)
class OneOfSeveral:
    """Which of several traces in one file a trace is.

    Attributes:
        title: What its tracks stand under.
        shift_ns: What is added to its times, so that all traces have one clock.
    """

    number: int
    title: str
    shift_ns: int


@dataclass
class _Tracks:
    """Descriptors of the tracks of a trace, each with the next free number."""

    sequence: int  # of the trace in the file, from 1: names are numbered anew in each
    written: list[bytes] = field(default_factory=list)
    top: int | None = None

    @property
    def on_sequence(self) -> bytes:
        """What every packet of the trace has."""
        return pb.one_number(_SEQUENCE, self.sequence)

    def add(self, name: str, parent: int | None = None, more: bytes = b"") -> int:
        order = len(self.written) + 1
        number = (self.sequence << 32) + order
        parts = [pb.one_number(_UUID, number), pb.one_text(_NAME, name)]
        parent = self.top if parent is None else parent
        if parent is not None:
            parts.append(pb.one_number(_PARENT, parent))
        parts.append(pb.one_number(_RANK, order))
        packet = pb.one_message(_DESCRIPTOR, [*parts, more])
        self.written.append(pb.one_message(_PACKET, [self.on_sequence, packet]))
        return number


def write_perfetto(
    cut: Cut,
    overlays: Overlays,
    write: Callable[[bytes], object],
    several: OneOfSeveral | None = None,
) -> Written:
    """Write a trace.

    Args:
        several: Which one of several in the file it is; None: the only one.
    """
    trace = cut.trace
    names = trace.name_rows["name_id", "name", "raw_category"]
    columns = ("name_id", "category", "lane_id", "start_ns", "dur_ns")
    events = trace.events.select(columns).collect()
    marks = marks_of(events)
    name_id = events["name_id"].to_numpy().astype(np.int64)
    origin_ns = int(events["start_ns"].min() or 0)  # type: ignore[arg-type]
    shift = max(0, -cut.start_ns, -origin_ns) if several is None else several.shift_ns
    tracks = _Tracks(1 if several is None else several.number + 1)
    if several is not None:
        tracks.top = tracks.add(several.title)
    groups = _groups(trace, tracks)
    uuid = _lane_tracks(trace, marks, groups, tracks)

    labels = pl.concat([overlays.idle["name"], overlays.findings["name"]]).unique().sort()
    write(_first_packet(names, labels, tracks))
    added = []
    if len(overlays.findings):
        track = tracks.add("findings")
        added.append(_spans(overlays.findings, track, shift, labels, len(names), tracks))
    for (device,), mine in overlays.idle.group_by(["device"], maintain_order=True):
        track = tracks.add("why idle", groups.get(f"GPU {device}"))
        added.append(_spans(mine, track, shift, labels, len(names), tracks))
    counters = [_counter(series, groups, tracks, shift) for series in overlays.counters]
    write(b"".join(tracks.written))
    flows = _flows(cut)
    args = _arguments(trace)
    for rows in parts_of(len(marks.slice), _ROWS_AT_ONCE):
        write(_events(args, marks, name_id, uuid, flows, rows, shift, tracks))
    for piece in (*added, *counters):
        write(piece)
    return Written(
        slices=len(marks.slice) // 2,
        annotations=len(overlays.idle) + len(overlays.findings),
        counters=sum(len(series.time_ns) for series in overlays.counters),
        left_out=marks.left_out,
        moved_ns=shift,
    )


def _first_packet(names: pl.DataFrame, labels: pl.Series, tracks: _Tracks) -> bytes:
    """Names, categories and the name of the one annotation, by number from 1 on."""
    entries = [
        _interned(2, number, name) for number, name in enumerate([*names["name"], *labels], start=1)
    ]
    entries += [
        _interned(1, number, category or "")
        for number, category in enumerate(names["raw_category"], start=1)
    ]
    flags = pb.one_number(_FLAGS, _STATE_CLEARED)
    packet = [tracks.on_sequence, pb.one_message(_INTERNED, entries), flags]
    return pb.one_message(_PACKET, packet)


def _interned(kind: int, number: int, text: str) -> bytes:
    return pb.one_message(kind, [pb.one_number(1, number), pb.one_text(2, text)])


def _groups(trace: Trace, tracks: _Tracks) -> dict[str, int]:
    """The track of each GPU and process, GPUs first."""
    described = dict(trace.devices.select("device", "name").iter_rows())
    found: dict[str, int] = {}
    for device in sorted(trace.lanes.filter("is_gpu")["device"].drop_nulls().unique().to_list()):
        kind = described.get(device)
        found[f"GPU {device}"] = tracks.add(f"GPU {device}" + (f" · {kind}" if kind else ""))
    for lane in trace.lanes.iter_rows(named=True):
        key = _group(lane)
        if key not in found:
            name = lane["process_name"] or (f"process {lane['pid']}" if lane["pid"] else "other")
            found[key] = tracks.add(name, more=_process(lane))
    return found


def _group(lane: dict[str, object]) -> str:
    if lane["is_gpu"] and lane["device"] is not None:
        return f"GPU {lane['device']}"
    return f"process {lane['pid']}"


def _process(lane: dict[str, object]) -> bytes:
    number = _whole(lane["pid"])
    if number is None:
        return b""
    name = lane["process_name"]
    named = [pb.one_text(6, str(name))] if name else []
    return pb.one_message(_PROCESS, [pb.one_number(1, number), *named])


def _whole(text: object) -> int | None:
    word = str(text)
    return int(word) if word.isdecimal() and 0 < int(word) <= _INT32_MAX else None


def _lane_tracks(trace: Trace, marks: Marks, groups: dict[str, int], tracks: _Tracks) -> Int64Array:
    lanes = {row["lane_id"]: row for row in trace.lanes.iter_rows(named=True)}
    found = np.zeros(len(marks.lane), np.int64)
    for at, (of_band, number) in enumerate(zip(marks.lane, marks.number, strict=True)):
        lane, band = lanes[int(of_band) // len(BANDS)], BANDS[of_band % len(BANDS)]
        title = _title_of(lane) + (f" · {band}" if band else "")
        title += f" ({number + 1})" if number else ""
        is_thread = not (lane["is_gpu"] or band or number)
        thread = _thread(lane, title) if is_thread else b""
        found[at] = tracks.add(title, groups[_group(lane)], thread)
    return found


def _title_of(lane: dict[str, object]) -> str:
    if lane["is_gpu"]:
        gpu = "" if lane["device"] is None else f"GPU {lane['device']} "
        return f"{gpu}stream {lane['tid']}"
    return str(lane["thread_name"] or f"thread {lane['tid']}")


def _thread(lane: dict[str, object], title: str) -> bytes:
    process, thread = _whole(lane["pid"]), _whole(lane["tid"])
    if process is None or thread is None:
        return b""
    numbers = [pb.one_number(1, process), pb.one_number(2, thread)]
    return pb.one_message(_THREAD, [*numbers, pb.one_text(5, title)])


def _flows(cut: Cut) -> tuple[Int64Array, Int64Array]:
    """For each event the arrows of launches and of forward operators that it ends; 0: none."""
    links = cut.trace.derived.select("launch", "forward").collect()
    number = np.arange(len(links), dtype=np.int64)

    def ends(column: str, base: int) -> Int64Array:
        other = links[column].fill_null(-1).to_numpy().astype(np.int64)
        known = other >= 0
        found = np.zeros(len(links), np.int64)
        found[number[known]] = base + other[known] + 1
        found[other[known]] = base + other[known] + 1
        return found

    return ends("launch", 0), ends("forward", _FORWARD_FLOWS)


def _events(
    args: pl.Series,
    marks: Marks,
    name_ids: Int64Array,
    uuid: Int64Array,
    flows: tuple[Int64Array, Int64Array],
    rows: slice,
    shift: int,
    tracks: _Tracks,
) -> bytes:
    event, begins = marks.slice[rows], marks.is_begin[rows]
    beginning = event[begins]
    name_id = name_ids[beginning]
    texts = args.gather(beginning).str.replace_all(_LINE_BREAK, "")
    annotation = pb.joined(
        [
            pb.bytes_field(_JSON_VALUE, pb.texts(texts)),
            pb.bytes_field(_ANNOTATION_NAME, pb.constant(b"args", len(beginning))),
        ]
    )
    has_text = texts.is_not_null().to_numpy()
    parts = [
        pb.number_field(_TYPE, np.where(begins, _BEGIN, _END)),
        pb.number_field(_TRACK, uuid[marks.track[rows]]),
        pb.only(pb.number_field(_NAME_IID, name_id + 1), begins),
        pb.only(pb.number_field(_CATEGORY_IID, name_id + 1), begins),
        pb.only(_where(pb.bytes_field(_ANNOTATION, annotation), has_text), begins),
    ]
    for flow in flows:
        number = flow[beginning]
        field_of = pb.fixed64_field(_FLOW, number[number > 0].astype(np.uint64))
        parts.append(pb.only(pb.only(field_of, number > 0), begins))
    return _packets(marks.time_ns[rows] + shift, pb.joined(parts), tracks)


def _where(pieces: pb.Pieces, rows: BoolArray) -> pb.Pieces:
    """The pieces with nothing in the rows that are not chosen."""
    kept = np.repeat(rows, pieces.length)
    return pb.Pieces(pieces.data[kept], np.where(rows, pieces.length, 0))


def _arguments(trace: Trace) -> pl.Series:
    number = trace.events.select("event")
    return number.join(trace.args, on="event", how="left", maintain_order="left").collect()["args"]


def _packets(time_ns: Int64Array, events: pb.Pieces, tracks: _Tracks) -> bytes:
    rows = len(time_ns)
    constant = tracks.on_sequence + pb.one_number(_FLAGS, _NEEDS_STATE)
    packet = [
        pb.number_field(_TIME, time_ns),
        pb.constant(constant, rows),
        pb.bytes_field(_EVENT, events),
    ]
    return pb.bytes_field(_PACKET, pb.joined(packet)).tobytes()


def _spans(
    spans: pl.DataFrame,
    track: int,
    shift: int,
    labels: pl.Series,
    known_names: int,
    tracks: _Tracks,
) -> bytes:
    """The packets of slices that Stepscope adds, on one track."""
    start, dur = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    marks = mark(np.zeros(len(spans), np.int64), start, dur)
    name = labels.search_sorted(spans["name"]).to_numpy().astype(np.int64) + known_names + 1
    begins, event = marks.is_begin, marks.slice
    texts = spans["args"].gather(event[begins])
    annotation = pb.joined(
        [
            pb.bytes_field(_JSON_VALUE, pb.texts(texts)),
            pb.bytes_field(_ANNOTATION_NAME, pb.constant(b"finding", len(texts))),
        ]
    )
    parts = [
        pb.number_field(_TYPE, np.where(begins, _BEGIN, _END)),
        pb.number_field(_TRACK, np.full(len(event), track)),
        pb.only(pb.number_field(_NAME_IID, name[event[begins]]), begins),
        pb.only(
            _where(pb.bytes_field(_ANNOTATION, annotation), texts.is_not_null().to_numpy()), begins
        ),
    ]
    return _packets(marks.time_ns + shift, pb.joined(parts), tracks)


def _counter(series: Series, groups: dict[str, int], tracks: _Tracks, shift: int) -> bytes:
    group = next((groups[key] for key in groups if series.name.endswith(key)), None)
    unit = pb.one_message(_COUNTER_OF, pb.one_text(6, series.unit))
    track = tracks.add(series.name, group, unit)
    rows = len(series.time_ns)
    parts = [
        pb.constant(pb.one_number(_TYPE, _COUNTER) + pb.one_number(_TRACK, track), rows),
        pb.fixed64_field(_DOUBLE_VALUE, series.value),
    ]
    return _packets(series.time_ns + shift, pb.joined(parts), tracks)
