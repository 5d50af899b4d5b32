"""Curves for TensorBoard: files in the folder that `tensorboard --logdir` shows.

Scalars are TFRecords of `Event` messages. A record is its length, a checksum of the length, the
message, a checksum of the message. Checksums are CRC-32C, rotated by 15 bits and shifted by a
constant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.export import protobuf as pb
from stepscope.export.metrics.curves import Curves, Point

if TYPE_CHECKING:
    from stepscope.export.metrics.watch import Watch

_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


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
            self._file.write(_records(_events(point)))
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


def _header(created_ns: int) -> bytes:
    version = pb.one_double(_WALL_TIME, created_ns / 1e9) + pb.one_text(
        _FILE_VERSION, "brain.Event:2"
    )
    return _records(pb.constant(version, 1))


def _events(point: Point) -> pb.Pieces:
    rows = len(point.values)
    value = pb.joined(
        [
            pb.bytes_field(_TAG, pb.texts(pl.Series(list(point.values), dtype=pl.String))),
            pb.float_field(_SIMPLE_VALUE, np.array(list(point.values.values()))),
        ]
    )
    return pb.joined(
        [
            pb.fixed64_field(_WALL_TIME, np.full(rows, point.time_ns / 1e9)),
            pb.number_field(_STEP, np.full(rows, max(point.step, 0))),
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
