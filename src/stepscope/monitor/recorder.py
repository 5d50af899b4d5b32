"""Writes samples to `metrics.csv` until told to stop, in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope.monitor.columns import DEFAULT_COLUMNS
from stepscope.monitor.metrics_file import MetricsFile, row_of
from stepscope.monitor.notes import Notes
from stepscope.monitor.sampler import Sampler, Ticks, Watched
from stepscope.run.figures import error_in_words
from stepscope.run.manifest import write_record
from stepscope.run.metrics import MetricsRecord, record_path
from stepscope.run.side_json import decode

STOP = "stop"
GPU = "gpu "
GONE = "gone"
DEFAULT_MOST_BYTES = 64 << 20
_RECORD_EVERY_S = 10.0
_LEAST_LAST_PART = 0.1  # of the interval: samples closer to the previous one add nothing

Wait = Callable[[float], str | None]
"""Waits for an order for this many seconds: STOP, GONE (the watched process ended), GPU and a
UUID; None if none arrived."""


@dataclass(frozen=True)
class RecordingJob:
    """What a recorder should do."""

    path: str
    watched: Watched
    interval_s: float = 1.0
    most_bytes: int = DEFAULT_MOST_BYTES

    def encode(self) -> str:
        """The job as one argument of a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> RecordingJob:
        """The job in an argument that `encode` made."""
        job: RecordingJob = decode(RecordingJob, json.loads(text))
        return job


class Recorder:
    """Takes samples and writes them."""

    def __init__(self, job: RecordingJob) -> None:
        self._job = job
        self._notes = Notes()
        self._path = Path(job.path)
        self._sampler = Sampler(DEFAULT_COLUMNS, job.watched, self._notes)
        try:
            self._file = MetricsFile(self._path, DEFAULT_COLUMNS, job.most_bytes)
        except BaseException:
            self._sampler.close()
            raise
        self._ticks = Ticks(job.interval_s)
        self._samples = 0
        self._started_ns = time.time_ns()
        self._last_s = -1e9
        self._changes_written = -1
        self._record_written_s = 0.0

    def run(self, wait: Wait) -> None:
        """Sample until an order to stop arrives. Raises only what `wait` raises."""
        ended = "the sampler was interrupted"
        try:
            ended = self._loop(wait)
        except Exception as error:
            ended = f"the sampler failed: {error_in_words(error)}"
            raise
        finally:
            self._file.close()
            self._write_record(ended)
            self._sampler.close()

    def _loop(self, wait: Wait) -> str:
        while True:
            order = wait(self._ticks.wait_s())
            if order is None:
                if self._ticks.wait_s():
                    continue  # woken too early
                self._sample()
            elif order == GONE:
                return "the watched process ended without an order to stop"
            elif order == STOP:
                since_s = time.monotonic() - self._last_s
                if since_s > _LEAST_LAST_PART * self._ticks.interval_s:
                    self._sample()
                return "told to stop"
            elif order.startswith(GPU):
                self._sampler.use_gpu(order.removeprefix(GPU).strip())
                self._changes_written = -1

    def _sample(self) -> None:
        self._last_s = time.monotonic()
        rows = self._sampler.read()
        thinned = self._file.thinned
        is_written = self._file.write(
            [row_of(self._sampler.columns, row, with_units=True) for row in rows]
        )
        self._samples += 1
        has_thinned = self._file.thinned > thinned
        # A kept sample is followed by one at twice the interval; a dropped one is between two
        # that are kept.
        if has_thinned and is_written:
            self._ticks.slow_down()
        self._ticks.advance()
        if has_thinned and not is_written:
            self._ticks.slow_down()
        if self._file.problem:
            self._notes.add(self._path.name, self._file.problem)
        is_due = time.monotonic() - self._record_written_s >= _RECORD_EVERY_S
        if self._changes_written < 0 or (is_due and self._notes.changes != self._changes_written):
            self._write_record("")

    def _write_record(self, ended: str) -> None:
        if not self._path.parent.is_dir():
            return  # the run was removed, and must not be created again
        self._changes_written = self._notes.changes
        self._record_written_s = time.monotonic()
        times = os.times()
        record = MetricsRecord(
            state="ended" if ended else "running",
            ended=ended,
            started_ns=self._started_ns,
            interval_s=self._ticks.interval_s,
            thinned=self._file.thinned,
            samples=self._samples,
            watched_pid=self._job.watched.pid,
            process_id=os.getpid(),
            cpu_s=times.user + times.system,
            gpus=self._sampler.gpus,
            notes=self._notes.entries,
        )
        with contextlib.suppress(OSError):
            write_record(record_path(self._path), record)
