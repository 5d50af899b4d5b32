"""`stepscope hangs DUMP…`: which collective hangs and who is missing, from the flight recorder."""

from __future__ import annotations

import click

from stepscope.commands.options import (
    INPUT,
    INTEGERS,
    format_option,
    output_option,
    rows_option,
    table_options,
)
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import Layout, Output
from stepscope.terminal.working import working


@click.command("hangs")
@click.argument("paths", nargs=-1, required=True, type=INPUT, metavar="DUMP…")
@format_option("answer", INTEGERS)
@output_option
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many ranks the job has.  [default: those that the dumps mention]",
)
@click.option(
    "--run", metavar="RUN", help="The run directory of the job: adds each rank's last step."
)
@table_options
@rows_option(30)
def command(
    paths: tuple[str, ...],
    output: Output,
    file: str | None,
    world_size: int | None,
    run: str | None,
    table: str | None,
    columns: tuple[str, ...] | None,
    rows: int | None,
) -> None:
    """Show which collective hangs, which ranks are missing in it, and which one began it.

    DUMP is a file of torch's flight recorder, a directory of them, or a quoted glob. Nothing in a
    dump is executed.
    """
    from stepscope.fleet.hangs.answer import answer_hang

    with working("Reading the dumps"):
        answered = answer_hang(paths, world_size, run)
    with sink_for(file) as sink:
        output.write(answered, sink, Layout(table, rows, columns))
