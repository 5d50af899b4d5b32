"""Writes the steps beside the training: the thread that turns rows into lines, sums and curves."""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from stepscope.capture.containment import Containment
from stepscope.capture.steps.core import MOST_ROWS, StepCore
from stepscope.run.figures import binary_size, duration, percent
from stepscope.run.files import LineFile
from stepscope.run.layout import STEPS_FILE
from stepscope.run.step_record import StepRecord, encode_fields, step_of
from stepscope.run.step_ring import StepDecoder, create_ring
from stepscope.system import resident_bytes

_EVERY_S = 1.0
_CLOSE_S = 5.0


class StepWriter:
    """Writes what the boundaries of steps queue: once a second, when much waits, and at the end.

    Nothing here calls torch: a thread inside torch when the interpreter exits ends the process.

    Args:
        lines: The step record; None to write none.
        ring: The path of the ring beside it.

    Attributes:
        looks: Called once a second, in the thread.
    """

    def __init__(
        self,
        core: StepCore,
        containment: Containment,
        lines: LineFile | None,
        ring: Path,
    ) -> None:
        self.tally = StepTally()
        self.takers: list[tuple[str, Callable[[StepRecord], object]]] = [
            ("summing up steps", self.tally.add)
        ]
        self._core = core
        self._decoder = StepDecoder(core.epoch_offset_ns)
        self._containment = containment
        self._lines = lines
        self._ring_path = ring
        self.looks: list[Callable[[], object]] = []
        self._lock = threading.RLock()
        self._wakeup = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="stepscope steps", daemon=True)

    def start(self) -> None:
        """Create the ring and start the thread."""
        self._core.wake_writer = self._wakeup.set
        if self._lines is not None:
            self._core.set_ring(create_ring(self._ring_path, self._core.epoch_offset_ns))
        if self._core.loaders is not None:
            self._core.loaders.hurry = self._wakeup.set
        self._thread.start()

    def drain(self) -> None:
        """Write the rows that wait. May be called from any thread."""
        with self._lock:
            rows = self._core.rows
            if len(rows) == MOST_ROWS:
                self._containment.admit(
                    "writing the step record", f"more than {MOST_ROWS} steps waited: some are lost"
                )
            lines = []
            for _ in range(len(rows)):
                fields = self._decoder.fields(rows.popleft())
                if fields is None:
                    continue
                record = step_of(fields)
                if self._lines is not None:
                    try:
                        lines.append(encode_fields(fields))
                    except Exception as error:  # noqa: BLE001 - the other steps are written
                        self._containment.failed("writing a step", error)
                for where, take in self.takers:
                    try:
                        take(record)
                    except Exception as error:  # noqa: BLE001, PERF203 - the others are served
                        self._containment.failed(where, error)
            self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        """Write lines, to a new file where the old one was removed."""
        if self._lines is None or not lines:
            return
        if self._lines.reopen_if_removed():
            self._containment.admit(
                "writing the step record",
                f"{STEPS_FILE} was removed, with the lines before these {len(lines)}",
            )
            self._core.set_ring(create_ring(self._ring_path, self._core.epoch_offset_ns))
        self._lines.write(*lines)

    def close(self) -> None:
        """Write what is left, stop the thread and remove the ring: every row is in the file."""
        self._is_closed = True
        self._wakeup.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        if not self._lock.acquire(timeout=_CLOSE_S):
            self._containment.admit("writing the step record", "its file system hangs")
            return
        try:
            self.drain()
            if self._core.loaders is not None:
                self._core.loaders.look()
        finally:
            self._lock.release()
        ring = self._core.set_ring(None)
        if ring.is_file:
            with contextlib.suppress(OSError, ValueError, BufferError):
                ring.close()
            if self._lines is None or self._lines.problem is None:
                with contextlib.suppress(OSError):
                    self._ring_path.unlink()

    def _work(self) -> None:
        containment, wait_s = self._containment, _EVERY_S
        while True:
            self._wakeup.wait(wait_s)
            self._wakeup.clear()
            if self._is_closed:
                return
            containment.attempt("writing steps", self.drain)
            wait_s = _EVERY_S
            if self._core.loaders is not None:
                found = containment.attempt("looking at the loader", self._core.loaders.look)
                wait_s = min(_EVERY_S, max(0.01, found or _EVERY_S))
            for look in (self._core.look, *self.looks):
                containment.attempt("looking at the capture", look)


