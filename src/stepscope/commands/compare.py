"""`stepscope compare A B`: what changed between two runs or traces, and is it more than noise."""

from __future__ import annotations

import click

from stepscope.commands.options import format_option, scope_of, scope_options
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Layout, Output


@click.command("compare")
@click.argument("before", type=click.Path(path_type=str), metavar="A")
@click.argument("after", type=click.Path(path_type=str), metavar="B")
@format_option("comparison")
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
    output: Output,
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
    from stepscope.analysis.comparison.opening import open_side
    from stepscope.report.comparison.result import CheckedComparison
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    checks = [FailOn.parse(condition) for condition in conditions]
    scope = scope_of(steps, device, events)
    comparison = compare(open_side(before, rank, scope), open_side(after, rank, scope))
    reasons = [reason for check in checks if (reason := check.reason(comparison)) is not None]
    failed = "; ".join(reasons) or None
    output.write(CheckedComparison(comparison, failed), StandardSink(), Layout(rows=rows))
    if failed:
        click.echo(f"failed: {failed}", err=True)
    return 1 if failed else 0
