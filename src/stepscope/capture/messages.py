"""Prints lines on standard error, and puts steps, sizes and durations into words."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable


def say(*lines: str) -> None:
    """Print lines on standard error. Never raises: the stream may be closed, or a stranger's."""
    if sys.stderr is None:
        return
    with contextlib.suppress(Exception):
        print("\n".join(f"stepscope: {line}" for line in lines), file=sys.stderr, flush=True)  # noqa: T201


def steps_text(first: int, last: int) -> str:
    """Consecutive steps in words."""
    return f"step {first}" if first >= last else f"steps {first} to {last}"


def size_text(size_bytes: int) -> str:
    """The size of files in the decimal unit that a person would choose."""
    return _in_unit(size_bytes, (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)))


def memory_text(size_bytes: int) -> str:
    """An amount of memory in the binary unit that a person would choose."""
    return _in_unit(size_bytes, (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)))


def _in_unit(size_bytes: int, units: tuple[tuple[str, int], ...]) -> str:
    for unit, scale in units:
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"


def duration_text(duration_ns: int) -> str:
    """A duration in the unit that a person would choose."""
    if duration_ns >= 1_000_000_000:
        return f"{duration_ns / 1e9:.1f} s"
    return (
        f"{duration_ns / 1e6:.0f} ms"
        if duration_ns >= 10_000_000
        else f"{duration_ns / 1e6:.1f} ms"
    )


def listed(parts: Iterable[str], most: int = 4) -> str:
    """Parts in a row; the middle of a long row is left out."""
    every = list(parts)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[: most - 1])}, …, {every[-1]}"
