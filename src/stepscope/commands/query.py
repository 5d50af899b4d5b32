"""`stepscope query PATH "SELECT …"`: query a trace with SQL."""

from __future__ import annotations

import click

from stepscope.commands.options import (
    INPUT,
    format_option,
    numbers,
    output_option,
    row_count,
)
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import Output
from stepscope.terminal.plain_text import quoted
from stepscope.terminal.working import working

DEFAULT_ROWS = 100
"""Rows shown to people by default; programs get all."""


@click.command("query")
@click.argument("path", type=INPUT, required=False)
@click.argument("sql", required=False)
@click.option("--list", "list_views", is_flag=True, help="List the views and their columns.")
@format_option("rows", "parquet needs --output or a pipe")
@click.option(
    "--rows",
    metavar="N|all",
    callback=lambda _context, _parameter, text: None if text is None else (row_count(text) or 0),
    help=f"Maximum number of rows.  [default: {DEFAULT_ROWS} in a table, otherwise all]",
)
@click.option(
    "--rank",
    metavar="all|0,1",
    help="Query all ranks, or these, together.  [default: the first alone]",
)
@click.option(
    "--timeout",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the query after this many seconds.  [default: no limit]",
)
@output_option
def command(
    path: str | None,
    sql: str | None,
    *,
    list_views: bool,
    output: Output,
    rows: int | None,
    rank: str | None,
    time_limit_s: float | None,
    file: str | None,
) -> None:
    """Query a trace with SQL (DuckDB's dialect, one read-only SELECT).

    PATH is a trace file, a URL, or - for standard input. For a run directory, a directory of traces
    or a quoted glob, the last window of the first rank is queried; with --rank, that of all ranks
    or of some, and each view has a column `rank`. For example:

    stepscope query trace.json.gz "SELECT name, sum(dur_ns) AS ns FROM kernels GROUP BY name ORDER
    BY ns DESC LIMIT 10"
    """
    from stepscope.errors import UsageError

    with sink_for(file) as sink:
        if list_views:
            from stepscope.trace.sql.query import view_columns

            output.write(view_columns(has_repeats=not output.format.is_for_people), sink)
            return
        if path is None or sql is None:
            raise UsageError(
                f'no query given: stepscope query {quoted(path or "PATH")} "SELECT …"; --list '
                "names the views and their columns"
            )
        if not output.format.is_text and sink.is_terminal:
            raise UsageError(f"{output.format.name} is not text: use --output FILE or a pipe")
        from stepscope.trace.paths import resolve_path
        from stepscope.trace.sql.query import RankSource, run_query

        limit = rows
        if limit is None and output.format.is_for_people:
            limit = DEFAULT_ROWS
        with working(f"Querying {path}"):
            target = resolve_path(path)
            chosen = None if rank in (None, "all") else numbers("--rank", rank or "")
            traces = (
                target.one_trace().open()
                if rank is None
                else [RankSource(one.rank, one.open) for one in target.last_traces(chosen)]
            )
            result = run_query(traces, sql, row_limit=limit or None, time_limit_s=time_limit_s)
        output.write(result.rows, sink)
    for reason in result.left_out:
        click.echo(reason, err=True)
    if rank is None and target.is_run and len(target.chosen) > 1:
        click.echo(
            f"only rank {target.chosen[0].rank} of {len(target.chosen)} was queried; --rank all"
            " queries all",
            err=True,
        )
    if result.is_cut:
        click.echo(f"only the first {limit} rows are shown; --rows all shows all", err=True)
