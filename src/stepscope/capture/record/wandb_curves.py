"""Curves in the training's wandb run: every point arrives, and the training's rows are its own.

wandb counts rows itself, and a row of ours would shift the training's. So a point joins the row
that the training logs next, one point per row. The rest is written when the wandb run finishes,
when the training can log no more.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("stepscope")

_MOST_PENDING = 10_000
_NO_ROW = object()


class WandbWriter:
    """Adds points to the rows that the training logs, and writes the rest at the end.

    Raises:
        RuntimeError: The training has no wandb run.
    """

    def __init__(self) -> None:
        wandb = sys.modules.get("wandb")
        if wandb is None or getattr(wandb, "run", None) is None:
            raise RuntimeError("the training has no wandb run: call wandb.init first")
        self._wandb: Any = wandb
        self._run: Any = wandb.run
        self._pending: deque[dict[str, float]] = deque()
        self._row: object = _NO_ROW
        self._lock = threading.RLock()
        self._use_own_axis()
        self._flush_before_finish()

    def __call__(self, values: Mapping[str, float], step: int) -> None:
        """Write a point as soon as there is a row for it."""
        with self._lock:
            self._pending.append({**values, "stepscope/step": step})
            if len(self._pending) > _MOST_PENDING:
                log.warning(
                    "stepscope: wandb: the training logs too seldom: every second is left out"
                )
                self._pending = deque(list(self._pending)[::2])
            self.look()

    def look(self) -> None:
        """Write the next point if the training has logged since the last one."""
        with self._lock:
            row = getattr(self._run, "step", None)
            if not self._pending or (row is not None and row == self._row):
                return
            self._row = row
            self._wandb.log(self._pending.popleft(), commit=False)

    def flush(self) -> None:
        """Write all points, in rows of their own. The training must not log afterwards."""
        with self._lock:
            pending, self._pending = self._pending, deque()
            if not pending:
                return
            if getattr(self._run, "step", None) == self._row:
                self._wandb.log({}, commit=True)  # this row already has a point
            for values in pending:
                self._wandb.log(values, commit=True)

    def _use_own_axis(self) -> None:
        """Draw the curves over our steps, wherever their rows are."""
        with contextlib.suppress(Exception):
            self._run.define_metric("stepscope/step", hidden=True)
            self._run.define_metric("stepscope/*", step_metric="stepscope/step")

    def _flush_before_finish(self) -> None:
        atexit.register(
            self._flush_quietly
        )  # runs before wandb's own, which was registered earlier
        finish = getattr(self._run, "finish", None)
        if finish is None:
            return

        @functools.wraps(finish)
        def flush_and_finish(*arguments: Any, **options: Any) -> Any:
            self._flush_quietly()
            return finish(*arguments, **options)

        with contextlib.suppress(AttributeError, TypeError):
            self._run.finish = flush_and_finish

    def _flush_quietly(self) -> None:
        atexit.unregister(self._flush_quietly)
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - a finished or broken run must not stop the training
            log.warning("stepscope: wandb: the last points are lost: %s", error)
