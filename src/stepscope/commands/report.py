"""`stepscope report PATH`: the verdict, where the step goes, and the findings by saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.commands.options import format_option, scope_of, scope_options
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import OUTPUTS, Layout, Output
from stepscope.report.outputs import output as output_of

if TYPE_CHECKING:
    from stepscope.advice.thresholds import Thresholds


@click.command("report")
@click.argument("path", type=click.Path(path_type=str))
@format_option("diagnosis")
@scope_options("Only these steps of the recorded windows, which follow one another.")
@click.option("--table", metavar="NAME", help="Which table csv prints; by default findings.")
@click.option(
    "--baseline",
    metavar="PATH",
    help="A trace of a run that was as it should be: collectives are held against its.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="From where on something is a finding, such as saving_low=0.01; may be given often.",
)
def command(
    path: str,
    output: Output,
    steps: str | None,
    device: str | None,
    events: str,
    table: str | None,
    baseline: str | None,
    thresholds: tuple[str, ...],
) -> None:
    """Say where the step's time went, why, and what to change.

    PATH is a run directory, a directory of runs (its newest is taken), a trace file, a directory
    of traces, or a quoted glob. Of a py-spy recording it tells the functions that took the time.
    """
    if table is not None and not output.picks_table:
        able = " or ".join(one.format.name for one in OUTPUTS["diagnosis"] if one.picks_table)
        raise click.UsageError(f"--table goes with --format {able}")
    scope = scope_of(steps, device, events)
    limits = _limits(thresholds)
    from stepscope.advice.diagnosis import diagnose
    from stepscope.analysis.python_functions import sampled_recordings
    from stepscope.errors import UnreadableInputError
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    from stepscope.trace.paths import resolve_path

    keep_freed_memory()
    known = None if baseline is None else resolve_path(baseline).one_trace().open()
    run = resolve_path(path).run
    try:
        diagnosis = diagnose(run, limits, scope, known)
    except UnreadableInputError:
        # A sampler's recording has no steps, operators or kernels to judge, and says much.
        recordings = sampled_recordings(run)
        if not recordings:
            raise
        output_of("samples", output.format.name).write(recordings, StandardSink())
        return
    output.write(diagnosis, StandardSink(), Layout(table=table))


def _limits(settings: tuple[str, ...]) -> Thresholds:
    """The thresholds, with those changed that were given as NAME=VALUE."""
    from stepscope.advice.thresholds import Thresholds

    changed: dict[str, float] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        try:
            changed[name.strip()] = float(value) if sign else float("nan")
        except ValueError:
            changed[name.strip()] = float("nan")
    return Thresholds().changed(changed)
