"""A running job and its hardware at this moment."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.record.watching import RunView, look_at
from stepscope.errors import StepscopeError
from stepscope.run.reader import open_run

Rows = Sequence[Mapping[str, str]]
"""A sample: a row per GPU, as texts by column."""


@dataclass(frozen=True)
class LiveSample:
    """The latest rows of one sampler.

    Attributes:
        label: Whose they are, such as a rank; empty for the machine's own.
        rows: One for each GPU, as texts by column.
    """

    label: str
    host: str
    rows: Rows


@dataclass(frozen=True)
class LiveState:
    """A run and the hardware at one moment.

    Attributes:
        run: The run; None if none was found.
        where: Where a run was looked for.
    """

    run: RunView | None
    samples: tuple[LiveSample, ...]
    where: str


class LiveRun:
    """A run that is being written, and the hardware.

    Hardware values come from the run's own monitors. If they write none, this machine is sampled.

    Args:
        path: A run, or a directory of runs, of which the newest is used.
    """

    def __init__(self, path: Path, sample: Callable[[], Rows]) -> None:
        self._path = path
        self._sample = sample

    def look(self) -> LiveState:
        """The current state."""
        run = self._find_run()
        samples = [
            LiveSample(
                f"rank {view.rank}", view.manifest.host if view.manifest else "", view.sample
            )
            for view in (run.ranks if run is not None else ())
            if view.sample
        ]
        if not samples:
            # With the host's name, because the run may be on another machine.
            samples = [LiveSample("", socket.gethostname(), self._sample())]
        return LiveState(run, tuple(samples), str(self._path))

    def _find_run(self) -> RunView | None:
        """The run. In a directory of runs, the newest may be a different one each time."""
        try:
            run = open_run(self._path)
            # Loose traces open as runs too, but nobody is writing them.
            is_run = any(rank.manifest is not None for rank in run.ranks)
            return look_at(run.path) if is_run else None
        except StepscopeError:
            return None
