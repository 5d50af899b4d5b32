"""Files that unpack to much more than they hold: one unit, repeated."""

from __future__ import annotations

import zlib
from pathlib import Path

EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":7,"dur":5,"args":{}}'
OPENINGS = {
    "nothing": b"",
    "list": b"[",
    "events": b'{"traceEvents":[',
    "header": b'{"header":',
    "after an event": b'{"traceEvents":[' + EVENT + b",",
    "name": b'{"traceEvents":[' + EVENT + b',{"ph":"X","ts":1,"name":"',
    "arguments": b'{"traceEvents":[' + EVENT + b',{"ph":"X","ts":1,"name":"a","args":',
    "footer": b'{"traceEvents":[' + EVENT + b'],"footer":',
}
"""What a file begins with."""
UNITS = {
    "lists": b"[",
    "objects": b"{",
    "quotes": b'"',
    "commas": b",",
    "digits": b"1",
    "zero bytes": b"\0",
    "spaces": b" ",
    "letters": b"a",
    "backslashes": b"\\",
    "bad bytes": b"\xff",
    "closing": b"]",
    "nested": b'{"a":',
    "elements": b"[0,",
    "empty": b"{},",
    "unknown": b'{"a":1},',
    "strings": b'"",',
}
"""What is repeated."""


def write_bomb(path: Path, opening: bytes, unit: bytes, size: int) -> Path:
    """Writes a gzip file that unpacks to about `size` bytes, a thousand times its own."""
    packer = zlib.compressobj(6, wbits=31)
    block = unit * max(1, (1 << 20) // len(unit))
    with path.open("wb") as file:
        file.write(packer.compress(opening))
        for _ in range(size // len(block)):
            file.write(packer.compress(block))
        file.write(packer.flush())
    return path
