"""Parts of many rows, one after another, with progress on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.terminal.status_line import StatusLine


def parts_of(rows: int, at_once: int) -> Iterator[slice]:
    """Consecutive slices that cover some rows.

    Args:
        at_once: Rows of each slice; the last may reach beyond the end.
    """
    status = StatusLine()
    try:
        for first in range(0, rows, at_once):
            status.update(f"Writing events · {first / rows:.0%}")
            yield slice(first, first + at_once)
    finally:
        status.close()
