"""Files that unpack to much more than they hold: one unit, repeated."""

from __future__ import annotations

import struct
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
    block = unit * max(1, (1 << 20) // len(unit))
    count = size // len(block)
    # Nothing refers across a full flush, so that one packed block can be written again and again.
    packed = _packed(block)
    check = zlib.crc32(opening)
    for _ in range(count):
        check = zlib.crc32(block, check)
    length = (len(opening) + count * len(block)) % 2**32
    with path.open("wb") as file:
        file.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + _packed(opening) + packed * count)
        file.write(b"\x03\0" + struct.pack("<II", check, length))
    return path


def _packed(data: bytes) -> bytes:
    packer = zlib.compressobj(6, wbits=-15)
    return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)
