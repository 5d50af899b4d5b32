"""The step record as curves: means over some steps, with the minimum and maximum rank.

Every rank averages its steps. Rank 0 gathers the averages through the process group's store and
writes mean, minimum and maximum. All of this happens in the listening thread. A rank that is late
or dead is left out of the curves, and nobody waits for it.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from stepscope.capture.options.config import ScalarWriter
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.shared_store import SharedStore
from stepscope.run.step_record import StepRecord

log = logging.getLogger("stepscope")

_PATIENCE_S = 10.0
_LAST_LOOK_S = 10.0
_MOST_PENDING = 8
_HURRY_AT = 3


class StepAverages:
    """Means over consecutive steps."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._worst_ns = 0
        self._total_ns = 0
        self._steps = 0
        self._tokens = 0
        self._samples = 0

    def add(self, record: StepRecord) -> None:
        """Add a step."""
        self._steps += 1
        self._total_ns += record.dur_ns
        self._worst_ns = max(self._worst_ns, record.dur_ns)
        self._tokens += record.tokens or 0
        self._samples += record.samples or 0
        self._sums["data_wait_ms"] += record.data_wait_ns / 1e6
        for name, duration_ns in record.phases.items():
            self._sums[f"phase_ms/{name}"] += duration_ns / 1e6

    def values(self) -> dict[str, float]:
        """The means: milliseconds per step, tokens and samples per second."""
        steps = max(1, self._steps)
        seconds = max(1, self._total_ns) / 1e9
        result = {"step_ms": self._total_ns / 1e6 / steps, "worst_step_ms": self._worst_ns / 1e6}
        result.update((name, total / steps) for name, total in self._sums.items())
        if self._tokens:
            result["tokens_per_second"] = self._tokens / seconds
        if self._samples:
            result["samples_per_second"] = self._samples / seconds
        return result


class ScalarSink:
    """Averages steps, gathers the averages of all ranks, and writes them as curves.

    The listening thread calls `look` and the training thread `close`; only one runs at a time.

    Args:
        writer: "tensorboard", "wandb", or a function.
        every: Number of steps per point.

    Attributes:
        hurry: Called when points wait to be written; makes the listening thread look soon.
    """

    def __init__(
        self, writer: str | ScalarWriter, every: int, directory: Path, identity: RankIdentity
    ) -> None:
        self._wanted = writer
        self._writer: ScalarWriter | None = None
        self._is_broken = False
        self._every = every
        self._directory = directory
        self._identity = identity
        self._averages = StepAverages()
        self._ready: deque[tuple[int, dict[str, float]]] = deque(maxlen=_MOST_PENDING)
        self._gathering: deque[tuple[int, float]] = deque()
        self._own: dict[int, dict[str, float]] = {}
        self._lock = threading.Lock()
        self.hurry: Callable[[], object] = bool
        self._is_closed = False

    def step_ended(self, record: StepRecord) -> None:
        """Add a step. Steps of another kind and recorded steps are left out."""
        if record.is_whole_step and record.window is None:
            self._averages.add(record)
        if (record.step + 1) % self._every == 0:
            averages, self._averages = self._averages, StepAverages()
            self._ready.append((record.step, averages.values()))
            if len(self._ready) == _HURRY_AT:
                self.hurry()

    def look(self, store: SharedStore | None) -> None:
        """Send and write what is ready. Called in the listening thread."""
        with self._lock:
            if not self._is_closed:
                self._look(store)
                look = getattr(self._writer, "look", None)
                if look is not None:
                    self._attempt(look)

    def close(self, store: SharedStore | None) -> None:
        """Write what there is, without waiting for other ranks."""
        # A look that imports the writer's package takes seconds; one at a dead store never returns.
        if not self._lock.acquire(timeout=_LAST_LOOK_S):
            log.warning("stepscope: the last points of the curves are lost: the listener hangs")
            return
        try:
            self._is_closed = True
            self._look(store)
            while self._gathering:
                step, _ = self._gathering.popleft()
                self._write(step, self._points(step, store))
            close = getattr(self._writer, "close", None)
            if close is not None:
                close()
        finally:
            self._lock.release()

    def _look(self, store: SharedStore | None) -> None:
        has_news = bool(self._ready)
        while self._ready:
            step, values = self._ready.popleft()
            self._own[step] = values
            if self._identity.rank == 0:
                self._gathering.append((step, time.monotonic()))
            elif len(self._own) > _MOST_PENDING:
                del self._own[min(self._own)]
        if has_news and self._identity.rank and store is not None:
            # One key per rank, overwritten each time: the store must not grow with the run.
            latest = {str(step): values for step, values in self._own.items()}
            store.put(f"scalars/{self._identity.rank}", orjson.dumps(latest))
        while self._gathering:
            step, since = self._gathering[0]
            points = self._points(step, store)
            is_late = time.monotonic() - since > _PATIENCE_S
            is_full = len(points) == self._identity.world_size or store is None
            if not (is_full or is_late or len(self._gathering) > _MOST_PENDING):
                return
            self._gathering.popleft()
            self._write(step, points)
            self._own.pop(step, None)

    def _points(self, step: int, store: SharedStore | None) -> list[dict[str, float]]:
        points = [self._own[step]]
        if store is None:
            return points
        for rank in range(1, self._identity.world_size):
            data = store.get(f"scalars/{rank}")
            told = orjson.loads(data) if data is not None else {}
            if str(step) in told:
                points.append(told[str(step)])
        return points

    def _write(self, step: int, points: list[dict[str, float]]) -> None:
        values = merged(points)
        if self._writer is None and not self._is_broken:
            self._writer = self._make_writer()
        if self._writer is None:
            return
        named = {f"stepscope/{name}": value for name, value in values.items()}
        self._attempt(self._writer, named, step)

    def _attempt(self, write: Callable[..., object], *arguments: Any) -> None:
        try:
            write(*arguments)
        except Exception as error:  # noqa: BLE001 - a writer of curves can fail in any way
            self._is_broken, self._writer = True, None
            log.warning("stepscope: curves are no longer written: %s", error)

    def _make_writer(self) -> ScalarWriter | None:
        if callable(self._wanted):
            return self._wanted
        try:
            if self._wanted == "wandb":
                from stepscope.capture.record.wandb_curves import WandbWriter

                return WandbWriter()
            return _TensorBoardWriter(self._directory)
        except Exception as error:  # noqa: BLE001 - a missing package, a folder, a service
            self._is_broken = True
            log.warning("stepscope: no curves for %s: %s", self._wanted, error)
            return None


def merged(points: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each value over the ranks; with several ranks, minimum and maximum as well."""
    names = sorted({name for point in points for name in point})
    result = {}
    for name in names:
        values = [point[name] for point in points if name in point]
        result[name] = statistics.fmean(values)
        if len(points) > 1:
            result[f"{name}/min"], result[f"{name}/max"] = min(values), max(values)
    return result


class _TensorBoardWriter:
    """Writes an event file for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory))

    def __call__(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
