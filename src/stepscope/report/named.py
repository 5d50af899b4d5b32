"""Names with what they are about, in two columns, without a heavy library."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable

from stepscope.report.outputs import Sink

_GAP = 2
_LEAST_COLUMNS = 30


def write_named(rows: Iterable[tuple[str, str]], sink: Sink, indent: int = 0) -> None:
    """Write a line for each name.

    On a terminal, what does not fit goes on in the second column. In a file or pipe, each name has
    one line, as for `grep`.

    Args:
        rows: Name, and what it is about.
        sink: Where they go.
        indent: Spaces before each name.
    """
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    start = indent + width + _GAP
    is_watched = sink.is_terminal or os.environ.get("COLUMNS")
    room = max(shutil.get_terminal_size().columns - start, _LEAST_COLUMNS)
    for name, about in listed:
        lines = textwrap.wrap(about, room, break_on_hyphens=False) if is_watched else [about]
        text = f"\n{' ' * start}".join(lines)
        sink.write(f"{' ' * indent}{name:<{width}}{' ' * _GAP}{text}\n")
