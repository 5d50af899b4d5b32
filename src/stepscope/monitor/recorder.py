"""`metrics.csv`: a file of samples, bounded in size, and what writes it until it is stopped."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.monitor.columns import DEFAULT_COLUMNS, Column, Value, header_of
from stepscope.monitor.notes import Notes
from stepscope.monitor.sampler import Sampler, Ticks, Watched
from stepscope.run.figures import describe_error
from stepscope.run.files import LineFile, replacing
from stepscope.run.manifest import write_record
from stepscope.run.metrics import MetricsRecord, record_path
from stepscope.run.side_json import decode


class MetricsFile:
    """The file of a sampler. Only opening it raises.

    A sample (one row per GPU, with one time) is one write, so that a kill costs at most the last
    sample. At the limit, every second sample is dropped, starting with the second; samples stay
    evenly spaced if they are taken half as often from then on.

    Args:
        path: The file; rows are appended if it exists and has the same columns.
        most_bytes: Its maximum size; None for no limit. Requires `timestamp` as the first column.
        with_header: Whether a new file gets a line of headings.

    Raises:
        OSError: The file cannot be written.
        UsageError: The file exists and has other content.

    Attributes:
        thinned: How often every second sample was dropped.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[Column],
        most_bytes: int | None = None,
        *,
        with_header: bool = True,
    ) -> None:
        self._path = path
        self._columns = tuple(columns)
        self._most_bytes = most_bytes
        self.thinned = 0
        header = f"{header_of(columns)}\n".encode() if with_header else b""
        self._header_bytes = len(header)
        begun = self._existing(header)
        self._lines = LineFile(path)
        if begun:
            # A killed sampler may have left a partial line, which must not damage the next one.
            if not begun.endswith(b"\n"):
                self._lines.write(b"\n")
        elif header:
            self._lines.write(header)
        self._size = path.stat().st_size

    @property
    def problem(self) -> str | None:
        """The first error while writing, or None."""
        return self._lines.problem

    def write(self, rows: Sequence[Sequence[str]]) -> bool:
        """Append a sample: its rows of texts. False if it is itself among the dropped ones."""
        data = "".join(f"{', '.join(row)}\n" for row in rows).encode("utf-8", "replace")
        if self._most_bytes is not None and self._size + len(data) > self._most_bytes:
            samples = self._thin()
            if samples is not None and samples % 2:
                return False
        self._lines.write(data)
        self._size += len(data)
        return True

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _existing(self, header: bytes) -> bytes:
        """The end of a file that can be appended to; empty if there is none."""
        try:
            with self._path.open("rb") as file:
                first = file.readline()
                file.seek(0, 2)
                size = file.tell()
                file.seek(max(0, size - 1))
                last = file.read(1)
        except FileNotFoundError:
            return b""
        if size and header and first != header:
            raise UsageError(
                f"{self._path}: exists with other columns: give another file, or remove it"
            )
        return last

    def _thin(self) -> int | None:
        """Drop every second sample; returns how many there were, or None if writing failed."""
        try:
            with replacing(self._path) as temporary:
                samples = self._write_thinned(temporary)
            self._lines.close()
            self._lines = LineFile(self._path)
            self._size = self._path.stat().st_size
            self.thinned += 1
            return samples
        except OSError as error:
            # Better a file that is too long than one without the next samples.
            self._most_bytes = None
            self._lines.problem = self._lines.problem or describe_error(error)
            return None

    def _write_thinned(self, temporary: Path) -> int:
        number = -1
        with self._path.open("rb") as source, temporary.open("wb") as target:
            if self._header_bytes:
                target.write(source.readline())
            samples = itertools.groupby(source, key=lambda line: line.partition(b",")[0])
            for number, (_, lines) in enumerate(samples):
                if number % 2 == 0:
                    target.writelines(line for line in lines if line.endswith(b"\n"))
        return number + 1


def row_of(
    columns: Sequence[Column], values: Mapping[str, Value], *, with_units: bool
) -> list[str]:
    """A row's texts, in the order of the columns."""
    return [column.show(values.get(column.name), with_unit=with_units) for column in columns]


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
            ended = f"the sampler failed: {describe_error(error)}"
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
