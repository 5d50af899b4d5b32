"""A run's curves in Weights & Biases, through its own client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.export.metrics.curves import Curves

if TYPE_CHECKING:
    from stepscope.export.metrics.watch import Watch

_STEP = "stepscope/step"


class WandbWriter:
    """Logs curves to a run of Weights & Biases of its own.

    Project, entity and mode come from `WANDB_…`, as for every program with the client; the project
    is "stepscope" by default.
    """

    name = "Weights & Biases"
    is_served = False

    def __init__(self, watch: Watch) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UsageError(
                "curves in Weights & Biases need its client: pip install 'stepscope[wandb]'"
            ) from error
        self.is_done = False
        self.where = os.environ.get("WANDB_PROJECT", "stepscope")
        self._wandb = wandb
        self._run: Any = None
        self._curves = Curves(watch)

    def write(self) -> None:
        """Log the points since the last time."""
        points = self._curves.new_points()
        if points and self._run is None:
            assert self._curves.path is not None
            self._run = self._start(self._curves.path)
        for point in points:
            self._run.log({**point.values, _STEP: point.step})
        self.is_done = self._curves.has_ended

    def _start(self, path: Path) -> Any:
        # The process that watches is of no interest: neither its output nor its load.
        settings = self._wandb.Settings(console="off", x_disable_stats=True)
        try:
            run = self._wandb.init(
                project=self.where,
                name=path.name,
                config={"stepscope_run": str(path)},
                settings=settings,
            )
        except Exception as error:
            raise UnreadableInputError(
                f"Weights & Biases: no run: {error}; WANDB_MODE=offline writes to a folder"
            ) from error
        run.define_metric(_STEP, hidden=True)
        run.define_metric("stepscope/*", step_metric=_STEP)
        return run

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
