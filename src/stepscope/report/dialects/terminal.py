"""Option names of other frameworks, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.adapters.options.sheets import DialectSheet


def write(sheets: Sequence[DialectSheet], sink: Sink, _layout: Layout) -> None:
    """Print the dialects one after the other: notes, then flags."""
    console = sink.console(width=width_for(sink))
    for number, sheet in enumerate(sheets):
        if number:
            console.print()
        console.print(Text.assemble((sheet.dialect.name, "bold"), f": {sheet.dialect.about}"))
        for note in sheet.notes:
            console.print(Text(f"  {note}"))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        for heading in ("flag", "option", "default", "form"):
            table.add_column(heading, overflow="fold", no_wrap=heading != "default")
        for flag in sheet.flags:
            table.add_row(" ".join(flag.names), flag.option, flag.default, flag.form)
        console.print(table)
