"""Known kinds of files that are not traces: what they are, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class NotATrace:
    """A kind of file that is recognised but is not a trace.

    Attributes:
        description: What such a file is. In messages, it follows the file name and a colon.
        remedy: What to do with such a file.
        recognises: Whether content that starts with these bytes is of this kind.
    """

    description: str
    remedy: str
    recognises: Callable[[bytes], bool]


def _compressed(with_what: str, magic: bytes) -> NotATrace:
    return NotATrace(
        f"compressed with {with_what}, which is not supported",
        "decompress it, or compress it with gzip or zstd",
        lambda beginning: beginning.startswith(magic),
    )


NOT_TRACES = (
    _compressed("bzip2", b"BZh"),
    _compressed("xz", b"\xfd7zXZ"),
    _compressed("zip", b"PK\x03\x04"),
)
"""Tried in order; the first match is reported."""
