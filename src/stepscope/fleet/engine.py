"""Chooses what runs a function on many ranks: processes of this machine, or Dask."""

from __future__ import annotations

from stepscope.errors import UsageError
from stepscope.fleet.engines.local import LocalEngine
from stepscope.fleet.engines.outcome import Engine

ENGINES = ("local", "dask")


def choose_engine(
    name: str = "local", *, scheduler: str | None = None, workers: int | None = None
) -> Engine:
    """The engine of a name.

    Args:
        name: One of `ENGINES`.
        scheduler: Address of a Dask scheduler.
        workers: How many processes; None leaves it to the engine.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers are too few: give 1 or more")
    if name == "dask":
        from stepscope.fleet.engines.dask import DaskEngine

        return DaskEngine(scheduler, workers)
    if name != "local":
        raise UsageError(f"there is no engine {name!r}: choose one of {', '.join(ENGINES)}")
    if scheduler is not None:
        raise UsageError("a scheduler is Dask's: give --engine dask with --scheduler")
    return LocalEngine(workers)
