"""Writes scalars as TensorBoard reads them: TFRecords of `Event` messages.

A record is its length, a checksum of the length, the message, a checksum of the message. Checksums
are CRC-32C, rotated by 15 bits and shifted by a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.export import protobuf as pb
from stepscope.trace.arrays.intervals import Int64Array

_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


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


def event_file(scalars: Sequence[Scalars], created_ns: int) -> bytes:
    """The bytes of a file with these scalars."""
    version = pb.one_double(_WALL_TIME, created_ns / 1e9) + pb.one_text(
        _FILE_VERSION, "brain.Event:2"
    )
    parts = [_records(pb.constant(version, 1))]
    parts += [_records(_events(one)) for one in scalars if len(one.step)]
    return b"".join(parts)


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
