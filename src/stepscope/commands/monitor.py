"""`stepscope monitor`: watch the hardware beside a training, as nvidia-smi does, or live."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.monitor.columns import Column
    from stepscope.monitor.metrics_file import MetricsFile
    from stepscope.monitor.stream import CsvFormat
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
        return _run(words, query, interval_s or 1.0, chosen, filename, max_bytes, output_dir)
    else:
        _query(query, csv_format, interval_s, count, chosen, pid, filename)
    return 0


def _columns(query: str | None) -> tuple[Column, ...]:
    from stepscope.monitor.columns import DEFAULT_COLUMNS, parse_columns

    return DEFAULT_COLUMNS if query is None else parse_columns(query)


def _list_columns() -> None:
    from stepscope.monitor.columns import ALIASES, COLUMNS

    for column in COLUMNS.values():
        others = [alias for alias, name in ALIASES.items() if name == column.name]
        click.echo(f"{column.heading}{' (or ' + ', '.join(others) + ')' if others else ''}")
        click.echo(f"    {column.about}")


def _query(
    query: str | None,
    csv_format: str,
    interval_s: float | None,
    count: int | None,
    ids: tuple[str, ...],
    pid: int | None,
    filename: Path | None,
) -> None:
    import os

    from stepscope.monitor.columns import header_of
    from stepscope.monitor.notes import Notes
    from stepscope.monitor.processes import is_running
    from stepscope.monitor.sampler import Sampler, Watched
    from stepscope.monitor.stream import CsvFormat, stream

    layout = CsvFormat.parse(csv_format)
    columns = _columns(query)
    if (count is not None or pid is not None) and interval_s is None:
        interval_s = 1.0
    if pid is not None and not is_running(pid):
        raise UsageError(f"--pid={pid}: there is no such process")
    # Without a process there is no training to watch: what we started ourselves is nothing.
    watched = Watched(pid or os.getpid(), is_root=pid is not None, ids=ids)
    sampler = Sampler(columns, watched, Notes(_say_note))

    def is_over() -> bool:
        return pid is not None and not is_running(pid)

    try:
        if filename is None:
            if layout.has_header:
                click.echo(header_of(columns))
            stream(sampler, _print_rows, layout, interval_s, count, is_over)
            return
        with _opened(filename, columns, layout) as file:
            stream(sampler, file.write, layout, interval_s, count, is_over)
    finally:
        sampler.close()


@contextlib.contextmanager
def _opened(path: Path, columns: tuple[Column, ...], layout: CsvFormat) -> Iterator[MetricsFile]:
    from stepscope.monitor.metrics_file import MetricsFile

    try:
        file = MetricsFile(path, columns, with_header=layout.has_header)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    try:
        yield file
    finally:
        file.close()
    if file.problem:
        raise UsageError(f"{path}: {file.problem}")


def _print_rows(rows: list[list[str]]) -> None:
    click.echo("".join(f"{', '.join(row)}\n" for row in rows), nl=False)


def _say_note(note: Note) -> None:
    click.echo(f"stepscope: {note.what}: {note.why}", err=True)


def _run(
    words: tuple[str, ...],
    query: str | None,
    interval_s: float,
    ids: tuple[str, ...],
    filename: Path | None,
    max_bytes: str,
    output_dir: Path | None,
) -> int:
    """Run a command, with a recorder in a thread beside it: this process has nothing else to do."""
    import os

    from stepscope.adapters.options.values import parse_size
    from stepscope.adapters.script.launch import run_command, startable
    from stepscope.monitor.recorder import Recorder, RecordingJob
    from stepscope.monitor.sampler import Watched

    try:
        most_bytes = parse_size(max_bytes)
    except ValueError as error:
        raise UsageError(f"--max-bytes={max_bytes}: not {error}") from None
    path = filename or _runs_folder(output_dir) / _name() / "metrics.csv"
    job = RecordingJob(
        str(path),
        Watched(os.getpid(), is_root=False, ids=ids),
        interval_s,
        most_bytes,
        tuple(column.name for column in _columns(query)),
    )
    try:
        recorder = Recorder(job)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    with recorder.in_thread():
        code = run_command(startable(words), dict(os.environ))
    _summarise(path)
    return code


def _name() -> str:
    import datetime
    import os

    now = datetime.datetime.now(tz=datetime.timezone.utc)
    return f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}"


def _summarise(path: Path) -> None:
    """What was seen, on standard error: standard output is the command's own."""
    from rich.console import Console

    from stepscope.analysis.metrics import summarise_metrics
    from stepscope.errors import StepscopeError
    from stepscope.report.metrics.reports import print_metrics

    console = Console(stderr=True, highlight=False)
    try:
        print_metrics([("", summarise_metrics(path))], console)
    except StepscopeError as error:
        click.echo(f"stepscope: no summary: {error}", err=True)


def _runs_folder(output_dir: Path | None) -> Path:
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import resolve

    given = {} if output_dir is None else {"output_dir": (str(output_dir), "--output-dir")}
    return Path(resolve(find_dialect("native"), given).value("output_dir"))


def _show_live(
    path: Path | None,
    output_dir: Path | None,
    interval_s: float,
    count: int | None,
    ids: tuple[str, ...],
) -> None:
    from rich.console import Console

    from stepscope.report.live.view import LiveView

    if path is not None and not path.exists():
        raise UsageError(f"{path}: no such run")
    view = LiveView(path or _runs_folder(output_dir), ids)
    try:
        # Nothing else ends it: an interrupt is no failure here.
        with contextlib.suppress(KeyboardInterrupt):
            view.show(Console(highlight=False), interval_s, count)
    finally:
        view.close()
