"""The fixes that can be tried, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.trial.fixes import Fix


def write(fixes: Sequence[Fix], sink: Sink, _layout: Layout) -> None:
    """Print each fix with the findings that it answers."""
    console = sink.console(width=width_for(sink))
    for fix in fixes:
        asked = "   only if named" if fix.only_if_asked else ""
        console.print(Text.assemble((fix.name, "bold"), f"  {fix.title}", (asked, "dim")))
        for label, text in (
            ("answers", ", ".join(fix.answers)),
            ("applies to", fix.applies_to),
            ("risks", fix.risks),
        ):
            console.print(Padding(Text(f"{label}: {text}", "dim"), (0, 0, 0, 2), expand=False))
