"""Reads the fields of many Protocol Buffers messages at once.

A damaged message is read up to the damage.
Format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, eq=False)
class Fields:
    """The fields of messages, in order.

    Attributes:
        message: Number of the message that each field is in.
        wire: How it is written: `VARINT`, `FIXED64`, `BYTES` or `FIXED32`.
        value: Its bits; for `BYTES` their number.
        start: Where its bytes begin.
        damaged: Number of messages that end in damage.
    """

    message: Int64Array
    number: Int64Array
    wire: npt.NDArray[np.int8]
    value: npt.NDArray[np.uint64]
    start: Int64Array
    damaged: int

    def of(self, number: int, wire: int) -> BoolArray:
        """Which fields have this number and are written like this."""
        chosen: BoolArray = (self.number == number) & (self.wire == wire)
        return chosen

    def last(self, number: int, messages: int, default: int = 0) -> Int64Array:
        """For each message the value of a whole number, the last one if it has several."""
        found = np.full(messages, default, np.int64)
        chosen = self.of(number, VARINT)
        found[self.message[chosen]] = self.value[chosen].view(np.int64)
        return found

    def spans(self, number: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Of each field with bytes: its message, where it begins, where it ends."""
        chosen = self.of(number, BYTES)
        start = self.start[chosen]
        return self.message[chosen], start, start + self.value[chosen].view(np.int64)


def read_fields(data: npt.NDArray[np.uint8], start: Int64Array, end: Int64Array) -> Fields:
    """Read the fields of messages.

    Args:
        start: Where each message begins.
        end: Where it ends, within the file.
    """
    scan, counts = jit(scan_by_loop), np.zeros(2, np.int64)
    none = np.zeros(0, np.int64)
    starts, ends = np.ascontiguousarray(start), np.ascontiguousarray(end)
    empty = (none, none, none.astype(np.int8), none.astype(np.uint64), none)
    scan(data, starts, ends, *empty, False, counts)
    count, damaged = counts.tolist()
    message, number = np.empty(count, np.int64), np.empty(count, np.int64)
    wire, value = np.empty(count, np.int8), np.empty(count, np.uint64)
    where = np.empty(count, np.int64)
    scan(data, starts, ends, message, number, wire, value, where, True, counts)
    return Fields(message, number, wire, value, where, damaged)


def scan_by_loop(
    data: npt.NDArray[np.uint8], start: Int64Array, end: Int64Array, message: Written[np.int64],
    number: Written[np.int64], wire: Written[np.int8], value: Written[np.uint64],
    where: Written[np.int64], fills: bool, counts: Written[np.int64],
) -> None:  # fmt: skip
    """Counts the fields, or fills them in; `counts` receives their number and the damaged messages.

    Messages lie within the file, and no byte is looked at that does not lie in a message. There are
    as many fields when they are filled in as there were when they were counted.
    """
    found = 0
    damaged = 0
    for at in range(len(start)):
        place = int(start[at])
        last = int(end[at])
        while place < last:
            # The key: number of the field and how it is written.
            key = np.uint64(0)
            shift = 0
            is_whole = False
            while place < last and shift < 64:
                byte = int(data[place])
                place += 1
                key |= np.uint64(byte & 0x7F) << np.uint64(shift)
                shift += 7
                if byte < 0x80:
                    is_whole = True
                    break
            kind = int(np.int64(key & np.uint64(7)))
            bits = np.uint64(0)
            first = place
            if is_whole and kind in (0, 2):
                shift = 0
                is_whole = False
                while place < last and shift < 70:
                    byte = int(data[place])
                    place += 1
                    if shift < 64:
                        bits |= np.uint64(byte & 0x7F) << np.uint64(shift)
                    shift += 7
                    if byte < 0x80:
                        is_whole = True
                        break
                first = place
                if kind == 2 and is_whole:
                    if bits > np.uint64(last - place):
                        is_whole = False
                    else:
                        place += int(np.int64(bits))
            elif is_whole and kind in (1, 5):
                size = 8 if kind == 1 else 4
                if last - place < size:
                    is_whole = False
                else:
                    for step in range(size):
                        bits |= np.uint64(data[place + step]) << np.uint64(8 * step)
                    place += size
            else:
                is_whole = False
            if not is_whole:
                damaged += 1
                break
            if fills:
                message[found] = at
                number[found] = np.int64(key >> np.uint64(3))
                wire[found] = kind
                value[found] = bits
                where[found] = first
            found += 1
    counts[0], counts[1] = found, damaged
