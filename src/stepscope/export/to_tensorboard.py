"""`--to tensorboard`: a folder for `tensorboard --logdir`.

Layout
    `rankNNNNN/events.out.tfevents.…` has the curves of a rank (`metrics.table`): each step of the
    record, or the trace's steps where there is no record, and the samples of `metrics.csv`, by the
    last step that had begun.
    `trace/rankN.MS.pt.trace.json.gz` are the traces, as the profiler's plugin expects them.

Scalars are TFRecords of `Event` messages. A record is its length, a checksum of the length, the
message, a checksum of the message. Checksums are CRC-32C, rotated by 15 bits and shifted by a
constant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.record.live import LiveSample, RankView, RunView, progress_over
from stepscope.errors import UnreadableInputError
from stepscope.export import protobuf as pb
from stepscope.export.lag import lag_notes
from stepscope.export.metrics.curves import Curves
from stepscope.export.metrics.table import Moment, curve_points
from stepscope.export.request import Exported, Request, Source, folder_writer
from stepscope.export.selection import cut
from stepscope.export.to_chrome import write_chrome
from stepscope.run.metrics import read_samples
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace

if TYPE_CHECKING:
    from stepscope.export.metrics.watch import Watch

_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8

_MS = 1e-6


@dataclass(frozen=True, eq=False)
class Scalars:
    """The values of one tag.

    Attributes:
        tag: Its name, with groups before "/".
        time_ns: Unix time of each value.
    """

    tag: str
    step: Int64Array
    time_ns: Int64Array
    value: npt.NDArray[np.float64]


class TensorBoardWriter:
    """Appends a run's curves to a file in the folder that TensorBoard shows."""

    name = "TensorBoard"
    is_served = False

    def __init__(self, watch: Watch, folder: Path) -> None:
        self.is_done = False
        self.where = str(folder)
        self._folder = folder
        self._file: BinaryIO | None = None
        self._curves = Curves(watch)

    def write(self) -> None:
        """Append the points since the last time."""
        for point in self._curves.new_points():
            if self._file is None:
                self._file = self._created(point.time_ns)
            at, when = np.array([point.step]), np.array([point.time_ns])
            scalars = [Scalars(name, at, when, np.array([v])) for name, v in point.values.items()]
            self._file.write(_all_records(scalars))
            self._file.flush()
        self.is_done = self._curves.has_ended

    def _created(self, time_ns: int) -> BinaryIO:
        assert self._curves.path is not None
        folder = self._folder / self._curves.path.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / _file_name(time_ns)).open("wb")
        except OSError as error:
            raise UnreadableInputError(f"{folder}: {error.strerror or error}") from error
        file.write(_header(time_ns))
        return file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _file_name(created_ns: int) -> str:
    return f"events.out.tfevents.{max(created_ns, 0) // 10**9:010d}.stepscope"


def event_file(scalars: Sequence[Scalars], created_ns: int) -> bytes:
    """The bytes of a file with these scalars."""
    return _header(created_ns) + _all_records(scalars)


def _header(created_ns: int) -> bytes:
    version = pb.one_double(_WALL_TIME, created_ns / 1e9) + pb.one_text(
        _FILE_VERSION, "brain.Event:2"
    )
    return _records(pb.constant(version, 1))


def _all_records(scalars: Sequence[Scalars]) -> bytes:
    return b"".join(_records(_events(one)) for one in scalars if len(one.step))


def _events(scalars: Scalars) -> pb.Pieces:
    rows = len(scalars.step)
    value = pb.joined(
        [
            pb.constant(pb.one_text(_TAG, scalars.tag), rows),
            pb.float_field(_SIMPLE_VALUE, scalars.value),
        ]
    )
    return pb.joined(
        [
            pb.fixed64_field(_WALL_TIME, scalars.time_ns / 1e9),
            pb.number_field(_STEP, np.maximum(scalars.step, 0)),
            pb.bytes_field(_SUMMARY, pb.bytes_field(_VALUE, value)),
        ]
    )


