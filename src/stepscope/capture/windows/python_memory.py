"""A window that tracemalloc records: which lines of Python hold more memory afterwards.

tracemalloc counts what Python's own allocators hand out: objects, lists, strings, bytes. It does
not see the memory of tensors, which comes from torch's allocators, or any other memory of C++ code.
It runs only from a window's warm-up to its end: meanwhile, every allocation costs several times as
much and leaves a record.

Definitions
    Current: bytes allocated since tracing began and not yet freed. Peak of a step: the maximum
    of current in the step.
    Change of a location: its bytes at the end of the window's last step minus its bytes at the
    start of the first. The changes of all locations add up to the change in the table's header.
"""

from __future__ import annotations

import linecache
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

from stepscope._package import PACKAGE
from stepscope.capture.windows.planner import WindowPlan
from stepscope.capture.windows.recorder import Window, WindowTools, finished
from stepscope.run.files import write_atomically
from stepscope.run.manifest import ArtifactRecord, WindowRecord

PYTHON_MEMORY_FILE = "python_memory.txt"
_LONGEST_LINE = 80


@dataclass(frozen=True)
class StepMemory:
    """What tracemalloc counted in one step.

    Attributes:
        current_bytes: Bytes allocated since tracing began and not freed, at the step's end.
        peak_bytes: Maximum of that number in the step.
    """

    step: int
    current_bytes: int
    peak_bytes: int
    is_whole: bool


