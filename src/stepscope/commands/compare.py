"""`stepscope compare A B`: what changed between two runs, and whether it is more than noise."""

from __future__ import annotations

import click

from stepscope.commands.options import INTEGERS, format_option, scope_of, scope_options
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Layout, Output


@click.command("compare")
@click.argument("before", type=click.Path(path_type=str), metavar="A")
@click.argument("after", type=click.Path(path_type=str), metavar="B")
@format_option("comparison", INTEGERS)
@click.option(
    "--rank", type=int, metavar="N", help="Rank to compare.  [default: the first of each side]"
)
@scope_options("Only these steps of the recorded windows; step records are not used.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    metavar="N",
    help="How many kernels and operators to print.",
)
@click.option(
    "--fail-on",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 1 if this holds: 'regression>5%', or a part, such as 'idle: input>2%'."
    " Repeatable.",
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
    """Show what changed from A to B: the step, its parts, kernels and operators.

    A and B are paths as for `stepscope report`: run directories, trace files, directories of
    traces, quoted globs, URLs.
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
