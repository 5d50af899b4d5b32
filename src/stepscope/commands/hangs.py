"""`stepscope hangs DUMP…`: which collective hangs and who is missing, from the flight recorder."""

from __future__ import annotations

import click

from stepscope.commands.options import INTEGERS, format_option
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Layout, Output


@click.command("hangs")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=str), metavar="DUMP…")
@format_option("answer", INTEGERS)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many ranks the job has.  [default: those that the dumps mention]",
)
@click.option(
    "--run", metavar="RUN", help="The run directory of the job: adds each rank's last step."
)
@click.option(
    "--table",
    metavar="NAME",
    help="Only this table. By default, csv prints the first and other formats print all.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Rows to print of each.",
)
def command(
    paths: tuple[str, ...],
    output: Output,
    ranks: int | None,
    run: str | None,
    table: str | None,
    rows: int,
) -> None:
    """Show which collective hangs, which ranks are missing in it, and which one began it.

    DUMP is a file of torch's flight recorder, a directory of them, or a quoted glob. Nothing in a
    dump is executed.
    """
    from stepscope.fleet.hangs.answer import answer_hang

    output.write(answer_hang(paths, ranks, run), StandardSink(), Layout(table, rows))
