"""`stepscope trigger RUN`: ask a running training to record a window."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("trigger")
@click.argument("run", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=None,
    help="Steps to record.  [default: the recording's option `active`]",
)
@click.option(
    "--ranks",
    metavar="RANKS",
    default="",
    help="Ranks that record: all, node-first, every:8, or a list such as 0,3.  "
    "[default: those that record scheduled windows]",
)
@click.option("--memory", is_flag=True, help="Also take a memory snapshot.")
@click.option("--record-shapes", is_flag=True, help="Record shapes in this window.")
@click.option("--profile-memory", is_flag=True, help="Record allocations in this window.")
@click.option("--with-stack", is_flag=True, help="Record Python stacks in this window.")
@click.option(
    "--cuda-sync-events", is_flag=True, help="Record synchronisations of GPUs in this window."
)
def command(run: Path, *, steps: int | None, ranks: str, memory: bool, **details: bool) -> None:
    """Ask the job that writes RUN to record a window now.

    RUN is a run directory, or the folder that holds it. The request is a small file in it, so this
    works from any machine that shares the file system. All ranks record the same steps.

    A training can run with the cheapest options and record more on request: the last four options
    add to the recording's own, for this window alone.
    """
    from stepscope.capture.ranks import parse_ranks
    from stepscope.errors import UsageError
    from stepscope.opening.reader import open_run
    from stepscope.run.triggers import Trigger, ask, checked_details

    found = open_run(run)
    wanted = parse_ranks(ranks) if ranks else "all"
    world_size = found.job.world_size if found.job is not None else None
    if world_size is not None and not isinstance(wanted, str) and min(wanted) >= world_size:
        raise UsageError(f"--ranks {ranks}: the job has no such rank, only 0 to {world_size - 1}")
    home = found.path
    chosen = checked_details(name for name, is_chosen in details.items() if is_chosen)
    trigger = Trigger(steps=steps or 0, ranks=ranks, with_memory=memory, details=chosen)
    path = ask(home, trigger)
    click.echo(f"Asked {home.name} for a window: {path.name}")
    click.echo("Rank 0 looks for requests once a second while the job trains.")
