"""Files that are known, but are no traces: what they are, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class NotATrace:
    """A kind of file that Stepscope names rather than reads as a trace.

    Attributes:
        description: What such a file is, to follow its name and a colon.
        remedy: What to do with it.
        recognises: Whether content that begins with these bytes is such a file.
    """

    description: str
    remedy: str
    recognises: Callable[[bytes], bool]


def _compressed(with_what: str, magic: bytes) -> NotATrace:
    return NotATrace(
        f"compressed with {with_what}, which is not supported",
        "unpack it, or pack it with gzip or zstd",
        lambda beginning: beginning.startswith(magic),
    )


NOT_TRACES = (
    _compressed("bzip2", b"BZh"),
    _compressed("xz", b"\xfd7zXZ"),
    _compressed("zip", b"PK\x03\x04"),
)
"""The first that recognises a file names it."""
