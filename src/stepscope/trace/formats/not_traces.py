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


_BEGINNING_BYTES = 4096
_SNAPSHOT_KEYS = (b'"device_traces"', b'"segments"', b'"total_size"', b'"allocator_settings"')


def is_memory_snapshot(beginning: bytes) -> bool:
    """Whether content that starts with these bytes is a snapshot of torch's memory recorder.

    Any pickle of protocol 2 to 5 is taken for one: nothing else that Stepscope reads is a pickle.
    """
    if len(beginning) > 1 and beginning[0] == 0x80:
        return 2 <= beginning[1] <= 5
    start = beginning[:_BEGINNING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] in (b"{", b"[") and any(key in start for key in _SNAPSHOT_KEYS)


NOT_TRACES = (
    NotATrace(
        "a memory snapshot of torch's caching allocator, not a trace",
        "`stepscope memory FILE` shows it",
        is_memory_snapshot,
    ),
    _compressed("bzip2", b"BZh"),
    _compressed("xz", b"\xfd7zXZ"),
    _compressed("zip", b"PK\x03\x04"),
)
"""Tried in order; the first match is reported."""
