"""`stepscope compare A B`: what changed between two runs or traces, and is it more than noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.commands.options import format_option, last_with, scope_of, scope_options

if TYPE_CHECKING:
    from stepscope.analysis.comparison.side import Side
    from stepscope.analysis.selection.scope import Scope


@click.command("compare")
@click.argument("before", type=click.Path(path_type=str), metavar="A")
@click.argument("after", type=click.Path(path_type=str), metavar="B")
@format_option
@click.option("--rank", type=int, metavar="N", help="Which rank; by default the first of each.")
@scope_options("Only these steps of the recorded windows; step records are left aside.")
@click.option("--rows", type=click.IntRange(min=1), default=15, show_default=True, metavar="N")
@click.option(
    "--fail-on",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="End with 1 if it holds: 'regression>5%', or a part, such as 'idle: input>2%'.",
)
def command(
    before: str,
    after: str,
    output_format: str,
    rank: int | None,
    steps: str | None,
    device: str | None,
    events: str,
    rows: int,
    conditions: tuple[str, ...],
) -> int:
    """Say what changed from A to B: the step, its parts, kernels and operators.

    A and B are what `stepscope report` takes: run directories, trace files, directories of traces.
    """
    from stepscope.analysis.comparison.compare import FailOn, compare
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    checks = [FailOn.parse(condition) for condition in conditions]
    scope = scope_of(steps, device, events)
    comparison = compare(_side(before, rank, scope), _side(after, rank, scope))
    reasons = [reason for check in checks if (reason := check.reason(comparison)) is not None]
    failed = "; ".join(reasons) or None
    from stepscope.report.comparison import reports as compare_report

    if output_format == "json":
        import orjson

        document = compare_report.comparison_to_dict(comparison, failed)
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    elif output_format == "csv":
        click.echo(compare_report.comparison_to_csv(comparison), nl=False)
    elif output_format == "md":
        click.echo(compare_report.comparison_to_markdown(comparison, rows), nl=False)
    else:
        from stepscope.report.console import console

        compare_report.print_comparison(comparison, console(), rows)
    if failed:
        click.echo(f"failed: {failed}", err=True)
    return 1 if failed else 0


def _side(path: str, rank: int | None, scope: Scope) -> Side:
    """Open one side: its step record, and the last window that can be read."""
    from stepscope.analysis.comparison.side import make_side
    from stepscope.analysis.record.summary import summarise_steps
    from stepscope.errors import UsageError
    from stepscope.run.reader import open_run
    from stepscope.trace.load import load

    run = open_run(path)
    ranks = {candidate.rank: candidate for candidate in run.ranks}
    if not ranks:
        raise UsageError(f"{path}: there is no rank in it")
    wanted = min(ranks) if rank is None else rank
    if wanted not in ranks:
        raise UsageError(f"{path}: no rank {wanted}; it has {', '.join(map(str, sorted(ranks)))}")
    chosen = ranks[wanted]
    traces = [window.trace_path for window in chosen.windows if window.trace_path is not None]
    trace = load(last_with(traces, scope.steps)) if traces else None
    records = chosen.steps if scope.steps is None else ()
    return make_side(path, trace, records, summarise_steps(records), scope)
