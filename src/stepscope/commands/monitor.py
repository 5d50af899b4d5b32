"""`stepscope monitor`: watch the hardware beside a training, as nvidia-smi does, or live."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.commands.sinks import StandardSink
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.run.metrics import Note


@click.command("monitor", context_settings={"allow_interspersed_args": False})
@click.argument("words", metavar="[RUN | -- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--live", is_flag=True, help="Show a run and the hardware, again and again.")
@click.option(
    "--query-gpu",
    "query",
    metavar="COLUMNS",
    default=None,
    help="Print these columns, as nvidia-smi does; --help-query-gpu lists them.",
)
@click.option(
    "--format",
    "csv_format",
    metavar="csv[,noheader][,nounits]",
    default="csv",
    show_default=True,
    help="How --query-gpu prints.",
)
@click.option(
    "-l",
    "--loop",
    "loop_s",
    type=click.FloatRange(0.05, 86_400),
    default=None,
    metavar="SECONDS",
    help="Seconds between samples.  [default: one sample with --query-gpu; otherwise 1]",
)
@click.option(
    "-lms",
    "--loop-ms",
    type=click.IntRange(50),
    default=None,
    metavar="MILLISECONDS",
    help="The same in milliseconds.",
)
@click.option("--count", type=click.IntRange(1), default=None, help="End after so many samples.")
@click.option(
    "-i",
    "--id",
    "ids",
    metavar="IDS",
    default="",
    help="GPUs by number, UUID or bus id, with commas between them, or all.  "
    "[default: those that CUDA_VISIBLE_DEVICES leaves]",
)
@click.option(
    "--pid",
    type=click.IntRange(1),
    default=None,
    help="Watch this process and all below it, with --query-gpu, until it ends.",
)
@click.option(
    "-f",
    "--filename",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Append to this file.  [default: standard output; with a command a folder of its own]",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    default="64MiB",
    show_default=True,
    help="Greatest size of a command's file: beyond it every second sample is dropped.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of runs: --live looks there, a command's file goes there.  [default: profiles]",
)
@click.option("--help-query-gpu", is_flag=True, help="List all columns, and end.")
def command(
    words: tuple[str, ...],
    live: bool,
    query: str | None,
    csv_format: str,
    loop_s: float | None,
    loop_ms: int | None,
    count: int | None,
    ids: str,
    pid: int | None,
    filename: Path | None,
    max_bytes: str,
    output_dir: Path | None,
    help_query_gpu: bool,
) -> int:
    """Sample GPUs, host and processes.

    With --query-gpu it prints like nvidia-smi. With a command after `--` it runs that, and writes
    metrics.csv meanwhile. Otherwise, and with --live, it shows how the ranks of RUN (by default the
    newest run in `profiles`) get on, and what the hardware does; once, if nobody watches.
    """
    if loop_s is not None and loop_ms is not None:
        raise click.UsageError("give --loop or --loop-ms, not both")
    interval_s = loop_ms / 1000 if loop_ms is not None else loop_s
    chosen = tuple(word.strip() for word in ids.split(",") if word.strip())
    if help_query_gpu:
        _list_columns()
    elif live or not (words or query or filename or pid):
        if len(words) > 1 or query is not None or pid is not None:
            raise click.UsageError("--live shows one RUN: stepscope monitor --live [RUN]")
        _show_live(Path(words[0]) if words else None, output_dir, interval_s or 1.0, count, chosen)
    elif words:
        if count is not None or pid is not None:
            raise click.UsageError("--count and --pid go with no command: it is watched to its end")
        from stepscope.adapters.script.watched import WatchedCommand, run_watched

        watched = WatchedCommand(
            words, query, interval_s or 1.0, chosen, filename, max_bytes, output_dir
        )
        code, file = run_watched(watched)
        _summarise(file)
        return code
    else:
        from stepscope.monitor.querying import Query, answer
        from stepscope.monitor.stream import CsvFormat

        asked = Query(query, CsvFormat.parse(csv_format), interval_s, count, chosen, pid, filename)
        answer(asked, lambda lines: click.echo(lines, nl=False), _say_note)
    return 0


def _list_columns() -> None:
    from stepscope.monitor.querying import column_lines

    for line in column_lines():
        click.echo(line)


def _say_note(note: Note) -> None:
    click.echo(f"stepscope: {note.what}: {note.why}", err=True)


def _summarise(path: Path) -> None:
    """What was seen, on standard error: standard output is the command's own."""
    from stepscope.analysis.metrics import summarise_metrics
    from stepscope.errors import StepscopeError
    from stepscope.report.outputs import output

    try:
        output("metrics", "table").write(summarise_metrics(path), StandardSink(is_error=True))
    except StepscopeError as error:
        click.echo(f"stepscope: no summary: {error}", err=True)


def _show_live(
    path: Path | None,
    output_dir: Path | None,
    interval_s: float,
    count: int | None,
    ids: tuple[str, ...],
) -> None:
    from stepscope.adapters.script.watched import runs_folder
    from stepscope.analysis.record.live import LiveRun
    from stepscope.monitor.local import LocalSampler
    from stepscope.report.live.terminal import show

    if path is not None and not path.exists():
        raise UsageError(f"{path}: no such run")
    sampler = LocalSampler(ids)
    run = LiveRun(path or runs_folder(output_dir), sampler.read)
    try:
        # Nothing else ends it: an interrupt is no failure here.
        with contextlib.suppress(KeyboardInterrupt):
            show(run.look, StandardSink().console(keeps_padding=True), interval_s, count)
    finally:
        sampler.close()
