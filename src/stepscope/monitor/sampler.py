"""Taking samples: which sources there are, one row for each GPU, at even distances."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.monitor.amd import AmdSource
from stepscope.monitor.columns import Column, Value, is_of_host
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
    """What a sampler looks at.

    Attributes:
        pid: The process whose tree is watched.
        is_root: Whether that process counts itself, or only what it started.
        ids: Numbers, UUIDs or bus ids of GPUs; "all" for all; empty for those that are visible.
        waits_for_gpu: Where several GPUs are visible, show none until `use_gpu` names one.
    """

    pid: int
    is_root: bool = True
    ids: tuple[str, ...] = ()
    waits_for_gpu: bool = False


class Sampler:
    """Reads the wanted columns, one row for each GPU; one row on a machine without.

    Args:
        columns: The columns.
        watched: What to look at.
        notes: Where to say what could not be read.
        environment: Variables that say which GPUs are visible; the process's by default.

    Raises:
        UsageError: A GPU that was asked for is not there.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        watched: Watched,
        notes: Notes,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = os.environ if environment is None else environment
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
        self._gpus: list[GpuSource] = []
        if self._wanted_of_gpus:
            opened: GpuSource | None
            opened = NvidiaSource.open(notes, variables, watched.ids)
            if opened is None:
                opened = AmdSource.open(notes, variables, watched.ids)
            if opened is not None:
                self._gpus.append(opened)
            elif watched.ids and watched.ids != ("all",):
                raise UsageError(
                    f"--id: {','.join(watched.ids)}: no GPU of this machine can be read: "
                    + "; ".join(note.why for note in notes.entries)
                )
        self._is_waiting = watched.waits_for_gpu and len(self.gpus) > 1

    @property
    def gpus(self) -> tuple[GpuDescription, ...]:
        """The GPUs that are sampled, in the order of their rows."""
        if self._is_waiting:
            return ()
        return tuple(gpu for source in self._gpus for gpu in source.gpus)

    def use_gpu(self, uuid: str) -> None:
        """Sample only this GPU from now on; all of them where it is none of them, or empty."""
        self._is_waiting = False
        if uuid and not any(source.use(uuid) for source in self._gpus) and self._gpus:
            self.notes.add(f"GPU {uuid}", "it is none that is visible here: all of those are shown")

    def read(self) -> list[dict[str, Value]]:
        """A sample: the values of each row by column."""
        now_ns = time.time_ns()
        common: dict[str, Value] = {"timestamp": timestamp(now_ns), "time_ns": now_ns}
        common.update(self._host.read(self._wanted_of_host))
        rows: list[Mapping[str, Value]] = []
        if not self._is_waiting:
            needs_pids = "process.gpu.memory" in self._wanted_of_gpus
            pids = self._host.pids() if needs_pids and self._gpus else ()
            for source in self._gpus:
                rows += source.read(self._wanted_of_gpus, pids)
        return [{**row, **common} for row in rows] or [common]

    def read_once(self) -> list[dict[str, Value]]:
        """One sample for itself: what is a mean since the last one covers a fifth of a second."""
        if any(column.name.startswith(_RATES) for column in self.columns):
            self.read()
            time.sleep(_PRIMING_S)
        return self.read()

    def close(self) -> None:
        """Let go of the drivers."""
        for source in self._gpus:
            source.close()
        self._gpus = []


class Ticks:
    """Even distances in time; moments that were missed are left out, not made up for."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._next_s = clock()

    def wait_s(self) -> float:
        """Seconds until the next moment; 0 if it has come."""
        return max(0.0, self._next_s - self._clock())

    def advance(self) -> None:
        """The moment has come: set the next one."""
        late_s = max(0.0, self._clock() - self._next_s)
        self._next_s += self._interval_s * (1 + int(late_s / self._interval_s))

    def slow_down(self) -> None:
        """Twice the distance from now on."""
        self._interval_s *= 2

    @property
    def interval_s(self) -> float:
        """The distance, in seconds."""
        return self._interval_s


def timestamp(time_ns: int) -> str:
    """Local time as nvidia-smi writes it: 2026/03/01 14:05:09.123."""
    moment = datetime.datetime.fromtimestamp(time_ns // 1_000_000_000).astimezone()
    return f"{moment:%Y/%m/%d %H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}"
