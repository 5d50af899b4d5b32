"""`stepscope memory PATH`: what holds the GPU's memory, when, why, and what would free it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import click

from stepscope.commands.options import (
    INPUT,
    INTEGERS,
    format_option,
    output_option,
    rows_option,
    size_of,
    table_options,
)
from stepscope.commands.sinks import StandardSink, sink_for
from stepscope.errors import UsageError
from stepscope.report.outputs import Layout, Output
from stepscope.terminal.plain_text import quoted
from stepscope.terminal.working import working


@click.command("memory")
@click.argument("path", type=INPUT, required=False)
@click.argument(
    "question",
    default="overview",
    shell_complete=lambda _context, _parameter, begun: _names_beginning(begun),
)
@click.option("--list", "list_questions", is_flag=True, help="List the questions.")
@format_option("memory", INTEGERS)
@output_option
@click.option("--device", type=int, metavar="N", help="The GPU.  [default: the fullest]")
@click.option("--rank", type=int, metavar="N", help="The rank of a run.  [default: the first]")
@click.option(
    "--at",
    metavar="MOMENT",
    help="For held, fragmentation and diff: peak, reserved-peak, oom, start, end, 'step N' (its"
    " end), 'event N', or +1.5s from the start.",
)
@click.option(
    "--from",
    "begin",
    metavar="MOMENT",
    help="Only what happened after this moment, of one GPU; as for --at.",
)
@click.option(
    "--to", "end", metavar="MOMENT", help="Only what happened up to this moment; as for --at."
)
@click.option(
    "--settings",
    multiple=True,
    metavar="CONF",
    help="For settings: a value of PYTORCH_CUDA_ALLOC_CONF to simulate. Repeatable.",
)
@click.option(
    "--before",
    metavar="FILE",
    help="For diff: the snapshot to compare with.  [default: the same one]",
)
@click.option(
    "--before-at",
    metavar="MOMENT",
    help="For diff: the moment to compare with.  [default: that of --at]",
)
@click.option(
    "--size",
    type=float,
    metavar="N",
    help="For fit: the size at which PATH was run. For shard: the ranks that shared the state. "
    " [default: 1]",
)
@click.option(
    "--also",
    multiple=True,
    metavar="PATH=N",
    help="For fit: another run, and its size. Repeatable.",
)
@click.option(
    "--target",
    "targets",
    type=float,
    multiple=True,
    metavar="N",
    help="For fit and shard: a size, or a number of ranks, to predict. Repeatable.",
)
@click.option(
    "--capacity",
    metavar="BYTES",
    help="For fit and shard: what the GPU has for the allocator, such as 76GiB.",
)
@click.option(
    "--metrics",
    metavar="FILE",
    help="Samples of the GPU's memory: a metrics.csv, or what nvidia-smi wrote.  [default: those of"
    " the run]",
)
@table_options
@rows_option(15)
def command(
    path: str | None,
    question: str,
    list_questions: bool,
    output: Output,
    file: str | None,
    device: int | None,
    rank: int | None,
    at: str | None,
    begin: str | None,
    end: str | None,
    settings: tuple[str, ...],
    before: str | None,
    before_at: str | None,
    size: float | None,
    also: tuple[str, ...],
    targets: tuple[float, ...],
    capacity: str | None,
    metrics: str | None,
    table: str | None,
    columns: tuple[str, ...] | None,
    rows: int | None,
) -> None:
    """Show what holds the GPU's memory, when, why, and what would free it.

    PATH is a memory snapshot (torch.cuda.memory._dump_snapshot, as a pickle or JSON, compressed or
    not), a run directory, a directory of snapshots (the newest is used), or a URL. For a trace with
    memory events, and a run without snapshots, the host's memory is shown. QUESTION is one of
    `stepscope memory --list`; by default an overview.
    """
    from stepscope.memory.questions.bounded import Run
    from stepscope.memory.questions.table import Asked, answer
    from stepscope.memory.questions.table import question as question_named

    if list_questions:
        _list_questions()
        return
    if path is None:
        raise click.UsageError("no snapshot given: stepscope memory PATH")
    _check_order(path, question)
    chosen = question_named(question)
    from stepscope.analysis.memory.opening import open_memory
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    with working(f"Reading {path}"):
        found = open_memory(path, rank, metrics)
    if begin is not None or end is not None:
        from stepscope.memory.questions.moments import cut

        found = replace(found, view=cut(found.view, device, begin, end))
    if said := found.remark(path):
        click.echo(said, err=True)
    other = None
    if before is not None:
        with working(f"Reading {before}"):
            other = open_memory(before, rank).view
    if chosen.name == "shard" and size is None:
        size = 1
    runs = [] if size is None else [Run(size, found.view)]
    for place, number in map(_path_and_size, also):
        with working(f"Reading {place}"):
            runs.append(Run(number, open_memory(place, rank).view))
    asked = Asked(
        device,
        at,
        settings,
        other,
        before_at,
        tuple(runs),
        targets,
        None if capacity is None else size_of("--capacity", capacity),
    )
    with working(f"Answering {chosen.name}"):
        answered = answer(found.view, chosen, asked, is_drawn=output.wants_details)
    with sink_for(file) as sink:
        output.write(answered, sink, Layout(table, rows, columns))


def _check_order(path: str, question: str) -> None:
    """Tell whoever gave the question before the path, as for `stepscope show`, to swap them."""
    from stepscope.memory.questions.names import ABOUT

    if question in ABOUT or Path(path).exists():
        return
    # The question may be misspelled, too: then the other word is a path.
    if path in ABOUT or Path(question).exists():
        raise UsageError(f"the path comes first: stepscope memory {quoted(question)} {path}")


def _path_and_size(text: str) -> tuple[str, float]:
    path, _, number = text.rpartition("=")
    try:
        size = float(number)
    except ValueError:
        size = math.nan
    if not path or not math.isfinite(size):
        raise click.UsageError(f"--also {text}: give a path and its size, as runs/b=8")
    return path, size


def _names_beginning(begun: str) -> list[str]:
    """Names of questions, for the shell's completion."""
    from stepscope.memory.questions.names import ABOUT

    return [name for name in ABOUT if name.startswith(begun)]


def _list_questions() -> None:
    from stepscope.memory.questions.names import ABOUT
    from stepscope.report.manual import write_named

    write_named(ABOUT.items(), StandardSink())
