"""Progress of reading a large file, shown on a terminal."""

from __future__ import annotations

from typing import TextIO

from stepscope.terminal.working import StatusLine


class Progress:
    """One line on stderr with share, rate and time left. Silent unless stderr is a terminal."""

    def __init__(self, name: str, total_bytes: int | None, stream: TextIO | None = None) -> None:
        self._status = StatusLine(stream)
        self._name = name
        self._total = total_bytes
        self._done = 0

    @property
    def done_bytes(self) -> int:
        """How many bytes were read, as stored."""
        return self._done

    def advance(self, count: int) -> None:
        """Counts bytes read from the file, as stored."""
        self._done += count
        self._status.update(self.line)

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
        self._status.close()
