"""Recording options, their values and origins, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.adapters.options.settings import Settings


def write(settings: Settings, sink: Sink, _layout: Layout) -> None:
    """Print the options; values that are not defaults stand out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("option", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, setting in settings.settings.items():
        style = "dim" if setting.origin == "default" else "bold"
        table.add_row(name, setting.text, setting.origin, style=style)
    sink.console(width=width_for(sink)).print(table)
