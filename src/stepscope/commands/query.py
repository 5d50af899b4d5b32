"""`stepscope query PATH "SELECT …"`: ask a trace in SQL."""

from __future__ import annotations

import click

from stepscope.commands.options import format_option
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import Output

DEFAULT_ROWS = 100
"""How many rows are shown to people unless asked otherwise; programs get all."""


@click.command("query")
@click.argument("path", type=click.Path(path_type=str), required=False)
@click.argument("sql", required=False)
@click.option("--list", "list_views", is_flag=True, help="List the views and their columns.")
@format_option("rows", "How to print the rows; parquet needs --output or a pipe.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"At most so many rows [default: {DEFAULT_ROWS} in a table, else all; 0: all].",
)
@click.option(
    "--timeout",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop the query after so many seconds.",
)
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(dir_okay=False),
    help="Write to this file, not to stdout.",
)
def command(
    path: str | None,
    sql: str | None,
    *,
    list_views: bool,
    output: Output,
    limit: int | None,
    time_limit_s: float | None,
    file: str | None,
) -> None:
    """Ask a trace in SQL (DuckDB's dialect, one SELECT, reading only).

    PATH is a trace file, a URL, - for standard input, or a run directory (the last window of its
    first rank). For example:

    stepscope query trace.json.gz "SELECT name, sum(dur_ns) AS ns FROM kernels GROUP BY name ORDER
    BY ns DESC LIMIT 10"
    """
    from stepscope.errors import UsageError

    with sink_for(file) as sink:
        if list_views:
            from stepscope.trace.sql.query import view_columns

            output.write(view_columns(), sink)
            return
        if path is None or sql is None:
            raise UsageError("give a trace and a query, or --list for the views and columns")
        if not output.format.is_text and sink.is_terminal:
            raise UsageError(f"{output.format.name} is no text: give --output FILE or pipe it on")
        from stepscope.trace.paths import resolve_path
        from stepscope.trace.sql.query import run_query

        if limit is None and output.format.is_for_people:
            limit = DEFAULT_ROWS
        trace = resolve_path(path).one_trace().open()
        result = run_query(trace, sql, row_limit=limit or None, time_limit_s=time_limit_s)
        output.write(result.rows, sink)
    if result.is_cut:
        click.echo(f"only the first {limit} rows are shown; --limit 0 shows all", err=True)
