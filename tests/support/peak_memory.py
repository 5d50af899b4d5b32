"""Peak memory of reading a trace that is never whole anywhere, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from dataclasses import dataclass

_CHILD = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from tests.support.peak_memory import read_made
print(json.dumps(read_made(*json.loads(sys.argv[2]))))
"""


@dataclass(frozen=True)
class Reading:
    """What reading took.

    Attributes:
        events: How many there were.
        peak_bytes: The largest resident set of the process, its libraries included.
    """

    events: int
    peak_bytes: int


def peak_of_reading(
    trace: int | str, block_bytes: int, rows: int, *, packed: bool = False
) -> Reading:
    """Reads a trace into a store, in a process of its own.

    Args:
        trace: How many events (of about 330 bytes) a made stream has; or a URL.
        block_bytes: Size of the blocks that it is read in.
        rows: Rows of a part of the store.
        packed: Whether a made stream is packed with gzip.
    """
    arguments = [json.dumps(sys.path), json.dumps([trace, block_bytes, rows, packed])]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    return Reading(*json.loads(done.stdout))


class MadeStream:
    """A trace that is made while it is read, and cannot seek."""

    def __init__(self, events: int) -> None:
        self._left = events
        self._ready = bytearray(b'{"schemaVersion": 1, "traceEvents": [\n')
        self._made = 0

    def read(self, size: int) -> bytes:
        """The next bytes, as many as asked for while there are any."""
        while len(self._ready) < size and self._left:
            number = self._made
            self._made += 1
            self._left -= 1
            ending = "," if self._left else '],\n"traceName": "made"}'
            self._ready += (
                f'  {{\n    "ph": "X", "cat": "kernel", "name": "kernel_{number % 100}", "pid": '
                f'0, "tid": 7,\n    "ts": {number * 3}.{number % 1000:03}, "dur": 2.500,\n    '
                f'"args": {{\n      "External id": {number}, "queued": 0, "device": 0, "context": '
                f'1, "stream": 7, "correlation": {number}, "registers per thread": 32, '
                f'"shared memory": 16384, "grid": [{number % 977}, 1, 1], "block": [256, 1, 1], '
                f'"est. achieved occupancy %": 62\n    }}\n  }}{ending}\n'
            ).encode()
        piece = bytes(self._ready[:size])
        del self._ready[:size]
        return piece


class PackedStream:
    """The same, packed with gzip on the way."""

    def __init__(self, events: int) -> None:
        self._plain = MadeStream(events)
        self._packer = zlib.compressobj(1, wbits=31)
        self._ready = bytearray()
        self._is_over = False

    def read(self, size: int) -> bytes:
        """The next bytes, as many as asked for while there are any."""
        while len(self._ready) < size and not self._is_over:
            plain = self._plain.read(1 << 18)
            self._is_over = not plain
            self._ready += self._packer.compress(plain) if plain else self._packer.flush()
        piece = bytes(self._ready[:size])
        del self._ready[:size]
        return piece


def read_made(trace: int | str, block_bytes: int, rows: int, packed: bool) -> tuple[int, int]:
    """As `peak_of_reading`, in this process: the events, and its peak in bytes."""
    from stepscope.trace import load
    from stepscope.trace.source import opening as source
    from stepscope.trace.store import writer as store

    source.Source.blocks.__defaults__ = (block_bytes, None)  # type: ignore[attr-defined]
    store._ROWS_PER_PART = dict.fromkeys(store._ROWS_PER_PART, rows)
    location = trace if isinstance(trace, str) else (PackedStream if packed else MadeStream)(trace)
    read = load.load(location, store=True)  # type: ignore[arg-type]
    found = read.events.select("event").collect().height
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        # Not getrusage: what it says begins with the memory of whoever started this process.
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return found, peak
