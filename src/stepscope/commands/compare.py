"""`stepscope compare A B`: what changed between two runs, and whether it is more than noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.commands.options import (
    INPUT,
    INTEGERS,
    check_one_document,
    check_standard_input_once,
    format_option,
    output_option,
    rows_option,
    scope_of,
    scope_options,
)
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import OUTPUTS, Format, Layout, Output, Sink
from stepscope.run.working import working

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import Scope
    from stepscope.fleet.scaling import Scaling


@click.command("compare")
@click.argument("before", type=INPUT, metavar="A")
@click.argument("after", nargs=-1, required=True, type=INPUT, metavar="B…")
@format_option("comparison", INTEGERS)
@output_option
@click.option(
    "--rank", type=int, metavar="N", help="Rank to compare.  [default: the first of each side]"
)
@scope_options("Only these steps of the recorded windows; step records are not used.")
@rows_option(15, "kernels and operators")
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
    after: tuple[str, ...],
    output: Output,
    file: str | None,
    rank: int | None,
    steps: str | None,
    device: str | None,
    events: str,
    rows: int | None,
    conditions: tuple[str, ...],
) -> int:
    """Show what changed from A to B: the step, its parts, kernels and operators.

    A and B are paths as for `stepscope report`: run directories, trace files, directories of
    traces, quoted globs, URLs, or - for a trace on standard input. Several B are compared with A
    one after the other. If A and B have different numbers of ranks, efficiency is shown too, with
    the parts of the step that grew and the ranks on which they did.
    """
    check_one_document(len(after), output)
    check_standard_input_once(before, *after)
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    from stepscope.analysis.comparison.compare import FailOn, compare
    from stepscope.analysis.comparison.opening import open_side
    from stepscope.report.comparison.result import CheckedComparison

    checks = [FailOn.parse(condition) for condition in conditions]
    scope = scope_of(steps, device, events)
    layout = Layout(rows=rows)
    has_failed = False
    with sink_for(file) as sink:
        for number, path in enumerate(after):
            if number:
                sink.write("\n")
            with working(f"Comparing {path} with {before}"):
                comparison = compare(open_side(before, rank, scope), open_side(path, rank, scope))
            found = [reason for check in checks if (reason := check.reason(comparison)) is not None]
            failed = "; ".join(found) or None
            with working("Comparing the numbers of ranks"):
                scaling = None if rank is not None else _scaling(before, path, scope)
            output.write(CheckedComparison(comparison, failed, scaling), sink, layout)
            if scaling is not None and output.format.is_for_people:
                _write_scaling(scaling, f"{before}, {path}", output.format, layout, sink)
            if failed:
                where = f"{path}: " if len(after) > 1 else ""
                click.echo(f"failed: {where}{failed}", err=True)
                has_failed = True
    return 1 if has_failed else 0


def _scaling(before: str, after: str, scope: Scope) -> Scaling | None:
    """How the second side scales; None where both have as many ranks, or one has no steps."""
    from stepscope.trace.paths import resolve_path

    sides = [resolve_path(path) for path in (before, after)]
    counts = [sum(bool(rank.traces) for rank in side.chosen) for side in sides]
    if counts[0] == counts[1] or min(counts) == 0:
        return None
    from stepscope.fleet.job import read_job
    from stepscope.fleet.scaling import compare_scaling

    first, second = (read_job(side.traces(scope.steps), scope) for side in sides)
    if first.steps().is_empty() or second.steps().is_empty():
        return None
    if first.world_size is not None and first.world_size == second.world_size:
        return None  # the same job, of which one side lacks ranks
    return compare_scaling(first, second)


def _write_scaling(scaling: Scaling, paths: str, form: Format, layout: Layout, sink: Sink) -> None:
    """Write the scaling below the comparison, in the formats that answers have."""
    from stepscope.analysis.questions import Answer, Answers
    from stepscope.fleet.scaling import SCALING

    for one in OUTPUTS["answer"]:
        if one.format == form:
            sink.write("\n")
            one.write(Answers(SCALING, 1, [Answer(paths, 0, scaling)]), sink, layout)
