"""Perfetto traces as a format: recognition, and handing the events to the reader of Chrome traces.

Track events have beginnings and ends, instants and counters, names, categories and arguments, as
Chrome events do; GPU render stages have a duration. They are written as such and read by that
reader, so that one set of rules decides what a kernel, a launch or a stream is. Other data sources
of Perfetto (scheduling, heap profiles) are passed over. The file is held in memory.

An end closes the slice of its track that began last. torch writes blocks of many beginnings, then
their ends in the same order: where one slice ends at the nanosecond at which the next begins, or
two overlap, closing the last one would give both a wrong duration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import orjson
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.formats.chrome.written import member, microseconds
from stepscope.trace.formats.perfetto.packets import (
    BEGIN,
    CATEGORIES,
    COUNTER,
    END,
    INSTANT,
    NAMES,
    Packets,
    Track,
    read_packets,
)
from stepscope.trace.formats.trace_format import Input, TraceFormat

if TYPE_CHECKING:
    from stepscope.trace.formats.perfetto.gpu_stages import GpuStages
    from stepscope.trace.tables import Tables

_ROWS_AT_ONCE = 200_000
_KEY_OF_PACKET = 0x0A
_DEEPEST = 64
_GPU = re.compile(r"^GPU (\d{1,6})\b")
_STREAM = re.compile(r"^(?:GPU \d{1,6} )?stream (\d{1,18})$")
"""Names of groups and tracks that stand for a GPU and a stream."""


def _recognises(beginning: bytes) -> bool:
    """Whether the content begins with packets: each with its length, and fields that fill it."""
    place, packets = 0, 0
    while place < len(beginning) and packets < 4:
        if beginning[place] != _KEY_OF_PACKET:
            return False
        length, place = _varint(beginning, place + 1)
        if length is None or not length:
            return False
        last = place + length
        if last > len(beginning):
            return packets > 0 or _begins_message(beginning[place:])
        if not _is_message(beginning, place, last):
            return False
        place, packets = last, packets + 1
    return packets > 0


def _varint(data: bytes, place: int) -> tuple[int | None, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            return None, place
        value |= (data[place] & 0x7F) << shift
        place += 1
        if data[place - 1] < 0x80:
            return value, place
    return None, place


def _is_message(data: bytes, place: int, last: int) -> bool:
    while place < last:
        key, place = _varint(data, place)
        if key is None or not key >> 3 or key >> 3 > 2000:
            return False
        size: int | None
        if key & 7 == 0:
            size, place = _varint(data, place)
            size = None if size is None else 0
        elif key & 7 == 2:
            size, place = _varint(data, place)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
        if size is None or place + size > last:
            return False
        place += size
    return True


def _begins_message(data: bytes) -> bool:
    """Whether a packet that is longer than what is seen of it can begin like this."""
    key, _ = _varint(data, 0)
    return key is not None and key >> 3 in {6, 8, 10, 11, 12, 13, 33, 36, 42, 58, 59, 60, 87}


def _read(trace: Input) -> Tables:
    from stepscope.errors import UnreadableInputError
    from stepscope.trace.formats.chrome.reader import read_tables
    from stepscope.trace.formats.perfetto.annotations import arguments_of
    from stepscope.trace.formats.perfetto.gpu_stages import read_gpu_stages
    from stepscope.trace.source.content import Content

    trace.content.expect_no_events()
    data = np.frombuffer(b"".join(trace.content), np.uint8)
    packets = read_packets(data)
    stages = read_gpu_stages(data, packets)
    if not len(packets.events) and not len(stages.slices):
        raise UnreadableInputError(
            f"{trace.name}: a Perfetto trace without track events; Stepscope reads those that"
            " torch.profiler writes, or `stepscope export --to perfetto`"
        )
    args = arguments_of(data, packets.annotations, packets.names, packets.events["scope"])
    problems = trace.problems
    if packets.damaged:
        problems.add("damaged_packets", None, packets.damaged)
    if packets.other_clocks:
        problems.add("relative_clock", None, packets.other_clocks)
    return read_tables(trace.name, Content(_document(packets, args, stages)), problems)


def _document(packets: Packets, args: pl.DataFrame, stages: GpuStages) -> Iterator[bytes]:
    """The events as a Chrome trace; track events are in the order of time."""
    yield b'{"traceEvents": [\n'
    separator = b""
    for piece in (*_of_tracks(packets.tracks), *_of_lanes(stages.lanes)):
        yield separator + piece.encode()
        separator = b",\n"
    for kind in (_described(packets, args), _stages(stages), _samples(stages)):
        events = _texts(kind)
        for first in range(0, len(events), _ROWS_AT_ONCE):
            text = events.slice(first, _ROWS_AT_ONCE).str.join(",\n").item()
            yield separator + text.encode()
            separator = b",\n"
    yield b"\n]}\n"


def _described(packets: Packets, args: pl.DataFrame) -> pl.DataFrame:
    events = packets.with_texts(with_durations(packets.events), name=NAMES, category=CATEGORIES)
    events = events.with_columns(
        name=pl.coalesce("name", "name_text"), category=pl.coalesce("category", "category_text")
    ).drop("name_text", "category_text")
    phases = {BEGIN: "B", END: "E", INSTANT: "i", COUNTER: "C"}
    places = _places(packets.tracks, events["track"].unique().to_list())
    titles = {number: track.name or "" for number, track in packets.tracks.items()}
    is_counter = pl.col("type") == COUNTER
    overheads = [n for n, track in packets.tracks.items() if track.thread_name == "Overhead"]
    # torch gives neither of these a category: what profiling itself costs, and waits.
    category = (
        pl.when(pl.col("category").is_not_null())
        .then("category")
        .when(pl.col("track").is_in(overheads))
        .then(pl.lit("overhead"))
        .when(pl.col("args").str.contains('"cuda_sync_kind"', literal=True))
        .then(pl.lit("cuda_sync"))
    )
    name = pl.coalesce(
        "name", pl.when(is_counter).then(pl.col("track").replace_strict(titles, default=""))
    )
    events = events.join(args, on="event", how="left", maintain_order="left")
    events = events.with_columns(name=name, category=category)
    return (
        events.with_columns(
            phase=pl.when(pl.col("dur_ns").is_not_null())
            .then(pl.lit("X"))
            .otherwise(pl.col("type").replace_strict(phases, default=None, return_dtype=pl.String)),
            place=pl.col("track").replace_strict(places, default=None, return_dtype=pl.String),
            args=pl.when(is_counter).then(_value()).otherwise("args"),
        )
        .filter(pl.col("phase").is_not_null())
        .sort("time_ns", maintain_order=True)
    )


def _texts(events: pl.DataFrame) -> pl.Series:
    """Chrome events of those with phase, place, time_ns, dur_ns, name, category and args."""
    return (
        events.with_columns(name=_quoted(events["name"]), category=_quoted(events["category"]))
        .select(
            pl.concat_str(
                pl.lit('{"ph": "'), "phase", pl.lit('", '), "place",
                pl.lit(', "ts": '), microseconds("time_ns"),
                member("dur", microseconds("dur_ns")),
                member("name", pl.col("name")), member("cat", pl.col("category")),
                member("args", pl.col("args")),
                pl.lit("}"),
            )
        )
        .to_series()
    )  # fmt: skip


def _value() -> pl.Expr:
    return pl.concat_str(pl.lit('{"value": '), pl.col("value").cast(pl.String), pl.lit("}"))


def _stages(stages: GpuStages) -> pl.DataFrame:
    place = pl.format('"pid": {}, "tid": {}', "device", "lane")
    return stages.slices.with_columns(phase=pl.lit("X"), place=place)


def _samples(stages: GpuStages) -> pl.DataFrame:
    return stages.counters.with_columns(
        phase=pl.lit("C"),
        place=pl.format('"pid": "GPU {} Counters"', "device"),
        dur_ns=pl.lit(None, pl.Int64),
        category=pl.lit(None, pl.String),
        args=_value(),
    )


def _quoted(texts: pl.Series) -> pl.Series:
    """Texts as JSON, each distinct one encoded once."""
    distinct = texts.drop_nulls().unique().to_list()
    known = {text: orjson.dumps(text).decode() for text in distinct}
    return texts.replace_strict(known, default=None, return_dtype=pl.String)


def _places(tracks: dict[int, Track], used: list[int]) -> dict[int, str]:
    """For each track, the part of an event that says where it is."""
    found = {}
    taken: set[tuple[object, object]] = set()
    for number in sorted(used):
        pid, tid = _lane(tracks, number)
        if (pid, tid) in taken:  # another track of the same thread or name
            tid = f"{tid} (track {number})"
        taken.add((pid, tid))
        found[number] = f'"pid": {orjson.dumps(pid).decode()}, "tid": {orjson.dumps(tid).decode()}'
    return found


def _lane(tracks: dict[int, Track], number: int) -> tuple[int | str, int | str]:
    """Process and thread of a track: its own or those that it stands under, else names."""
    track = tracks.get(number)
    if track is None:
        return "", number
    top, process = track, track.pid
    for _ in range(_DEEPEST):
        above = tracks.get(top.parent) if top.parent else None
        if above is None:
            break
        top = above
        process = process if process is not None else above.pid
    if process is None:
        gpu = _GPU.match(top.name or "")
        process = int(gpu[1]) if gpu else None
    stream = _STREAM.match(track.name or "") if track.tid is None else None
    lane = int(stream[1]) if stream else track.tid if track.tid is not None else track.name
    return (top.name or "" if process is None else process), (number if lane is None else lane)


def _of_tracks(tracks: dict[int, Track]) -> Iterator[str]:
    for number, track in tracks.items():
        pid, tid = _lane(tracks, number)
        if track.process_name and track.pid is not None:
            yield _named("process_name", track.pid, 0, track.process_name)
        name = track.thread_name or (track.name if track.tid is not None else None)
        if name:
            yield _named("thread_name", pid, tid, name)


def _of_lanes(lanes: pl.DataFrame) -> Iterator[str]:
    for device, lane, title in lanes.iter_rows():
        yield _named("thread_name", device, orjson.loads(lane), title)


def _named(key: str, pid: object, tid: object, name: str) -> str:
    event = {"ph": "M", "name": key, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
    return orjson.dumps(event).decode()


FORMAT = TraceFormat(
    name="perfetto",
    recognises=_recognises,
    read=_read,
)
"""Protobuf traces with track events, `.pftrace`."""


def with_durations(events: pl.DataFrame) -> pl.DataFrame:
    """The events with `dur_ns`: known for beginnings in blocks, whose ends are left out.

    A block is a run of beginnings and a run of as many ends, on the same tracks in the same order,
    none before its beginning, somewhere in which time goes back: it never does where each event was
    written as it happened.

    Args:
        events: type, track and time_ns, in the order of the file.
    """
    kind, track, time = (events[name].to_numpy() for name in ("type", "track", "time_ns"))
    begins, size = _blocks(kind, track, time)
    dur = np.full(len(events), -1, np.int64)
    dur[begins] = time[begins + size] - time[begins]
    is_paired_end = np.zeros(len(events), np.bool_)
    is_paired_end[begins + size] = True
    column = pl.Series("dur_ns", dur)
    return events.with_columns(dur_ns=column.set(column < 0, None)).filter(~is_paired_end)


def _blocks(kind: Int64Array, track: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rows of beginnings in blocks, and for each how many rows further its end is."""
    none = np.zeros(0, np.int64)
    if len(kind) < 2:
        return none, none
    starts = np.concatenate(([0], np.flatnonzero(np.diff(kind)) + 1))
    lengths = np.diff(np.append(starts, len(kind)))
    chosen = np.flatnonzero(
        (kind[starts[:-1]] == BEGIN) & (kind[starts[1:]] == END) & (lengths[:-1] == lengths[1:])
    )
    if not len(chosen):
        return none, none
    starts, lengths = starts[chosen], lengths[chosen]
    first = np.cumsum(lengths) - lengths
    size = np.repeat(lengths, lengths)
    row = np.repeat(starts - first, lengths) + np.arange(len(size))
    fits = (track[row] == track[row + size]) & (time[row] <= time[row + size])
    back = np.concatenate(([0], np.cumsum(np.diff(time) < 0)))
    goes_back = back[starts + 2 * lengths - 1] > back[starts]
    is_block: BoolArray = np.logical_and.reduceat(fits, first) & goes_back
    inside = np.repeat(is_block, lengths)
    return row[inside], size[inside]
