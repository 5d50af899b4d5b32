"""Pages of the manual, and lists of what has a name; without a heavy library where possible."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from stepscope._manual import KINDS, Page

if TYPE_CHECKING:
    from stepscope.report.outputs import Sink

_MOST_COLUMNS = 100
_GAP = 2
_LEAST_COLUMNS = 30


def write_page(text: str, sink: Sink) -> None:
    """Write a page; as plain Markdown where nobody watches."""
    if not sink.is_terminal:
        sink.write(text)
        return
    from rich.markdown import Markdown

    console = sink.console()
    console.print(Markdown(text), width=min(console.width, _MOST_COLUMNS))


def write_list(pages: Mapping[str, Page], sink: Sink) -> None:
    """List the pages by what they are about."""
    width = max(map(len, pages), default=0)
    for kind, name in KINDS.items():
        sink.write(f"{name}:\n")
        listed = ((f"{one.id:<{width}}", one.title) for one in pages.values() if one.kind == kind)
        write_named(listed, sink, indent=2)


def write_named(rows: Iterable[tuple[str, str]], sink: Sink, indent: int = 0) -> None:
    """Write a line for each name.

    On a terminal, what does not fit continues in the second column. In a file or pipe, each name
    has one line, as for `grep`.

    Args:
        rows: Name, and what it is about.
    """
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    start = indent + width + _GAP
    is_watched = sink.is_terminal or os.environ.get("COLUMNS")
    columns = max(shutil.get_terminal_size().columns - start, _LEAST_COLUMNS)
    for name, about in listed:
        lines = textwrap.wrap(about, columns, break_on_hyphens=False) if is_watched else [about]
        text = f"\n{' ' * start}".join(lines)
        sink.write(f"{' ' * indent}{name:<{width}}{' ' * _GAP}{text}\n")
