"""Progress of reading a large file, shown on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_INTERVAL_SECONDS = 0.2
_PATIENCE_SECONDS = 1.0


class Progress:
    """One line on stderr with share, rate and time left. Silent unless stderr is a terminal."""

    def __init__(self, name: str, total_bytes: int | None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._name = name
        self._total = total_bytes
        self._done = 0
        self._began = time.monotonic()
        self._shown = self._began + _PATIENCE_SECONDS  # nothing is shown for short reads
        self._visible = False
        self._enabled = self._stream is not None and self._stream.isatty()

    @property
    def done_bytes(self) -> int:
        """How many bytes were read, as stored."""
        return self._done

    def advance(self, count: int) -> None:
        """Counts bytes read from the file, as stored."""
        self._done += count
        now = time.monotonic()
        if self._enabled and now - self._shown >= _INTERVAL_SECONDS:
            self._shown, self._visible = now, True
            self._stream.write(f"\r\x1b[K{self.line(now - self._began)}")
            self._stream.flush()

    def line(self, seconds: float) -> str:
        """Returns the line to show after some seconds."""
        rate = self._done / seconds if seconds > 0 else 0.0
        parts = [f"Reading {self._name}", f"{rate / 1e6:.0f} MB/s"]
        if self._total and rate:
            share = min(self._done / self._total, 1.0)
            left = max(self._total - self._done, 0) / rate
            parts = [parts[0], f"{share:.0%}", parts[1], f"{left:.0f} s left"]
        return " · ".join(parts)

    def close(self) -> None:
        """Clears the line."""
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
