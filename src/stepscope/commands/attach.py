"""`stepscope attach TARGET`: sample the Python stacks of a running training."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.adapters.external.options import read_tool, tool_options
from stepscope.adapters.external.py_spy import PySpyOptions
from stepscope.commands.options import SecondsOption
from stepscope.commands.sinks import print_message

if TYPE_CHECKING:
    from stepscope.opening.reader import Run


@click.command("attach")
@click.argument("target")
@click.option(
    "--seconds",
    "--duration",
    "-d",
    "seconds",
    cls=SecondsOption,
    type=click.FloatRange(min=1, max=86_400),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="How long to sample; py-spy itself calls it --duration.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    default=None,
    help="Rank to sample.  [default: the lowest that runs on this machine]",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File to write; its ending chooses the format, unless --py-spy-format names one.  "
    "[default: in the run, or py-spy-PID in this directory]",
)
@tool_options(PySpyOptions)
def command(
    target: str, seconds: float, rank: int | None, output: Path | None, **values: Any
) -> None:
    """Sample the Python stacks of a running training with py-spy.

    TARGET is a run directory (or the folder that holds it) or a process ID. The training needs no
    preparation and keeps running. Ctrl-C ends the sampling early.
    """
    from stepscope.adapters.external.py_spy import attach, format_of
    from stepscope.errors import UnreadableInputError

    if values["py_spy_format"] is None and output is not None:
        values["py_spy_format"] = format_of(output)
    options = read_tool(PySpyOptions, values)
    run: Run | None = None
    if target.isdecimal():
        if rank is not None:
            raise click.UsageError("--rank needs a run directory, not a process ID")
        process_id = int(target)
    else:
        from stepscope.opening.reader import open_run
        from stepscope.run.files import exists

        if not exists(Path(target)):
            raise UnreadableInputError(f"{target}: no such run directory, and not a process ID")
        run = open_run(target)
        process_id = _process_of_rank(run, rank)
    place = run.path if run is not None and output is None else None
    path = attach(
        process_id,
        options,
        seconds,
        place,
        output,
        print_message,
    )
    click.echo(str(path))


def _process_of_rank(run: Run, rank: int | None) -> int:
    """The process ID of a rank, or of the lowest one, that runs on this machine."""
    from stepscope.monitor.processes import is_running

    known = {one.rank: one.manifest for one in run.ranks if one.manifest is not None}
    if rank is not None and rank not in known:
        raise click.UsageError(f"{run.path}: has no rank {rank}")
    wanted = [known[number] for number in sorted(known) if rank in (None, number)]
    running, here = [one for one in wanted if one.state == "running"], socket.gethostname()
    for manifest in running:
        if manifest.host == here and is_running(manifest.process_id):
            return manifest.process_id
    if rank is None:
        text = "no rank runs on this machine"
        if wanted and not running:
            text = "the run has ended; attach needs one whose training is still running"
    elif running and running[0].host != here:
        text = f"rank {rank} runs on {running[0].host}: attach to it there"
    else:
        text = f"rank {rank} is no longer running (it was process {wanted[0].process_id})"
    raise click.UsageError(f"{run.path}: {text}")
