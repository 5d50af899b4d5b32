"""A verdict from the step times alone, updated with each step, in constant memory.

At the end of a run, it says in one sentence what the step record of this rank shows, with or
without windows. The report reads all ranks and the whole record, and says more.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Callable

from stepscope.capture.messages import memory_text
from stepscope.run.figures import percent
from stepscope.run.step_record import StepRecord
from stepscope.system.usage import resident_bytes

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
    """Sums and samples of the steps so far, without those inside windows and right after one.

    Args:
        resident: Returns the process's memory on the host, or None if unknown.
    """

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
        worst = (record.dur_ns, record.step)
        if len(self._worst) < _WORST:
            heapq.heappush(self._worst, worst)
        else:
            heapq.heappushpop(self._worst, worst)

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
            worst = ", ".join(
                f"{step} ({_duration(dur_ns)})" for dur_ns, step in sorted(self._worst)[::-1]
            )
            findings.append(
                f"uneven, one step in twenty takes {slowest_ns / median_ns:.1f} times the median "
                f"or more; the worst were steps {worst}"
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
                grown = memory_text(self._last_peak - self._first_peak)
                findings.append(f"memory creep, peak memory grew by {grown} after the start")
        if self._first_host and self._last_host:
            grown_bytes = self._last_host - self._first_host
            if grown_bytes >= max(_HOST_CREEP_BYTES, (_HOST_CREEP - 1) * self._first_host):
                findings.append(
                    f"memory creep, the process grew by {memory_text(grown_bytes)} on the host "
                    "after the start"
                )
        text = "; ".join(findings) or "steady"
        return f"median step {_duration(median_ns)}; {text}"


def _duration(duration_ns: float) -> str:
    """Three significant digits in milliseconds or seconds, never an exponent."""
    for unit_ns, unit in ((1e6, "ms"), (1e9, "s")):
        digits = f"{duration_ns / unit_ns:.3g}"
        if float(digits) < 1000:
            return f"{digits} {unit}"
    return f"{duration_ns / 1e9:.0f} s"
