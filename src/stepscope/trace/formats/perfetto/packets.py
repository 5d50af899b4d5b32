"""The packets of a trace as columns: track events, names, tracks.

Numbers of fields are those of perfetto/protos/perfetto/trace. What the product has no use for
(scheduling, heap profiles, …) is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.formats.perfetto.wire import FIXED64, Fields, read_fields

# Packet
_PACKET, TIME, _SEQUENCE, _EVENT, INTERNED, _FLAGS, _DEFAULTS, _DESCRIPTOR, _CLOCK = (
    1, 8, 10, 11, 12, 13, 59, 60, 58,
)  # fmt: skip
_STATE_CLEARED = 1
_SEQUENCE_CLOCKS = range(64, 128)
"""Clocks that count from the packet before, which track events of torch do not use."""
# Interned data
CATEGORIES, NAMES, ANNOTATION_NAMES, ANNOTATION_TEXTS = 1, 2, 3, 29
GPU_SPECIFICATIONS, COMPUTE_KERNELS, COMPUTE_ARGUMENTS = 24, 1000, 1001
_DEMANGLED = 3
# Track event
_CATEGORY_IID, _ANNOTATION, _TYPE, _NAME_IID, _TRACK, _CATEGORY, _NAME = 3, 4, 9, 10, 11, 22, 23
_INTEGER_VALUE, _DOUBLE_VALUE = 30, 44
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_NONE = -1


@dataclass(frozen=True, eq=False)
class Packets:
    """What a file holds.

    Attributes:
        events: One row per track event, in file order: time_ns, type, track, name, category,
            value (of counters), scope (which names its numbers mean).
        annotations: Spans of annotations: event (row), start, end.
        names: Interned texts: kind, scope, iid, text.
        damaged: Number of packets that could not be read to their end.
        other_clocks: Number of events that were left out, because their time counts from others.
        fields: The fields of all packets, for what else they hold.
        scope: For each packet which names its numbers mean.
    """

    events: pl.DataFrame
    annotations: pl.DataFrame
    names: pl.DataFrame
    tracks: dict[int, Track]
    damaged: int
    other_clocks: int
    fields: Fields
    scope: Int64Array

    def with_texts(self, frame: pl.DataFrame, **kinds: int) -> pl.DataFrame:
        """Adds the interned texts of a scope and numbers; null for unknown ones."""
        for column, kind in kinds.items():
            known = self.names.filter(kind=kind).select(
                "scope",
                pl.col("iid").alias(f"{column}_iid"),
                pl.col("text").alias(f"{column}_text"),
            )
            place = ["scope", f"{column}_iid"]
            frame = frame.join(known, on=place, how="left", maintain_order="left")
        return frame


@dataclass(frozen=True)
class Track:
    """Where events are drawn.

    Attributes:
        parent: Number of the track that it stands under; 0: none.
    """

    name: str | None = None
    parent: int = 0
    pid: int | None = None
    process_name: str | None = None
    tid: int | None = None
    thread_name: str | None = None


def read_packets(data: npt.NDArray[np.uint8]) -> Packets:
    """Read a file."""
    whole = read_fields(data, np.zeros(1, np.int64), np.array([len(data)]))
    _, start, end = whole.spans(_PACKET)
    packets = read_fields(data, start, end)
    count = len(start)
    scope = _scopes(packets, count)
    events, annotations, other = _events(data, packets, count, scope)
    return Packets(
        events,
        annotations,
        _interned(data, packets, scope),
        _tracks(data, packets),
        whole.damaged + packets.damaged,
        other,
        packets,
        scope,
    )


def _scopes(packets: Fields, count: int) -> Int64Array:
    """For each packet which names its numbers mean: they start anew where a writer says so."""
    frame = pl.DataFrame(
        {
            "sequence": packets.last(_SEQUENCE, count),
            "cleared": packets.last(_FLAGS, count) & _STATE_CLEARED,
        }
    ).with_columns(generation=pl.col("cleared").cum_sum().over("sequence"))
    ranked = frame.select(pl.struct("sequence", "generation").rank("dense").cast(pl.Int64))
    return ranked.to_series().to_numpy()


def _events(
    data: npt.NDArray[np.uint8], packets: Fields, count: int, scope: Int64Array
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    packet, start, end = packets.spans(_EVENT)
    clock = packets.last(_CLOCK, count)[packet]
    usable = ~np.isin(clock, list(_SEQUENCE_CLOCKS))
    packet, start, end = packet[usable], start[usable], end[usable]
    fields = read_fields(data, start, end)
    number = len(packet)
    default = _default_tracks(data, packets, count)
    sequence = packets.last(_SEQUENCE, count)[packet]
    track = fields.last(_TRACK, number, _NONE)
    missing = track == _NONE
    track[missing] = [default.get(int(one), 0) for one in sequence[missing]]
    value = fields.last(_INTEGER_VALUE, number).astype(np.float64)
    doubles = fields.of(_DOUBLE_VALUE, FIXED64)
    value[fields.message[doubles]] = fields.value[doubles].view(np.float64)
    events = pl.DataFrame(
        {
            "time_ns": packets.last(TIME, count)[packet],
            "type": fields.last(_TYPE, number),
            "track": track,
            "value": value,
            "scope": scope[packet],
            "name_iid": fields.last(_NAME_IID, number, _NONE),
            "category_iid": fields.last(_CATEGORY_IID, number, _NONE),
            "name": texts_of(data, fields, _NAME, number),
            "category": texts_of(data, fields, _CATEGORY, number),
        }
    ).with_row_index("event")
    event, first, last = fields.spans(_ANNOTATION)
    return (
        events,
        pl.DataFrame({"event": event, "start": first, "end": last}),
        int((~usable).sum()),
    )


def _default_tracks(data: npt.NDArray[np.uint8], packets: Fields, count: int) -> dict[int, int]:
    """The track of events that name none, by sequence."""
    sequence = packets.last(_SEQUENCE, count)
    packet, start, end = packets.spans(_DEFAULTS)
    of_events = read_fields(data, start, end).spans(_EVENT)
    tracks = read_fields(data, *of_events[1:]).last(_TRACK, len(of_events[0]))
    of = sequence[packet[of_events[0]]]
    return {int(one): int(track) for one, track in zip(of, tracks, strict=True)}


def texts_of(data: npt.NDArray[np.uint8], fields: Fields, number: int, messages: int) -> pl.Series:
    """The text of a field in each message; null where it has none."""
    message, start, end = fields.spans(number)
    found: list[str | None] = [None] * messages
    for at, first, last in zip(message.tolist(), start.tolist(), end.tolist(), strict=True):
        found[at] = text_at(data, first, last)
    return pl.Series(found, dtype=pl.String)


def text_at(data: npt.NDArray[np.uint8], start: int, end: int) -> str:
    """A piece of the file as text."""
    return data[start:end].tobytes().decode("utf-8", "replace")


def _interned(data: npt.NDArray[np.uint8], packets: Fields, scope: Int64Array) -> pl.DataFrame:
    packet, start, end = packets.spans(INTERNED)
    groups = read_fields(data, start, end)
    parts = []
    for kind in (
        CATEGORIES, NAMES, ANNOTATION_NAMES, ANNOTATION_TEXTS,
        GPU_SPECIFICATIONS, COMPUTE_KERNELS, COMPUTE_ARGUMENTS,
    ):  # fmt: skip
        group, first, last = groups.spans(kind)
        entries = read_fields(data, first, last)
        text = texts_of(data, entries, 2, len(group))
        if kind == COMPUTE_KERNELS:
            readable = texts_of(data, entries, _DEMANGLED, len(group))
            text = readable.zip_with(readable.is_not_null(), text)
        parts.append(
            pl.DataFrame(
                {
                    "kind": np.full(len(group), kind),
                    "scope": scope[packet[group]],
                    "iid": entries.last(1, len(group)),
                    "text": text,
                }
            )
        )
    return pl.concat(parts).unique(["kind", "scope", "iid"], keep="last", maintain_order=True)


def _tracks(data: npt.NDArray[np.uint8], packets: Fields) -> dict[int, Track]:
    _, start, end = packets.spans(_DESCRIPTOR)
    found: dict[int, Track] = {}
    for first, last in zip(start, end, strict=True):
        fields = _one(data, first, last)
        process, thread = (_inner(data, fields, number) for number in (3, 4))
        known = found.get(_number(fields, 1) or 0, Track())
        found[_number(fields, 1) or 0] = Track(
            name=_text(data, fields, 2) or _text(data, fields, 10) or known.name,
            parent=_number(fields, 5) or known.parent,
            pid=_first(_number(process, 1), _number(thread, 1), known.pid),
            process_name=_text(data, process, 6) or known.process_name,
            tid=_first(_number(thread, 2), known.tid),
            thread_name=_text(data, thread, 5) or known.thread_name,
        )
    return found


_Message = dict[int, tuple[int, int, int]]
"""Fields of one message by number: value, start, end."""


def _one(data: npt.NDArray[np.uint8], start: int, end: int) -> _Message:
    fields = read_fields(data, np.array([start]), np.array([end]))
    return {
        int(number): (int(value), int(first), int(first) + int(value))
        for number, value, first in zip(fields.number, fields.value, fields.start, strict=True)
    }


def _inner(data: npt.NDArray[np.uint8], message: _Message, number: int) -> _Message:
    return _one(data, *message[number][1:]) if number in message else {}


def _number(message: _Message, number: int) -> int | None:
    return message[number][0] if number in message else None


def _first(*numbers: int | None) -> int | None:
    """The first number that is there; it may be 0, as a GPU's is."""
    return next((number for number in numbers if number is not None), None)


def _text(data: npt.NDArray[np.uint8], message: _Message, number: int) -> str | None:
    return text_at(data, *message[number][1:]) if number in message else None
