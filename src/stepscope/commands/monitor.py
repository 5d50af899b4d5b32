"""`stepscope monitor`: sample the hardware during a training, like nvidia-smi or live."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.commands.sinks import StandardSink, print_message
from stepscope.errors import UnreadableInputError
from stepscope.export.metrics.destinations import DESTINATIONS, writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.advice.finding import Finding
    from stepscope.analysis.record.live import LiveState


_TYPES = {
    "text": None,
    "file": click.Path(path_type=Path, dir_okay=False),
    "folder": click.Path(path_type=Path, file_okay=False),
}


def _destination_options(command: Callable[..., int]) -> Callable[..., int]:
    """An option for each system that gets metrics."""
    for one in reversed(DESTINATIONS):
        kind: dict[str, Any] = {"is_flag": True}
        if one.takes is not None:
            kind = {"type": _TYPES[one.takes], "metavar": one.metavar, "default": None}
        command = click.option(f"--{one.name}", help=one.about, **kind)(command)
    return command


@click.command("monitor")
@click.argument("path", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--live", is_flag=True, help="Show a run and the hardware, refreshed continuously.")
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
    help="Output format of --query-gpu.",
)
@click.option(
    "-l",
    "--loop",
    "loop_s",
    type=click.FloatRange(0.05, 86_400),
    default=None,
    metavar="SECONDS",
    help="Seconds between samples.  [default: one sample with --query-gpu; otherwise 1 s]",
)
@click.option(
    "-lms",
    "--loop-ms",
    type=click.IntRange(50),
    default=None,
    metavar="MILLISECONDS",
    help="The same in milliseconds.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after this many samples.")
@click.option(
    "-i",
    "--id",
    "ids",
    metavar="IDS",
    default="",
    help="GPUs by index, UUID or bus ID, comma-separated, or all.  "
    "[default: those that CUDA_VISIBLE_DEVICES allows]",
)
@click.option(
    "--pid",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="With --query-gpu: watch this process and its children until it ends.",
)
@click.option(
    "-f",
    "--filename",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Append to this file.  [default: standard output]",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=None,
    help="Folder of runs, where --live looks.  [default: profiles]",
)
@_destination_options
@click.option("--help-query-gpu", is_flag=True, help="List all columns and exit.")
def command(
    path: Path | None,
    live: bool,
    query: str | None,
    csv_format: str,
    loop_s: float | None,
    loop_ms: int | None,
    count: int | None,
    ids: str,
    pid: int | None,
    filename: Path | None,
    output_dir: Path | None,
    help_query_gpu: bool,
    **destinations: Any,
) -> int:
    """Sample GPUs, host and processes.

    With --query-gpu, prints like nvidia-smi. Otherwise, or with --live, shows the progress of the
    ranks of RUN (by default the newest run in `profiles`) and what the hardware does. If the output
    is not a terminal, it is shown once. With --prometheus, --prometheus-file or --otlp, the same
    goes to Prometheus or OpenTelemetry until it is interrupted. --mlflow, --wandb and --tensorboard
    log the curves of a running or finished RUN; --tensorboard finds it in its own DIR as well.
    """
    if loop_s is not None and loop_ms is not None:
        raise click.UsageError("give --loop or --loop-ms, not both")
    interval_s = loop_ms / 1000 if loop_ms is not None else loop_s
    chosen = tuple(word.strip() for word in ids.split(",") if word.strip())
    systems = {name.replace("_", "-"): value for name, value in destinations.items() if value}
    if help_query_gpu:
        from stepscope.monitor.querying import column_lines

        click.echo("\n".join(column_lines()))
    elif systems:
        if live or query is not None or pid is not None:
            raise click.UsageError(
                "metrics are of one RUN: stepscope monitor --prometheus PORT [RUN]"
            )
        from stepscope.export.metrics.watch import Watch, export

        with _live_run(path, output_dir, chosen, systems.get("tensorboard")) as look:
            if look().run is None:
                print_message(f"no run in {look().where} yet: its metrics follow once there is one")
            made = writers(systems, Watch(look, _findings_of))
            export(made, interval_s or 15.0, count, print_message)
    elif live or path is not None or not (query or filename or pid):
        if query is not None or pid is not None:
            raise click.UsageError("--live shows one RUN: stepscope monitor --live [RUN]")
        from stepscope.report.console import width_for
        from stepscope.report.live import blocks_of
        from stepscope.report.render.terminal import show_live

        sink = StandardSink()
        with _live_run(path, output_dir, chosen) as look:
            console = sink.console(width=width_for(sink))
            show_live(lambda: blocks_of(look()), console, interval_s or 1.0, count)
    else:
        from stepscope.monitor.querying import CsvFormat, Query, answer

        asked = Query(query, CsvFormat.parse(csv_format), interval_s, count, chosen, pid, filename)
        answer(
            asked,
            lambda lines: click.echo(lines, nl=False),
            lambda note: print_message(f"{note.what}: {note.why}"),
        )
    return 0


def _findings_of(path: Path) -> tuple[Finding, ...]:
    from stepscope.advice.diagnosis import diagnose
    from stepscope.opening.reader import open_run

    return diagnose(open_run(path)).findings


@contextlib.contextmanager
def _live_run(
    path: Path | None, output_dir: Path | None, ids: tuple[str, ...], board: Path | None = None
) -> Iterator[Callable[[], LiveState]]:
    """The run to show, until Ctrl-C; the hardware is sampled where its own monitors do not."""
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import resolve
    from stepscope.analysis.record.live import look_live
    from stepscope.monitor.sampler import local_samples

    if path is not None and not path.exists():
        raise UnreadableInputError(f"{path}: no such file or directory")
    given = {} if output_dir is None else {"output_dir": (str(output_dir), "--output-dir")}
    with contextlib.closing(local_samples(ids)) as samples:
        where = path or Path(resolve(find_dialect("native"), given).value("output_dir"))
        # A training can write its runs where TensorBoard looks.
        if board is not None and path is None and look_live(where, list).run is None:
            where = board if look_live(board, list).run is not None else where
        # Ctrl-C is how a person ends it, not a failure.
        with contextlib.suppress(KeyboardInterrupt):
            yield partial(look_live, where, partial(next, samples))
