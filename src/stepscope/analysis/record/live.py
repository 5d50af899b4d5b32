"""A run and the hardware at this moment, looked at again and again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.record.watching import RunView, look_at
from stepscope.errors import StepscopeError
from stepscope.run.reader import open_run

Rows = Sequence[Mapping[str, str]]
"""A sample: a row for each GPU, as texts by column."""


@dataclass(frozen=True)
class LiveSample:
    """The latest rows of one sampler.

    Attributes:
        label: Whose they are, such as a rank; empty for the machine's own.
        host: The machine.
        rows: One for each GPU, as texts by column.
    """

    label: str
    host: str
    rows: Rows


@dataclass(frozen=True)
class LiveState:
    """A moment.

    Attributes:
        run: The run; None where none was found.
        samples: The latest samples.
        where: Where a run was looked for, for people.
    """

    run: RunView | None
    samples: tuple[LiveSample, ...]
    where: str


class LiveRun:
    """A run while it is written, and the hardware.

    The hardware's values are those that the run's own monitors write; this machine is sampled where
    they write none.

    Args:
        path: A run, or a folder of runs: the newest is looked at.
        sample: Samples this machine.
    """

    def __init__(self, path: Path, sample: Callable[[], Rows]) -> None:
        self._path = path
        self._sample = sample

    def look(self) -> LiveState:
        """How things are now."""
        run = self._find_run()
        samples = [
            LiveSample(
                f"rank {view.rank}", view.manifest.host if view.manifest else "", view.sample
            )
            for view in (run.ranks if run is not None else ())
            if view.sample
        ]
        if not samples:
            # The host's name stands beside them: a run may be another machine's.
            samples = [LiveSample("", socket.gethostname(), self._sample())]
        return LiveState(run, tuple(samples), str(self._path))

    def _find_run(self) -> RunView | None:
        """The run; of a folder of runs the newest, which may be another one each time."""
        try:
            run = open_run(self._path)
            # Loose traces open as runs, too: nobody writes them step by step.
            is_run = any(rank.manifest is not None for rank in run.ranks)
            return look_at(run.path) if is_run else None
        except StepscopeError:
            return None
