"""What `stepscope monitor --live` does again and again: look at the run, sample, show."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.record.watching import RunView, look_at
from stepscope.errors import StepscopeError
from stepscope.monitor.columns import DEFAULT_COLUMNS
from stepscope.monitor.notes import Notes
from stepscope.monitor.sampler import Sampler, Watched
from stepscope.report.live.layout import ShownSample, layout_of
from stepscope.run.reader import open_run

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class LiveView:
    """A run while it is written, and the hardware.

    The hardware's values are those that the run's own monitors write; this machine is sampled where
    they write none.

    Args:
        path: A run, or a folder of runs: the newest is shown.
        ids: GPUs of this machine to sample; empty for those that are visible.
    """

    def __init__(self, path: Path, ids: tuple[str, ...] = ()) -> None:
        self._path = path
        self._ids = ids
        self._sampler: Sampler | None = None

    def show(self, console: Console, interval_s: float, count: int | None) -> None:
        """Show it until interrupted, `count` times at most; once where nobody watches."""
        if not console.is_terminal:
            # Means need two samples: the first one primes them.
            self._look()
            time.sleep(min(1.0, interval_s))
            console.print(self._look())
            return
        from rich.live import Live

        shown = 0
        with Live(self._look(), console=console, auto_refresh=False) as live:
            while count is None or shown < count:
                time.sleep(interval_s)
                live.update(self._look(), refresh=True)
                shown += 1

    def close(self) -> None:
        """Let go of the drivers."""
        if self._sampler is not None:
            self._sampler.close()

    def _look(self) -> RenderableType:
        run = self._find_run()
        samples = [
            ShownSample(
                f"rank {view.rank}", view.manifest.host if view.manifest else "", view.sample
            )
            for view in (run.ranks if run is not None else ())
            if view.sample
        ]
        if not samples:
            # The host's name stands beside them: a run may be another machine's.
            samples = [ShownSample("", socket.gethostname(), self._own_sample())]
        return layout_of(run, samples, str(self._path))

    def _find_run(self) -> RunView | None:
        """The run; of a folder of runs the newest, which may be another one each time."""
        try:
            run = open_run(self._path)
            # Loose traces open as runs, too: nobody writes them step by step.
            is_run = any(rank.manifest is not None for rank in run.ranks)
            return look_at(run.path) if is_run else None
        except StepscopeError:
            return None

    def _own_sample(self) -> list[dict[str, str]]:
        if self._sampler is None:
            watched = Watched(os.getpid(), is_root=False, ids=self._ids)
            self._sampler = Sampler(DEFAULT_COLUMNS, watched, Notes())
        return [
            {
                column.name: column.show(row.get(column.name), with_unit=True)
                for column in DEFAULT_COLUMNS
            }
            for row in self._sampler.read()
        ]
