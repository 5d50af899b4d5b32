"""Random changes to the bytes of a file."""

from __future__ import annotations

import random
from collections.abc import Sequence

JSON_TOKENS = [
    *(bytes([byte]) for byte in b'{}[],:"\\ \n\x00\xff-.0e'), b'"ph"', b'"args":{', b'"ts":',
    b"},{", b'"X"', b"null", b"NaN", b"N/A", b"1e999", b"18446744073709551616", b"\\u", b"\\ud800",
    b'"correlation":', b'"id":', b'"B"', b'"E"', b"],", b'"traceEvents":[', b"\xef\xbb\xbf",
    b'{"ph":"X","name":"', b"\xc3", b"\xed\xa0\x80", b"\\\"", b'","', b"9" * 400, b"[" * 300,
]  # fmt: skip
"""What means something in a trace as JSON."""


def damaged(
    data: bytes,
    chance: random.Random,
    tokens: Sequence[bytes] = JSON_TOKENS,
    most_bytes: int = 200_000,
) -> bytes:
    """The bytes with a few random changes, cut to a length; never nothing.

    Args:
        data: The bytes.
        chance: Decides.
        tokens: What is put in between, and in the place of a byte.
        most_bytes: How many bytes remain at most.
    """
    for _ in range(chance.choice((1, 1, 2, 3, 8, 40))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(7)
        if kind == 0:
            data = data[:at] + chance.choice(tokens) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + chance.choice((1, 1, 2, 10, 200)) :]
        elif kind == 2:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            end = at + chance.randrange(400)
            data = data[:end] + data[at:end] * chance.choice((1, 1, 5)) + data[end:]
        elif kind == 4:
            data = data[:at] + chance.choice(tokens) + data[at + 1 :]
        elif kind == 5:
            other = chance.randrange(len(data) + 1)
            data = data[:at] + data[min(at, other) : max(at, other)] + data[at:]
        else:
            data = data[:at]
        data = data[:most_bytes] or tokens[0]
    return data
