"""The watched processes: their number, CPU time, memory, and disk traffic."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping

import psutil

from stepscope.monitor.columns import MIB, Value

_BIRTH_ERROR_S = 0.05  # the kernel reports start times in hundredths of a second


class ProcessTree:
    """A process and its descendants.

    Finding them requires a scan of all processes of the machine, so it is done often only at the
    beginning, then every ten seconds, or less often, so that it takes a thousandth of the time.
    """

    _PAUSES_NS = ((10_000_000_000, 0, 20), (60_000_000_000, 2_000_000_000, 500))
    """Up to this age: the minimum pause, also in multiples of the duration of a scan."""
    _LATER = (10_000_000_000, 1000)

    def __init__(self, root_pid: int, *, is_root_watched: bool) -> None:
        self._own_pid = os.getpid()
        self._is_root_watched = is_root_watched
        self._processes: dict[int, psutil.Process] = {}
        self._used: dict[int, tuple[float, int | None, int | None]] = {}
        self._read_ns = 0
        self._read_at_s = 0.0
        self._next_look_ns = 0
        self._begun_ns = time.monotonic_ns()
        try:
            self._root: psutil.Process | None = psutil.Process(root_pid)
        except psutil.Error:
            self._root = None

    def pids(self) -> Collection[int]:
        """Their numbers."""
        self._look()
        return self._processes.keys()

    def read(self) -> Mapping[str, Value]:
        """Count, CPU time and bytes since the last call, and resident memory."""
        self._look()
        now_ns = time.monotonic_ns()
        before, self._used = self._used, {}
        # CPU seconds, bytes read, bytes written, of all since the last call.
        spent = [0.0, 0.0, 0.0]
        resident = 0
        for pid, process in list(self._processes.items()):
            try:
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.Error:  # it ended, or access is denied
                del self._processes[pid]
                continue
            used = (times.user + times.system, *_bytes_of(process))
            self._used[pid] = used
            # What began since the last call has spent all of it since; what was only found since
            # then has no earlier value, and counts from now on.
            earlier = before.get(pid)
            if earlier is None:
                is_new = _birth_s(process) >= self._read_at_s - _BIRTH_ERROR_S
                earlier = (0.0, 0, 0) if is_new else used
            for index, (now, was) in enumerate(zip(used, earlier, strict=True)):
                spent[index] += max(0.0, (now or 0) - (was or 0))
        passed_ns = now_ns - self._read_ns
        is_first = not self._read_ns or passed_ns <= 0
        self._read_ns, self._read_at_s = now_ns, _now_s()
        has_bytes = not self._used or any(used[1] is not None for used in self._used.values())
        cpu_s, read, written = spent
        return {
            "process.count": len(self._used),
            "process.cpu": None if is_first else cpu_s * 1e9 / passed_ns * 100,
            "process.memory.rss": resident / MIB,
            "process.disk.read": read * 1e3 / passed_ns if has_bytes and not is_first else None,
            "process.disk.write": (
                written * 1e3 / passed_ns if has_bytes and not is_first else None
            ),
        }

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        if self._root is None or now_ns < self._next_look_ns:
            return
        found = [self._root] if self._is_root_watched else []
        try:
            found += self._root.children(recursive=True)
        except psutil.Error:
            found = []
        known = self._processes
        # A process with the same ID and the same start time is the same process.
        self._processes = {
            process.pid: known[process.pid] if known.get(process.pid) == process else process
            for process in found
            if process is self._root or process.pid != self._own_pid
        }
        taken_ns = time.monotonic_ns() - now_ns
        # A training starts its workers early.
        age_ns = now_ns - self._begun_ns
        young = [(pause, factor) for until, pause, factor in self._PAUSES_NS if age_ns < until]
        pause_ns, factor = young[0] if young else self._LATER
        self._next_look_ns = now_ns + max(pause_ns, factor * taken_ns)


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; a zombie has ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


def _bytes_of(process: psutil.Process) -> tuple[int | None, int | None]:
    """Bytes that a process read from and wrote to disks; None if unknown."""
    try:
        counters = process.io_counters()
    except (psutil.Error, AttributeError, OSError):
        return None, None
    return counters.read_bytes, counters.write_bytes


def _now_s() -> float:
    """Now, on the clock of `_birth_s`."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()


def _birth_s(process: psutil.Process) -> float:
    """Start of a process: on Linux, since boot, because the boot time itself is in seconds."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return float(process.create_time() - psutil.boot_time())
    return float(process.create_time())
