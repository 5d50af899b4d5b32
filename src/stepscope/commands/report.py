"""`stepscope report PATH`: the verdict, where the step goes, and findings by saving."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from stepscope.commands.options import (
    INPUT,
    INTEGERS,
    check_one_document,
    check_standard_input_once,
    format_option,
    output_option,
    scope_of,
    scope_options,
)
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import HTML, OUTPUTS, Layout, Output, Sink
from stepscope.report.outputs import output as output_of
from stepscope.terminal.plain_text import escaped, quoted
from stepscope.terminal.working import working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.advice.thresholds import Thresholds
    from stepscope.analysis.selection.scope import Scope
    from stepscope.commands.sinks import CommandSink
    from stepscope.opening.reader import Run
    from stepscope.report.sharing import Pseudonyms
    from stepscope.trace.model import Trace

SHARED_FILE = "stepscope-report.html"
"""Where `--share` writes without `--output`."""


@click.command("report")
@click.argument("paths", nargs=-1, required=True, type=INPUT, metavar="PATH…")
@format_option("diagnosis", INTEGERS)
@output_option
@scope_options("Only these steps of the recorded windows; they must be consecutive.")
@click.option(
    "--full",
    "is_full",
    is_flag=True,
    help="Show all of the report: evidence, assumptions, ranks, hardware, notes.",
)
@click.option(
    "--share",
    "is_shared",
    is_flag=True,
    help="Write a page for people outside: names of paths, hosts, users and models are replaced.",
)
@click.option("--table", metavar="NAME", help="Table that csv prints.  [default: findings]")
@click.option(
    "--baseline",
    metavar="PATH",
    help="Trace of a healthy run; collectives are compared with its own.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="Limit above which a finding is reported, such as saving_low=0.01. Repeatable.",
)
def command(
    paths: tuple[str, ...],
    output: Output,
    file: str | None,
    is_full: bool,
    is_shared: bool,
    steps: str | None,
    device: str | None,
    events: str,
    table: str | None,
    baseline: str | None,
    thresholds: tuple[str, ...],
) -> None:
    """Show where the step's time goes, why, and what to change.

    PATH is a run directory, a directory of runs (the newest is used), a trace file (of a run:
    that window of its ranks), a directory of traces, a quoted glob, a URL, or - for a trace on
    standard input. Traces that are ranks of one run give one report; every other path gets its own.
    Of a directory of unrelated traces, the newest is used. A memory snapshot, or a directory with
    one of each rank, gets a report about memory. For a py-spy recording, shows the functions that
    took the time; for a file of metrics, how busy and full the GPUs were.
    """
    if table is not None and not output.picks_table:
        able = " or ".join(one.format.name for one in OUTPUTS["diagnosis"] if one.picks_table)
        raise click.UsageError(f"--table needs --format {able}")
    check_standard_input_once(*paths, baseline)
    names = None
    if is_shared:
        output, file = _shared_output(output, file)
        from stepscope.report.sharing import Pseudonyms

        names = Pseudonyms.of_reader()
    scope = scope_of(steps, device, events)
    limits = _limits(thresholds)
    from stepscope.memory.recognition import snapshots_of
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    from stepscope.trace.paths import resolve_path, resolve_runs

    keep_freed_memory()
    snapshots = {path: found for path in paths if (found := snapshots_of(path))}
    known = None if baseline is None else resolve_path(baseline).one_trace().open()
    rest = tuple(path for path in paths if path not in snapshots)
    if len(paths) == 1 and rest and (metrics := resolve_path(rest[0]).metrics) is not None:
        from stepscope.analysis.record.metrics import summarise_metrics

        with sink_for(file) as sink:
            drawn = output_of("metrics", output.format.name)
            drawn.write(summarise_metrics(metrics), sink, Layout(names=names))
        _print_replaced_names(names)
        return
    runs = resolve_runs(rest, with_record=True) if rest else []
    check_one_document(len(snapshots) + len(runs), output)
    layout = Layout(table=table, is_full=is_full, names=names)
    with sink_for(file) as sink:
        for number, (path, found) in enumerate(snapshots.items()):
            if number:
                sink.write("\n")
            _write_snapshots(path, found, limits, output, sink, layout)
        for number, run in enumerate(runs, start=len(snapshots)):
            if number:
                sink.write("\n")
            _show_run(run, Request(limits, scope, known), output, sink, layout)
    _print_replaced_names(names)


def _shared_output(output: Output, file: str | None) -> tuple[Output, str]:
    """The page and its file, whatever else was not asked for."""
    chosen = click.get_current_context().get_parameter_source("output")
    is_default = chosen is ParameterSource.DEFAULT and file is None
    if not is_default and output.format is not HTML:
        raise click.UsageError("--share writes a page: leave --format out, or name a .html file")
    return output_of("diagnosis", HTML.name), file or SHARED_FILE


def _print_replaced_names(names: Pseudonyms | None) -> None:
    """Say on the terminal, and not in the page, which name became which."""
    if names is None:
        return
    given = [(old, new) for kind in names.given.values() for old, new in kind.items()]
    for old, new in given:
        scope = " (in paths only: elsewhere it is a word)" if names.is_ordinary(old) else ""
        click.echo(f"  {escaped(old)} → {new}{scope}", err=True)
    click.echo("these names were replaced in the page; read it before you send it", err=True)


@dataclass(frozen=True)
class Request:
    """What the options ask of a diagnosis; see `advice.diagnosis.diagnose`."""

    limits: Thresholds
    scope: Scope
    baseline: Trace | None


def _show_run(run: Run, asked: Request, output: Output, sink: CommandSink, layout: Layout) -> None:
    from stepscope.commands.remembered import identity_of_run, write_remembered
    from stepscope.opening.reader import naming_its_location, one_job

    run = one_job(run)
    if layout.names is not None:
        layout.names.know_run(run)
        with naming_its_location(run):
            _write_diagnosis(run, asked, output, sink, layout)
        return  # what was replaced is in no memory

    with naming_its_location(run):
        write_remembered(
            sink,
            output,
            layout,
            lambda: ["report", asked, identity_of_run(run)],
            lambda recording: _write_diagnosis(run, asked, output, recording, layout),
        )


def _write_diagnosis(run: Run, asked: Request, output: Output, sink: Sink, layout: Layout) -> None:
    from stepscope.errors import UnreadableInputError

    try:
        with working(f"Diagnosing {run.location}"):  # the imports take a second, too
            from stepscope.advice.diagnosis import diagnose
            from stepscope.fleet.each_rank import reader_for

            each = reader_for(run)
            diagnosis = diagnose(run, asked.limits, asked.scope, asked.baseline, each)
    except UnreadableInputError:
        # A py-spy recording has no steps or kernels to diagnose, but functions to show.
        from stepscope.analysis.python_functions import sampled_recordings

        recordings = sampled_recordings(run)
        if not recordings:
            # A run that ended in its first step leaves snapshots at most.
            from stepscope.analysis.memory.opening import newest_snapshots

            if not (snapshots := newest_snapshots(run)):
                raise
            _write_snapshots(run.location, snapshots, asked.limits, output, sink, layout)
            return
        output_of("samples", output.format.name).write(recordings, sink, layout)
        return
    if output.wants_details:
        with working("Filling the page"):
            from stepscope.advice.job.rank_steps import rank_lanes, rank_strips
            from stepscope.advice.job.reading import details_of

            diagnosis = replace(
                diagnosis,
                details=details_of(diagnosis.shown),
                strips=rank_strips(diagnosis),
                lanes=rank_lanes(diagnosis),
            )
    output.write(diagnosis, sink, layout)


def _write_snapshots(
    location: str,
    paths: Sequence[str],
    limits: Thresholds,
    output: Output,
    sink: Sink,
    layout: Layout,
) -> None:
    """Show the verdict on memory snapshots, and where more questions are answered."""
    from stepscope.advice.memory_report import report_snapshots

    drawn = output_of("snapshots", output.format.name)
    found = report_snapshots(location, paths, limits, is_drawn=drawn.wants_details)
    drawn.write(found, sink, layout)
    if layout.names is None:
        sink.remark(f"`stepscope memory {quoted(found.shown.path)}` answers more about it")


def _limits(settings: tuple[str, ...]) -> Thresholds:
    from stepscope.advice.thresholds import Thresholds

    changed: dict[str, float] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        try:
            changed[name.strip()] = float(value) if sign else float("nan")
        except ValueError:
            changed[name.strip()] = float("nan")
    return Thresholds().changed(changed)