def _records(messages: pb.Pieces) -> bytes:
    length = messages.length.astype("<u8").view(np.uint8)
    lengths = pb.Pieces(length, np.full(len(messages), 8, np.int64))
    parts = [lengths, _checksums(lengths), messages, _checksums(messages)]
    return pb.joined(parts).tobytes()


def _checksums(pieces: pb.Pieces) -> pb.Pieces:
    crc = crc32c(pieces)
    rotated = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK)
    data = rotated.astype("<u4").view(np.uint8)
    return pb.Pieces(data, np.full(len(pieces), 4, np.int64))


def crc32c(pieces: pb.Pieces) -> npt.NDArray[np.uint32]:
    """The CRC-32C (Castagnoli) of each row's bytes."""
    table = _table()
    crc = np.full(len(pieces), 0xFFFFFFFF, np.uint32)
    first = np.cumsum(pieces.length) - pieces.length
    for at in range(int(pieces.length.max(initial=0))):
        rows = np.flatnonzero(pieces.length > at)
        index = (crc[rows] ^ pieces.data[first[rows] + at]) & np.uint32(0xFF)
        crc[rows] = table[index] ^ (crc[rows] >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


def _table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


def export(asked: Request) -> Exported:
    """Write a folder."""
    notes: list[str] = []
    values = 0
    with folder_writer(asked.destination) as folder:
        for source in asked.sources:
            trace = source.ref.open()
            part = cut(trace, asked.selection)
            notes.extend(lag_notes(part, asked.selection, asked.rank_of(source)))
            scalars = _of_run(source)
            if not any(record.is_whole_step for record in source.records):
                scalars += _of_steps(trace)
            created_ns = trace.base_time_ns + part.start_ns
            with folder.file(f"rank{source.rank:05d}", _file_name(created_ns)) as write:
                write(event_file(scalars, created_ns))
            values += sum(len(one.step) for one in scalars)
            name = f"rank{source.rank}.{max(created_ns, 0) // 10**6}.pt.trace.json.gz"
            with folder.file("trace", name) as write:
                write_chrome(part, write)
    summary = f"{values:,} scalars; open with: tensorboard --logdir {asked.destination}"
    return Exported(tuple(folder.files), summary, tuple(notes))


def _of_run(source: Source) -> list[Scalars]:
    """Each step of the record, and each sample of metrics at the last step that had begun."""
    curves: dict[str, list[tuple[int, int, float]]] = {}

    def add(step: int, time_ns: int, moment: Moment) -> None:
        for name, value in curve_points(moment).items():
            curves.setdefault(name, []).append((step, time_ns, value))

    records = [record for record in source.records if record.is_whole_step]
    for record in records:
        view = RankView(source.rank, None, progress_over([record]), None, ())
        end_ns = record.start_ns + record.dur_ns
        add(record.step, end_ns, Moment(RunView(Path(), (view,), 0)))
    begins = [record.start_ns for record in records]
    for number, sample in enumerate(read_samples(source.metrics) if source.metrics else ()):
        time_ns = sample[0].get("time_ns", "")
        if time_ns.isdecimal():
            at = max(0, bisect_right(begins, int(time_ns)) - 1)
            step = records[at].step if records else number
            add(step, int(time_ns), Moment(None, (LiveSample("", "", sample),)))
    found = []
    for name, points in curves.items():
        steps, times, values = zip(*points, strict=True)
        found.append(Scalars(name, np.array(steps), np.array(times), np.array(values, np.float64)))
    return found


def _of_steps(trace: Trace) -> list[Scalars]:
    found = []
    base = trace.base_time_ns
    tables = [("stepscope/host_step_ms", trace.steps.filter("is_complete"))]
    tables += [
        (f"stepscope/gpu_step_ms/{device}", mine)
        for (device,), mine in trace.device_steps.group_by(["device"], maintain_order=True)
    ]
    for tag, table in tables:
        found.append(
            Scalars(
                tag,
                table["step"].cast(pl.Int64).to_numpy(),
                table["end_ns"].to_numpy() + base,
                (table["end_ns"] - table["start_ns"]).to_numpy() * _MS,
            )
        )
    return found
