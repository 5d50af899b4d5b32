"""Cuts the list of events into pieces that threads can scan: where an event seems to start."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.formats.chrome.scanner.scan_bytes import PADDING
from stepscope.trace.source.content import Content

_CUT = re.compile(
    rb'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*"(?:ph|cat|name|pid|tid|ts|dur|id|args)"[ \t\r\n]*:)'
)
_CUT_WINDOW = 4 * 1024


@dataclass(frozen=True)
class Piece:
    """Part of the file: `data[:end]`, which starts at byte `offset`."""

    data: npt.NDArray[np.uint8]
    end: int
    offset: int

    @property
    def view(self) -> memoryview:
        """The data as a memoryview."""
        return self.data.data


class Cutter:
    """Cuts the content where events seem to start, in a separate thread.

    Attributes:
        carry: The rest after the last cut, once there are no more pieces.
        enough: Set to stop producing pieces.
    """

    def __init__(self, data: bytes, offset: int, content: Content) -> None:
        self.carry = data
        self.enough = threading.Event()
        self._offset = offset
        self._content = content

    def pieces(self) -> Iterator[Piece]:
        """Yields the pieces in order."""
        if 2 * len(self.carry) >= self._content.size:  # a block is there already
            data = _allocate(len(self.carry))
            yield self._cut(data, _fill_up(data, self.carry, 0))
        while not self.enough.is_set():
            carried = len(self.carry)
            data = _allocate(carried + self._content.size)
            end = carried + self._content.read_into(
                data.data[carried : carried + self._content.size]
            )
            _fill_up(data, self.carry, end - carried)
            if end == carried:
                self.carry = b""
                if end:
                    yield Piece(data, end, self._offset)
                return
            yield self._cut(data, end)

    def _cut(self, data: npt.NDArray[np.uint8], end: int) -> Piece:
        """Returns the piece up to the last cut, and carries over what is after it."""
        cut = _last_cut(data.data, end)
        self.carry = bytes(data.data[cut:end])
        piece = Piece(data, cut, self._offset)
        self._offset += cut
        return piece


def _allocate(size: int) -> npt.NDArray[np.uint8]:
    """Returns a buffer of this size plus the padding that the scanner needs."""
    return np.empty(size + PADDING, np.uint8)


def _fill_up(data: npt.NDArray[np.uint8], text: bytes | bytearray, size: int) -> int:
    """Puts text before `size` bytes, and padding after them; returns where the padding begins."""
    end = len(text) + size
    data[: len(text)] = np.frombuffer(text, np.uint8)
    data[end : end + PADDING] = 0
    return end


def piece_of(text: bytes | bytearray, offset: int) -> Piece:
    """Copies bytes into a buffer with the padding that the scanner needs."""
    data = _allocate(len(text))
    return Piece(data, _fill_up(data, text, 0), offset)


def _last_cut(joined: memoryview, size: int) -> int:
    """Returns where the last event of some text seems to start, or its end."""
    window = _CUT_WINDOW
    while True:
        start = max(0, size - window)
        cut = -1
        for match in _CUT.finditer(joined, start, size):
            cut = match.end()
        if cut >= 0:
            return cut
        if start == 0:
            return size
        window *= 16
