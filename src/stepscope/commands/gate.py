"""`stepscope gate BEFORE AFTER -- COMMAND`: run two versions in turns, and judge the difference."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from stepscope.commands.options import (
    INTEGERS,
    format_option,
    output_option,
    process_options,
    rows_option,
    seconds_of,
)
from stepscope.commands.sinks import naming_folder_if_interrupted, print_message, sink_for
from stepscope.report.outputs import Layout, Output


@click.command("gate")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.argument("command_line", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--fail-on",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    default=("regression>5%",),
    show_default=True,
    help="Exit with 1 if this holds; a part's name may take the place of 'regression'. Repeatable.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=2),
    metavar="N",
    default=5,
    show_default=True,
    help="Runs of each version.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=16),
    metavar="N",
    help="Steps of each run.  [default: 100, or as many as take 3 seconds]",
)
@process_options(
    budget="30m",
    scratch="stepscope-gate",
    kept="the runs and logs",
    writers="versions",
    copiers="runs",
)
@format_option("comparison", INTEGERS)
@output_option
@rows_option(15, "kernels and operators")
def command(
    before: str,
    after: str,
    command_line: tuple[str, ...],
    conditions: tuple[str, ...],
    runs: int,
    steps: int | None,
    budget: str,
    scratch: Path,
    writable: tuple[Path, ...],
    output: Output,
    file: str | None,
    rows: int | None,
) -> int:
    """Run two versions of a training in turns, and fail if the new one is slower.

    BEFORE and AFTER are folders in which COMMAND runs: `stepscope gate main/ change/ -- python
    train.py`. Otherwise each takes the place of `{version}` in COMMAND: `stepscope gate old.py
    new.py -- python {version} --lr 0.1`. Each run is a process of its own, and works in copies of
    the folders. The noise is what the runs of one version differ by.
    """
    from stepscope.analysis.comparison.compare import compare_runs
    from stepscope.analysis.comparison.gate import FailOn
    from stepscope.analysis.selection.scope import Scope
    from stepscope.report.comparison import CheckedComparison
    from stepscope.trace.paths import resolve_path
    from stepscope.trial.attempts import Narration
    from stepscope.trial.interleaved import Request, run_interleaved

    budget_s = seconds_of(budget)
    checks = [FailOn.parse(condition) for condition in conditions]
    request = Request((before, after), command_line, scratch, runs, steps, budget_s, writable)
    with naming_folder_if_interrupted(scratch):
        interleaved = run_interleaved(request, Narration(print_message, "rehearsal"))
    sides = [
        [resolve_path(str(run)) for run in side] for side in (interleaved.before, interleaved.after)
    ]
    found = compare_runs(sides[0], sides[1], None, Scope(), in_rounds=interleaved.is_alternating)
    comparison = dataclasses.replace(found, notes=(*found.notes, *interleaved.notes))
    checked = CheckedComparison(comparison, tuple(one.check(comparison) for one in checks))
    with sink_for(file) as sink:
        output.write(checked, sink, Layout(rows=rows))
    for line in checked.verdicts():
        click.echo(line, err=True)
    return 1 if checked.failed else 0
