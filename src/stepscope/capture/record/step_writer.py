"""Writes the steps beside the training: the thread that turns rows into lines, sums and curves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from stepscope.capture.containment import Containment
from stepscope.capture.steps.core import MOST_ROWS, StepCore
from stepscope.capture.steps.tally import StepTally
from stepscope.run.files import LineFile
from stepscope.run.layout import STEPS_FILE
from stepscope.run.step_record import StepRecord, encode_step
from stepscope.run.step_ring import StepDecoder, create_ring

_EVERY_S = 1.0
_CLOSE_S = 5.0


class StepWriter:
    """Writes what the boundaries of steps queue: once a second, when much waits, and at the end.

    Nothing here calls torch: a thread inside torch when the interpreter exits ends the process.

    Args:
        lines: The step record; None to write none.
        ring: The path of the ring beside it.

    Attributes:
        looks: The same, to add to.
        tally: Sums of the steps.
        takers: Called with each step, in order.
    """

    def __init__(
        self,
        core: StepCore,
        containment: Containment,
        lines: LineFile | None,
        ring: Path,
        *looks: Callable[[], object],
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
        self.looks = list(looks)
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
                record = StepRecord(**fields)
                if self._lines is not None:
                    try:
                        lines.append(encode_step(record))
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
        self._lines.write_all(lines)

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