_SKIPPED = 5
"""The first steps are slow in every run and say nothing about the rest."""
_EARLY = 200
_RECENT = 500
_LEAST = 10
_WORST = 3
_INPUT_SHARE = 0.2
_UNEVEN = 1.5
_DRIFT = 1.1
_CREEP = 1.05
_HOST_CREEP = 1.1
_HOST_CREEP_BYTES = 64 << 20
_HOST_EVERY = 50
"""Number of steps between two readings of the process's memory."""


class StepTally:
    """Sums and samples of the steps so far, without those inside windows and right after one."""

    def __init__(self, resident: Callable[[], int | None] = resident_bytes) -> None:
        self._resident = resident
        self._first_host: int | None = None
        self._last_host: int | None = None
        self._steps = 0
        self._total_ns = 0
        self._wait_ns = 0
        self._early: list[int] = []
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._worst: list[tuple[int, int]] = []
        self._first_peak = 0
        self._last_peak = 0
        self._follows_window = False

    def add(self, record: StepRecord) -> None:
        """Count a complete step of the training, unless it is in a window or right after one."""
        if record.window is not None:
            # Recording takes memory, some of it for good: start over.
            self._first_host = self._last_host = None
        # The files of a window are made beside the step that follows it, and may slow it.
        is_disturbed = self._follows_window or record.window is not None
        self._follows_window = record.window is not None
        if not record.is_whole_step or is_disturbed:
            return
        self._steps += 1
        if self._steps <= _SKIPPED:
            return
        self._total_ns += record.dur_ns
        self._wait_ns += record.data_wait_ns
        if len(self._early) < _EARLY:
            self._early.append(record.dur_ns)
            self._first_peak = sum(record.peak_allocated_bytes) or self._first_peak
        if self._steps % _HOST_EVERY == 0 and self._steps >= _EARLY:
            self._last_host = self._resident()
            if self._first_host is None:
                self._first_host = self._last_host
        self._recent.append(record.dur_ns)
        self._last_peak = sum(record.peak_allocated_bytes) or self._last_peak
        self._worst = sorted([*self._worst, (record.dur_ns, record.step)])[-_WORST:]

    def verdict(self) -> str:
        """What the steps show, in one sentence; empty if there were too few.

        *input-bound*: at least a fifth of the time went to waiting for batches. *uneven*: of the
        last 500 steps, the slowest twentieth took at least 1.5 times the median. *drifting*: the
        median of the last 500 steps differs by more than a tenth from that of the first 200.
        *memory creep*: a GPU's peak memory grew by at least a twentieth after the first 200 steps,
        or the process's own memory by a tenth and 64 MiB since then and since the last window.
        """
        if len(self._recent) < _LEAST:
            return ""
        median_ns = statistics.median(self._recent)
        findings = []
        share = self._wait_ns / max(1, self._total_ns)
        if share >= _INPUT_SHARE:
            findings.append(
                f"input-bound, {percent(share)} of the time went to waiting for batches"
            )
        slowest_ns = statistics.quantiles(self._recent, n=20)[-1]
        if slowest_ns >= _UNEVEN * median_ns:
            findings.append(
                f"uneven, one step in twenty takes {slowest_ns / median_ns:.1f} times the median "
                f"or more; {self._worst_steps(_UNEVEN * median_ns)}"
            )
        if len(self._early) == _EARLY:
            early_ns = statistics.median(self._early)
            change = median_ns / early_ns
            if not 1 / _DRIFT < change < _DRIFT:
                word = "slower" if change > 1 else "faster"
                findings.append(
                    f"drifting, steps became {percent(abs(change - 1))} {word} than at the start"
                )
            if self._first_peak and self._last_peak >= _CREEP * self._first_peak:
                grown = binary_size(self._last_peak - self._first_peak)
                findings.append(f"memory creep, peak memory grew by {grown} after the start")
        if self._first_host and self._last_host:
            grown_bytes = self._last_host - self._first_host
            if grown_bytes >= max(_HOST_CREEP_BYTES, (_HOST_CREEP - 1) * self._first_host):
                findings.append(
                    f"memory creep, the process grew by {binary_size(grown_bytes)} on the host "
                    "after the start"
                )
        text = "; ".join(findings) or "steady"
        return f"median step {duration(median_ns)}; {text}"

    def _worst_steps(self, least_ns: float) -> str:
        """The longest of the steps that take at least so long."""
        longest = self._worst[::-1]
        slow = [one for one in longest if one[0] >= least_ns] or longest[:1]
        named = ", ".join(f"{step} ({duration(dur_ns)})" for dur_ns, step in slow)
        return f"the worst {'were steps' if len(slow) > 1 else 'was step'} {named}"
