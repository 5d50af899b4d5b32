"""What is known of the loader: its workers, the CPUs that they have, and whether they use them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.run.cpus import allowed_cpus
from stepscope.run.manifest import LoaderRecord

_EVERY_NS = 1_000_000_000
_MOST_WORKERS = 64


class LoaderWatch:
    """Notes the training's DataLoader, and once a second how busy its workers are.

    Args:
        note: Is given what is known, whenever it changes.
    """

    def __init__(self, note: Callable[[LoaderRecord], None]) -> None:
        self._note = note
        self._seen = 0
        self._record: LoaderRecord | None = None
        self._workers: tuple[int, ...] = ()
        self._last_ns = 0
        self._needed_ns: dict[int, int] = {}
        self._used_ns = 0
        self._watched_ns = 0

    def see(self, *parts: Any) -> None:
        """Take notice of a loader and its iterator, or of either; called for every batch.

        Args:
            parts: The loader, its iterator, or both; anything may be passed.
        """
        key = hash(tuple(map(id, parts)))
        if key != self._seen:
            self._seen = key
            self._begin(parts)
        if self._workers and time.monotonic_ns() - self._last_ns >= _EVERY_NS:
            self._sample()

    def _begin(self, parts: Sequence[Any]) -> None:
        workers = _first(parts, "num_workers", "_num_workers")
        if workers is None:
            return
        record = LoaderRecord(
            workers=workers,
            prefetch_factor=_first(parts, "prefetch_factor", "_prefetch_factor"),
            cpus=usable_cpus(),
            local_ranks=_local_ranks(),
        )
        if self._record is None or self._record.workers != workers:
            self._record, self._used_ns, self._watched_ns = record, 0, 0
            self._note(record)
        processes = next((p for part in parts if (p := getattr(part, "_workers", None))), ())
        pids = (getattr(process, "pid", None) for process in processes[:_MOST_WORKERS])
        self._workers = tuple(pid for pid in pids if isinstance(pid, int))
        self._needed_ns = _needed_ns_of(self._workers)
        self._last_ns = time.monotonic_ns()

    def _sample(self) -> None:
        now_ns = time.monotonic_ns()
        needed = _needed_ns_of(self._workers)
        both = needed.keys() & self._needed_ns.keys()
        self._used_ns += sum(needed[pid] - self._needed_ns[pid] for pid in both)
        self._watched_ns += len(both) * (now_ns - self._last_ns)
        self._needed_ns, self._last_ns = needed, now_ns
        if self._record is not None and self._watched_ns:
            busy = min(1.0, self._used_ns / self._watched_ns)
            self._record = dataclasses.replace(self._record, worker_cpu_share=round(busy, 3))
            self._note(self._record)


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, less what a control group takes away."""
    cpus = allowed_cpus()
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cpus = min(cpus, max(1, math.ceil(int(quota) / int(period))))
    return cpus


def _local_ranks() -> int:
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError:
        return 1


def _first(parts: Sequence[Any], *names: str) -> int | None:
    """The first attribute of that name that is a whole number."""
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _needed_ns_of(workers: Sequence[int]) -> dict[int, int]:
    """Time that each process has run on a CPU or waited for one; without those that do not say."""
    found = {}
    for pid in workers:
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran, queued = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[:2]
            found[pid] = int(ran) + int(queued)
    return found
