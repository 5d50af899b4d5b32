"""`stepscope compare A B`: what changed between two runs, and whether it is more than noise.

`--before` and `--after` take several runs each. They can be repeated, and each takes all words up
to the next option, so that a shell's glob works: `--before old-* --after new-*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from stepscope.report.outputs import Layout, Output, Sink
from stepscope.terminal.working import working

if TYPE_CHECKING:
    from stepscope.analysis.comparison.gate import FailOn
    from stepscope.analysis.selection.scope import Scope
    from stepscope.commands.sinks import CommandSink
    from stepscope.fleet.scaling import Scaling
    from stepscope.report.comparison import CheckedComparison
    from stepscope.trace.paths import PathTarget


_SEVERAL = ("--before", "--after")


class _TakingSeveral(click.Command):
    """A command some of whose options take all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write the option before each of its words, as click wants it."""
        return super().parse_args(ctx, list(_repeated(args)))


def _repeated(arguments: Iterable[str]) -> Iterator[str]:
    option, is_first, is_over = "", False, False
    for word in arguments:
        if is_over or (word.startswith("-") and word != "-"):
            is_over = is_over or word == "--"
            option, is_first = word if word in _SEVERAL and not is_over else "", True
        elif option and not is_first:
            yield option
        else:
            is_first = False
        yield word


@click.command("compare", cls=_TakingSeveral)
@click.argument("paths", nargs=-1, type=INPUT, metavar="[A B…]")
@click.option(
    "--before",
    multiple=True,
    type=INPUT,
    metavar="PATH…",
    help="Runs of the first version, up to the next option. Repeatable.",
)
@click.option(
    "--after",
    multiple=True,
    type=INPUT,
    metavar="PATH…",
    help="Runs of the second version, up to the next option. Repeatable.",
)
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
    " Repeatable. With one run of each version, only growth beyond what earlier runs differ by"
    " fails, or without such runs beyond 32%.",
)
def command(
    paths: tuple[str, ...],
    before: tuple[str, ...],
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

    `--before old-* --after new-*` compares two versions by several runs of each: the noise is then
    what runs of one version differ by. `stepscope gate` makes such runs.
    """
    if before or after:
        if paths or not (before and after):
            raise click.UsageError("give A and B, or both --before and --after")
        pairs = [(before, after)]
    elif len(paths) < 2:
        raise click.UsageError("give A and B, or both --before and --after")
    else:
        pairs = [(paths[:1], (path,)) for path in paths[1:]]
    check_one_document(len(pairs), output)
    check_standard_input_once(*paths, *before, *after)
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    from stepscope.trace.paths import resolve_path

    keep_freed_memory()
    checks = _checks(conditions)
    scope = scope_of(steps, device, events)
    layout = Layout(rows=rows)
    first = [resolve_path(path) for path in pairs[0][0]]
    has_failed = False
    with sink_for(file) as sink:
        for number, (_, seconds) in enumerate(pairs):
            if number:
                sink.write("\n")
            sides = _Sides(first, [resolve_path(path) for path in seconds], rank, scope)
            if not checks and not sides.has_several:
                _write_remembered(sides, output, layout, sink)
                continue
            checked = _write(sides, checks, output, layout, sink)
            where = f"{seconds[0]}: " if len(pairs) > 1 else ""
            for line in checked.verdicts(where):
                click.echo(line, err=True)
            has_failed |= checked.failed is not None
    return 1 if has_failed else 0


@dataclass(frozen=True)
class _Sides:
    before: list[PathTarget]
    after: list[PathTarget]
    rank: int | None
    scope: Scope

    @property
    def has_several(self) -> bool:
        return len(self.before) + len(self.after) > 2


def _checks(conditions: tuple[str, ...]) -> list[FailOn]:
    if not conditions:
        return []  # what is cached is printed without importing what compares
    from stepscope.analysis.comparison.gate import FailOn

    return [FailOn.parse(condition) for condition in conditions]


def _write_remembered(sides: _Sides, output: Output, layout: Layout, sink: CommandSink) -> None:
    from stepscope.commands.remembered import identity_of_traces, write_remembered

    def write(sink: Sink) -> None:
        _write(sides, [], output, layout, sink)

    targets = (*sides.before, *sides.after)
    ranks = [rank for target in targets for rank in target.ranks]
    traces = [trace for rank in ranks for trace in rank.traces]
    if not all(rank.traces for rank in ranks):
        traces = []  # what only a step record tells is not kept

    def inputs() -> list[Any]:
        paths = [one.path for one in targets]
        return ["compare", paths, sides.rank, sides.scope, identity_of_traces(traces)]

    write_remembered(sink, output, layout, inputs, write)


def _write(
    sides: _Sides, checks: list[FailOn], output: Output, layout: Layout, sink: Sink
) -> CheckedComparison:
    from stepscope.analysis.comparison.compare import compare_runs
    from stepscope.report.comparison import CheckedComparison

    rank, scope = sides.rank, sides.scope
    before, after = sides.before[0], sides.after[0]
    with working(f"Comparing {after.path} with {before.path}"):
        comparison = compare_runs(sides.before, sides.after, rank, scope, is_judged=bool(checks))
    scaling = None
    if rank is None and not sides.has_several:
        with working("Comparing the numbers of ranks"):
            scaling = _scaling(before, after, scope)
    checked = CheckedComparison(comparison, tuple(one.check(comparison) for one in checks), scaling)
    output.write(checked, sink, layout)
    return checked


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