class MeasuredSteps:
    """The steps of the window and their memory; ends where tracing itself takes too much."""

    def __init__(self, max_bytes: int, end: Callable[[], None]) -> None:
        self.measured: list[StepMemory] = []
        self.is_over = False
        self._max_bytes = max_bytes
        self._end = end
        self._step: int | None = None

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were traced from start to end."""
        return tuple(entry.step for entry in self.measured if entry.is_whole)

    def open(self, step: int) -> None:
        """Begin a step and reset the peak."""
        if not self.is_over:
            self._step = step
            tracemalloc.reset_peak()

    def close(self, *, is_whole: bool) -> None:
        """Record the step, and end tracing if it has grown too large."""
        step, self._step = self._step, None
        if step is None:
            return
        current, peak = tracemalloc.get_traced_memory()
        self.measured.append(StepMemory(step, current, peak, is_whole))
        if tracemalloc.get_tracemalloc_memory() > self._max_bytes:
            self.is_over = True
            self._end()


class PythonMemoryWindow(Window):
    """Drives tracemalloc through warm-up, recording and stopping, and writes the result.

    If the script itself is tracing already, its tracing continues afterwards.
    """

    uses_torch_profiler = False
    is_of_one_thread = False

    def __init__(self, tools: WindowTools, plan: WindowPlan) -> None:
        super().__init__(tools, plan)
        self._config = tools.config
        self.ranges: MeasuredSteps = MeasuredSteps(
            self._config.tracemalloc_max_bytes, self._end_tracing
        )
        self._is_tracing = False
        self._is_foreign = False
        self._first: tracemalloc.Snapshot | None = None
        self._last: tracemalloc.Snapshot | None = None
        self._own_bytes = 0

    @property
    def lengthens_step(self) -> bool:
        """Whether the window slows the current step down: it traces from the warm-up on."""
        return self._is_tracing or self.is_recording

    def prepare(self) -> None:
        """Begin tracing."""
        self._is_foreign = tracemalloc.is_tracing()
        if not self._is_foreign:
            tracemalloc.start(self._config.tracemalloc_frames)
        self._is_tracing = True

    def start(self) -> None:
        """Begin the window: take the first snapshot."""
        self._first = tracemalloc.take_snapshot()
        self.is_recording = True

    def stop(self) -> int:
        """End the window; returns how long that took, in nanoseconds."""
        started_ns = time.perf_counter_ns()
        self.ranges.close(is_whole=False)
        self.is_recording = False
        self._end_tracing()
        return time.perf_counter_ns() - started_ns

    def abandon(self) -> None:
        """Leave the warm-up and stop tracing."""
        self._first = None
        self._end_tracing()

    def save(self, record: WindowRecord, step_number: int) -> WindowRecord:  # noqa: ARG002
        """Write the table of changes; see `Window.save`."""
        files = () if record.last_step is None else (self._write(),)
        return finished(record, files)

    def _write(self) -> ArtifactRecord:
        first, last, self._first, self._last = self._first, self._last, None, None
        if first is None or last is None:
            raise RuntimeError("tracemalloc was stopped by the script while the window was open")
        path = self.plan.directory / PYTHON_MEMORY_FILE
        write_atomically(path, self._text(first, last).encode("utf-8", "backslashreplace"))
        return ArtifactRecord.of("python_memory", path, path.parent.parent)

    def _end_tracing(self) -> None:
        """Take the last snapshot and stop tracing; a second call does nothing."""
        if not self._is_tracing:
            return
        self._is_tracing = False
        try:
            # The script may have stopped tracing, of which there is only one per process.
            if self._first is not None and tracemalloc.is_tracing():
                self._own_bytes = tracemalloc.get_tracemalloc_memory()
                self._last = tracemalloc.take_snapshot()
        finally:
            if not self._is_foreign:
                tracemalloc.stop()

    def _text(self, first: tracemalloc.Snapshot, last: tracemalloc.Snapshot) -> str:
        steps = self.ranges.measured
        changes = changes_between(first, last, by_stack=self._config.tracemalloc_frames > 1)
        total = sum(change.size_diff for change in changes)
        whole = max(1, len(self.ranges.whole_steps))
        lines = [
            "Memory of Python objects as counted by tracemalloc: allocated by Python since tracing",
            "began, and not yet freed. It does not include the memory of tensors.",
            "",
            f"{'step':>8} {'at end':>16} {'peak':>16}  bytes",
        ]
        lines += [
            f"{entry.step:>8} {entry.current_bytes:>16,} {entry.peak_bytes:>16,}"
            + ("" if entry.is_whole else "  (incomplete)")
            for entry in steps
        ]
        if self.ranges.is_over:
            lines.append(
                "Tracing ended here: tracemalloc's own memory passed "
                f"{self._config.tracemalloc_max_bytes:,} bytes (tracemalloc_max_bytes)."
            )
        if steps:
            lines += [
                "",
                f"Current memory: {steps[-1].current_bytes:,} bytes",
                f"Peak memory: {max(entry.peak_bytes for entry in steps):,} bytes",
            ]
        lines += [
            f"tracemalloc's own memory: {self._own_bytes:,} bytes",
            "",
            f"Change over the window: {total:+,} bytes, {total / whole:+,.0f} bytes per step",
            "",
            f"{'change':>16} {'per step':>16} {'blocks':>10} {'held':>16}  location",
        ]
        shown = changes[: self._config.tracemalloc_rows]
        for change in shown:
            lines.append(
                f"{change.size_diff:>+16,} {change.size_diff / whole:>+16,.0f} "
                f"{change.count_diff:>+10,} {change.size:>16,}  {_place(change.traceback)}"
            )
            lines += [f"{'':>62}  called from {frame}" for frame in reversed(change.traceback[:-1])]
        rest = changes[len(shown) :]
        if rest:
            size, blocks = sum(c.size_diff for c in rest), sum(c.count_diff for c in rest)
            held = sum(c.size for c in rest)
            lines.append(
                f"{size:>+16,} {size / whole:>+16,.0f} {blocks:>+10,} {held:>16,}  "
                f"{len(rest):,} other locations"
            )
        return "\n".join(lines) + "\n"


def changes_between(
    first: tracemalloc.Snapshot, last: tracemalloc.Snapshot, *, by_stack: bool
) -> list[tracemalloc.StatisticDiff]:
    """The changes by line or whole stack, largest first, without those of this recorder's own.

    Its own are left out of the places, of which there are thousands, and not of the snapshots: a
    script that traces from its start has millions of blocks, and a filter of them takes seconds.
    """
    own = (f"{PACKAGE}/adapters/", f"{PACKAGE}/capture/", tracemalloc.__file__)
    changes = last.compare_to(first, "traceback" if by_stack else "lineno")
    return [
        change
        for change in changes
        if (change.size_diff or change.count_diff)
        and not change.traceback[-1].filename.startswith(own)
    ]


def _place(traceback: tracemalloc.Traceback) -> str:
    """The innermost line and its source code."""
    frame = traceback[-1]
    code = linecache.getline(frame.filename, frame.lineno).strip()[:_LONGEST_LINE]
    return f"{frame}  {code}".rstrip()


RECORDER = PythonMemoryWindow
