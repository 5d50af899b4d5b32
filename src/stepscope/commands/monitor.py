"""`stepscope monitor`: sample the hardware during a training, like nvidia-smi or live."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.commands.messages import print_message
from stepscope.commands.sinks import StandardSink
from stepscope.errors import UnreadableInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.advice.finding import Finding
    from stepscope.analysis.record.live import LiveState


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
@click.option(
    "--prometheus",
    "address",
    metavar="[HOST:]PORT",
    default=None,
    help="Serve RUN and the hardware as metrics of Prometheus, at http://HOST:PORT/metrics; "
    "this machine alone can read them unless a host is given.",
)
@click.option(
    "--prometheus-file",
    "textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.prom",
    default=None,
    help="Write the same to a file, for the textfile collector of node_exporter.",
)
@click.option(
    "--otlp",
    "endpoint",
    metavar="URL",
    default=None,
    help="Send the same to a collector of OpenTelemetry, such as http://localhost:4318.",
)
@click.option(
    "--mlflow",
    "to_mlflow",
    is_flag=True,
    help="Log RUN's curves to MLflow, at MLFLOW_TRACKING_URI, until RUN has ended.",
)
@click.option(
    "--wandb", "to_wandb", is_flag=True, help="Log the same to a new run of Weights & Biases."
)
@click.option(
    "--tensorboard",
    "board",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    default=None,
    help="Write the same for TensorBoard, into this folder.",
)
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
    address: str | None,
    textfile: Path | None,
    endpoint: str | None,
    to_mlflow: bool,
    to_wandb: bool,
    board: Path | None,
    help_query_gpu: bool,
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
    if help_query_gpu:
        from stepscope.monitor.querying import column_lines

        click.echo("\n".join(column_lines()))
    elif address or textfile or endpoint or to_mlflow or to_wandb or board:
        if live or query is not None or pid is not None:
            raise click.UsageError(
                "metrics are of one RUN: stepscope monitor --prometheus PORT [RUN]"
            )
        from stepscope.export.metrics.destinations import Destinations
        from stepscope.export.metrics.watch import Watch, export

        destinations = Destinations(
            address, textfile, endpoint, to_mlflow=to_mlflow, to_wandb=to_wandb, board=board
        )
        with _live_run(path, output_dir, chosen, board) as look:
            if look().run is None:
                print_message(f"no run in {look().where} yet: its metrics follow once there is one")
            writers = destinations.writers(Watch(look, _findings_of))
            export(writers, interval_s or 15.0, count, print_message)
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
    """The run to show, until Ctrl-C; the hardware is sampled where its own monitors do not.

    Args:
        board: Where runs may be as well: a training can write them where TensorBoard looks.
    """
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import resolve
    from stepscope.analysis.record.live import look_live
    from stepscope.monitor.sampler import local_samples

    if path is not None and not path.exists():
        raise UnreadableInputError(f"{path}: no such file or directory")
    given = {} if output_dir is None else {"output_dir": (str(output_dir), "--output-dir")}
    with contextlib.closing(local_samples(ids)) as samples:
        where = path or Path(resolve(find_dialect("native"), given).value("output_dir"))
        if board is not None and path is None and look_live(where, list).run is None:
            where = board if look_live(board, list).run is not None else where
        # Ctrl-C is how a person ends it, not a failure.
        with contextlib.suppress(KeyboardInterrupt):
            yield partial(look_live, where, partial(next, samples))
