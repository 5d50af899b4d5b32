"""`stepscope dialects`: option names of other frameworks that Stepscope understands."""

from __future__ import annotations

import click

from stepscope.commands.options import format_option
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Output


@click.command("dialects")
@click.argument("name", required=False)
@format_option("dialects")
def command(name: str | None, output: Output) -> None:
    """List the flags of each dialect, their defaults, and the files that it produces.

    NAME selects one dialect. By default all are listed.
    """
    from stepscope.adapters.options.dialects import DIALECTS, find_dialect

    chosen = [find_dialect(name)] if name else list(DIALECTS.values())
    output.write(chosen, StandardSink())
