"""Curves for TensorBoard: files in the folder that `tensorboard --logdir` shows.

Scalars are TFRecords of `Event` messages. A record is its length, a checksum of the length, the
message, a checksum of the message. Checksums are CRC-32C, rotated by 15 bits and shifted by a
constant.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

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
            self._file.write(b"".join(map(_record, _events(point))))
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
    return _record(version)


def _events(point: Point) -> Iterator[bytes]:
    for name, value in point.values.items():
        scalar = pb.one_text(_TAG, name) + pb.one_float(_SIMPLE_VALUE, value)
        yield (
            pb.one_double(_WALL_TIME, point.time_ns / 1e9)
            + pb.one_number(_STEP, max(point.step, 0))
            + pb.one_message(_SUMMARY, pb.one_message(_VALUE, scalar))
        )


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _checksum(length) + message + _checksum(message)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [one >> 1 ^ (_POLYNOMIAL if one & 1 else 0) for one in table]
    return table
