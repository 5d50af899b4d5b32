"""`stepscope info PATH`: what a trace file or a run directory is, and what it holds."""

from __future__ import annotations

import click

from stepscope.commands.options import format_option
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Output
from stepscope.report.outputs import output as output_of


@click.command("info")
@click.argument("path", type=click.Path(path_type=str))
@format_option("contents", "How to print it; json carries integer nanoseconds and bytes.")
def command(path: str, output: Output) -> None:
    """Say what a file or a directory is, and what it holds.

    PATH is a trace file of any format that Stepscope reads, a URL, or - for standard input (its
    writer, devices, steps, lanes, events by category, problems), or a directory or quoted glob (its
    ranks and windows), or a file of metrics of ours or of nvidia-smi (how busy, full and hot the
    GPUs were).
    """
    from stepscope.trace.paths import resolve_path

    given = resolve_path(path)
    if given.metrics is not None:
        from stepscope.analysis.metrics import summarise_metrics

        summary = summarise_metrics(given.metrics)
        output_of("metrics", output.format.name).write(summary, StandardSink())
    elif given.is_run:
        from stepscope.analysis.record.listing import list_run

        output_of("run", output.format.name).write(list_run(given.run), StandardSink())
    else:
        from stepscope.analysis.contents import describe

        output.write(describe(given.one_trace().open()), StandardSink())
