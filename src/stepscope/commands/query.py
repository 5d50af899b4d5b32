"""`stepscope query PATH "SELECT …"`: ask a trace in SQL."""

from __future__ import annotations

import click

DEFAULT_ROWS = 100
"""How many rows a table for people shows unless asked otherwise; programs get all."""


@click.command("query")
@click.argument("path", type=click.Path(path_type=str), required=False)
@click.argument("sql", required=False)
@click.option("--list", "list_views", is_flag=True, help="List the views and their columns.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="How to print the rows; parquet needs --output or a pipe.",
)
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
    "--output", "-o", type=click.Path(dir_okay=False), help="Write to this file, not to stdout."
)
def command(
    path: str | None,
    sql: str | None,
    *,
    list_views: bool,
    output_format: str,
    limit: int | None,
    time_limit_s: float | None,
    output: str | None,
) -> None:
    """Ask a trace in SQL (DuckDB's dialect, one SELECT, reading only).

    PATH is a trace file, a URL, - for standard input, or a run directory (the last window of its
    first rank). For example:

    stepscope query trace.json.gz "SELECT name, sum(dur_ns) AS ns FROM kernels GROUP BY name ORDER
    BY ns DESC LIMIT 10"
    """
    import sys

    from stepscope.errors import UsageError

    if list_views:
        from stepscope.trace.sql.query import view_columns

        _write(view_columns(), output_format, output)
        return
    if path is None or sql is None:
        raise UsageError("give a trace and a query, or --list for the views and columns")
    if output_format == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("parquet is no text: give --output FILE or pipe it on")
    from stepscope.commands.options import one_trace
    from stepscope.trace.sql.query import run_query

    if limit is None and output_format == "table":
        limit = DEFAULT_ROWS
    result = run_query(one_trace(path), sql, row_limit=limit or None, time_limit_s=time_limit_s)
    _write(result.rows, output_format, output)
    if result.is_cut:
        click.echo(f"only the first {limit} rows are shown; --limit 0 shows all", err=True)


def _write(frame: object, output_format: str, output: str | None) -> None:
    """Write a frame to a file or to stdout; only a terminal has a width that a table must fit."""
    import sys

    import polars as pl

    from stepscope.errors import UsageError
    from stepscope.report import frames

    assert isinstance(frame, pl.DataFrame)
    try:
        stream = click.open_file(output or "-", "wb")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from error
    with stream:
        if output_format == "table":
            import io

            from rich.console import Console

            if output is None and sys.stdout.isatty():
                frames.print_frame(frame, Console(highlight=False))
                return
            text = io.StringIO()
            frames.print_frame(frame, Console(file=text, width=10_000, highlight=False))
            stream.write(text.getvalue().encode())
        elif output_format == "csv":
            stream.write(frames.frame_as_csv(frame).encode())
        elif output_format == "json":
            stream.write(frames.frame_as_json(frame).encode() + b"\n")
        else:
            stream.write(frames.frame_as_parquet(frame))
