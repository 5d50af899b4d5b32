"""`stepscope info PATH`: what a file or directory is, and what it holds."""

from __future__ import annotations

import click

from stepscope.commands.options import (
    INPUT,
    INTEGERS,
    check_one_document,
    check_standard_input_once,
    format_option,
    output_option,
)
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import Layout, Output, Sink
from stepscope.report.outputs import output as output_of
from stepscope.terminal.working import working


@click.command("info")
@click.argument("paths", nargs=-1, required=True, type=INPUT, metavar="PATH…")
@format_option("contents", INTEGERS)
@output_option
def command(paths: tuple[str, ...], output: Output, file: str | None) -> None:
    """Show what a file or directory is, and what it holds.

    Of a trace (a file of any known format, a URL, or - for standard input) it shows producer,
    devices, steps, lanes, events by category, and problems. Of a directory or quoted glob it lists
    ranks and windows. Of a file of metrics, from Stepscope or nvidia-smi, it shows how busy, full
    and hot the GPUs were; of a memory snapshot, its totals.
    """
    check_one_document(len(paths), output)
    check_standard_input_once(*paths)
    with sink_for(file) as sink:
        for number, path in enumerate(paths):
            if number:
                sink.write("\n")
            _show(path, output, sink)


def _show(path: str, output: Output, sink: Sink) -> None:
    from stepscope.memory.recognition import is_snapshot_file
    from stepscope.trace.paths import resolve_path

    if is_snapshot_file(path):
        from stepscope.memory.opening import open_snapshot
        from stepscope.memory.questions.table import answer, question

        with working(f"Reading {path}"):
            found = answer(open_snapshot(path), question("overview"))
        output_of("memory", output.format.name).write(found, sink, Layout(rows=15))
        return
    given = resolve_path(path)
    if given.metrics is not None:
        from stepscope.analysis.record.metrics import summarise_metrics

        summary = summarise_metrics(given.metrics)
        output_of("metrics", output.format.name).write(summary, sink)
    elif given.is_run:
        from stepscope.analysis.record.listing import list_run

        with working(f"Listing {path}"):
            listed = list_run(given.run)
        output_of("run", output.format.name).write(listed, sink)
    else:
        from stepscope.analysis.contents import describe

        with working(f"Describing {path}"):
            contents = describe(given.one_trace().open())
        output.write(contents, sink)
