"""`stepscope compare A B`: what changed between two runs, and whether it is more than noise."""

from __future__ import annotations

from dataclasses import dataclass
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
    from stepscope.analysis.comparison.compare import FailOn
    from stepscope.analysis.selection.scope import Scope
    from stepscope.fleet.scaling import Scaling
    from stepscope.output_cache.recording_sink import EncodedSink
    from stepscope.trace.paths import PathTarget


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
    from stepscope.trace.paths import resolve_path

    keep_freed_memory()
    checks = _checks(conditions)
    scope = scope_of(steps, device, events)
    layout = Layout(rows=rows)
    first = resolve_path(before)
    has_failed = False
    with sink_for(file) as sink:
        for number, path in enumerate(after):
            if number:
                sink.write("\n")
            sides = _Sides(first, resolve_path(path), rank, scope)
            if not checks:
                _write_cached(sides, output, layout, sink)
            elif failed := _write(sides, checks, output, layout, sink):
                where = f"{path}: " if len(after) > 1 else ""
                click.echo(f"failed: {where}{failed}", err=True)
                has_failed = True
    return 1 if has_failed else 0


@dataclass(frozen=True)
class _Sides:
    """What is compared."""

    before: PathTarget
    after: PathTarget
    rank: int | None
    scope: Scope


def _checks(conditions: tuple[str, ...]) -> list[FailOn]:
    if not conditions:
        return []  # what is cached is printed without importing what compares
    from stepscope.analysis.comparison.compare import FailOn

    return [FailOn.parse(condition) for condition in conditions]


def _write_cached(sides: _Sides, output: Output, layout: Layout, sink: EncodedSink) -> None:
    """Write the comparison from the cache where possible."""
    from stepscope.analysis.selection.scope import Scope
    from stepscope.output_cache.cached_output import write_cached
    from stepscope.trace.store.values import to_json

    def write(sink: Sink) -> bool:
        _write(sides, [], output, layout, sink)
        return True

    targets = (sides.before, sides.after)
    ranks = [rank for target in targets for rank in target.ranks]
    traces = [trace for rank in ranks for trace in rank.traces]
    if not all(rank.traces for rank in ranks):
        traces = []  # what only a step record tells is not cached
    asked = ["compare", *(one.path for one in targets), sides.rank, to_json(Scope, sides.scope)]
    write_cached(sink, output, layout, traces, asked, write)


def _write(
    sides: _Sides, checks: list[FailOn], output: Output, layout: Layout, sink: Sink
) -> str | None:
    """Write the comparison.

    Returns:
        Which conditions failed, and how; None: none did.
    """
    from stepscope.analysis.comparison.compare import compare
    from stepscope.analysis.comparison.opening import open_side
    from stepscope.report.comparison.result import CheckedComparison

    before, after, rank, scope = sides.before, sides.after, sides.rank, sides.scope
    with working(f"Comparing {after.path} with {before.path}"):
        comparison = compare(open_side(before, rank, scope), open_side(after, rank, scope))
    found = [reason for check in checks if (reason := check.reason(comparison)) is not None]
    failed = "; ".join(found) or None
    with working("Comparing the numbers of ranks"):
        scaling = None if rank is not None else _scaling(before, after, scope)
    output.write(CheckedComparison(comparison, failed, scaling), sink, layout)
    if scaling is not None and output.format.is_for_people:
        _write_scaling(scaling, f"{before.path}, {after.path}", output.format, layout, sink)
    return failed


def _scaling(before: PathTarget, after: PathTarget, scope: Scope) -> Scaling | None:
    """How the second side scales; None where both have as many ranks, or one has no steps."""
    sides = (before, after)
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
