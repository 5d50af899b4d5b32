"""Takes samples from all sources, one row per GPU, at even intervals."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.monitor.amd import AmdSource
from stepscope.monitor.columns import DEFAULT_COLUMNS, Column, Value, is_of_host
from stepscope.monitor.gpus import GpuSource
from stepscope.monitor.host import HostSource
from stepscope.monitor.notes import Notes
from stepscope.monitor.nvidia import NvidiaSource
from stepscope.run.metrics import GpuDescription

_RATES = ("gpm.", "nvlink.", "pcie.tx", "pcie.rx", "host.cpu", "disk.", "network.", "infiniband.",
          "process.cpu", "cgroup.cpu")  # fmt: skip
_PRIMING_S = 0.2


@dataclass(frozen=True)
class Watched:
    """What a sampler observes.

    Attributes:
        is_root: Whether the process itself is watched, too.
        ids: Indices, UUIDs or bus IDs of GPUs; "all" for all; empty for the visible ones.
        waits_for_gpu: If several GPUs are visible, show none until `use_gpu` names one.
    """

    pid: int
    is_root: bool = True
    ids: tuple[str, ...] = ()
    waits_for_gpu: bool = False


class Sampler:
    """Reads columns, one row per GPU; one row on a machine without GPUs."""

    def __init__(self, columns: Sequence[Column], watched: Watched, notes: Notes) -> None:
        self.columns = tuple(columns)
        self.notes = notes
        # In the file's order, which is also the order of the notes.
        names = dict.fromkeys(column.name for column in columns)
        self._wanted_of_host = dict.fromkeys(name for name in names if is_of_host(name))
        self._wanted_of_gpus = dict.fromkeys(
            name for name in names if not is_of_host(name) and name not in {"timestamp", "time_ns"}
        )
        self._is_waiting = False
        self._host = HostSource(watched.pid, notes, is_root_watched=watched.is_root)
        self._gpus: GpuSource | None = None
        if self._wanted_of_gpus:
            given = notes, os.environ, watched.ids
            self._gpus = NvidiaSource.open(*given) or AmdSource.open(*given)
            if self._gpus is None and watched.ids and watched.ids != ("all",):
                raise UsageError(
                    f"--id: {','.join(watched.ids)}: no GPU of this machine can be read: "
                    + "; ".join(note.why for note in notes.entries)
                )
        self._is_waiting = watched.waits_for_gpu and len(self.gpus) > 1

    @property
    def gpus(self) -> tuple[GpuDescription, ...]:
        """The sampled GPUs, in the order of their rows."""
        return () if self._is_waiting or self._gpus is None else tuple(self._gpus.gpus)

    def use_gpu(self, uuid: str) -> None:
        """Sample only this GPU from now on; all of them if it is empty or not among them."""
        self._is_waiting = False
        if uuid and self._gpus is not None and not self._gpus.use(uuid):
            self.notes.add(f"GPU {uuid}", "not among the visible GPUs: all of those are shown")

    def read(self) -> list[dict[str, Value]]:
        """A sample: the values of each row by column."""
        now_ns = time.time_ns()
        common: dict[str, Value] = {"timestamp": timestamp(now_ns), "time_ns": now_ns}
        common.update(self._host.read(self._wanted_of_host))
        rows: list[Mapping[str, Value]] = []
        if not self._is_waiting and self._gpus is not None:
            needs_pids = "process.gpu.memory" in self._wanted_of_gpus
            rows += self._gpus.read(self._wanted_of_gpus, self._host.pids() if needs_pids else ())
        return [{**row, **common} for row in rows] or [common]

    def read_once(self) -> list[dict[str, Value]]:
        """A single sample; means since the last sample cover a fifth of a second."""
        if any(column.name.startswith(_RATES) for column in self.columns):
            self.read()
            time.sleep(_PRIMING_S)
        return self.read()

    def close(self) -> None:
        """Release the drivers."""
        gpus, self._gpus = self._gpus, None
        if gpus is not None:
            gpus.close()


class Ticks:
    """Even intervals in time; missed moments are skipped, not made up for."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.interval_s = interval_s
        self._next_s = clock()

    def wait_s(self) -> float:
        """Seconds until the next moment; 0 if it has passed."""
        return max(0.0, self._next_s - self._clock())

    def advance(self) -> None:
        """The moment has passed: set the next one."""
        late_s = max(0.0, self._clock() - self._next_s)
        self._next_s += self.interval_s * (1 + int(late_s / self.interval_s))

    def slow_down(self) -> None:
        """Double the interval from now on."""
        self.interval_s *= 2


def timestamp(time_ns: int) -> str:
    """Local time as nvidia-smi writes it: 2026/03/01 14:05:09.123."""
    moment = datetime.datetime.fromtimestamp(time_ns // 1_000_000_000).astimezone()
    return f"{moment:%Y/%m/%d %H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}"


def local_samples(ids: tuple[str, ...] = ()) -> Generator[list[dict[str, str]], None, None]:
    """Samples of this machine's GPUs with these IDs, or the visible ones, as they are asked for.

    Yields:
        A row per GPU, as texts by column.
    """
    sampler = Sampler(DEFAULT_COLUMNS, Watched(os.getpid(), is_root=False, ids=ids), Notes())
    with contextlib.closing(sampler):
        while True:
            yield [
                {one.name: one.show(row.get(one.name), with_unit=True) for one in DEFAULT_COLUMNS}
                for row in sampler.read()
            ]
