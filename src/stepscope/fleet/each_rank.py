"""Reads the ranks of a run in several processes of this machine, as many as memory allows.

A rank is read by `advice.rank.diagnose_rank`, wherever that happens, and only its summary returns.
For few ranks with small traces, starting processes takes longer than it saves, so this process does
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.advice.job.reading import Answer, EachRank, ReadsRanks, Task, one_by_one
from stepscope.advice.rank.opened_traces import KEPT_BYTES, OpenedTraces
from stepscope.fleet.engines.outcome import ranks_done
from stepscope.opening.reader import Run
from stepscope.system import allowed_cpus

if TYPE_CHECKING:
    from stepscope.fleet.engines.local import LocalWorkers

_WORTH_PROCESSES_BYTES = 20_000_000
"""From so many bytes of traces on, starting processes takes less time than it saves."""
_WORTH_PROCESSES_RANKS = 32
"""From so many ranks on, likewise, however small their traces are."""
_PEAK_PER_BYTE = 3
"""Bytes of memory that judging takes at most for each byte of a trace; 1.4 were measured."""
_UNPACKED = 15
"""Bytes of a trace for each byte of its compressed file, at most."""
_COMPRESSED = (".gz", ".zst")
_UNKNOWN_BYTES = _WORTH_PROCESSES_BYTES // 4
"""Taken for the size of what is on no file system here: processes wait for several at once."""


def reader_for(run: Run) -> EachRank:
    """What reads the ranks of a run: this process, or as many as there are CPUs and memory for."""
    windows = [
        [one.trace_path for one in rank.windows if one.trace_path is not None] for rank in run.ranks
    ]
    workers = workers_for([paths[-1] for paths in windows if paths])
    return one_by_one if workers < 2 else InProcesses(workers)


def workers_for(traces: Sequence[Path]) -> int:
    """How many processes should read traces: as many as there are CPUs and memory for.

    One if starting more takes longer than they save.
    """
    sizes = [_unpacked_bytes(path) for path in traces]
    is_little = sum(sizes) < _WORTH_PROCESSES_BYTES and len(sizes) < _WORTH_PROCESSES_RANKS
    if is_little or len(sizes) < 2:
        return 1
    import psutil

    available = psutil.virtual_memory().available - KEPT_BYTES
    fitting = int(available // (_PEAK_PER_BYTE * max(1, *sizes)))
    return max(1, min(allowed_cpus(), len(sizes), fitting))


def _unpacked_bytes(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:  # at a URL
        return _UNKNOWN_BYTES
    return size * (_UNPACKED if path.suffix in _COMPRESSED else 1)


@dataclass(frozen=True)
class InProcesses:
    """Reads the ranks of a run in several processes.

    A process that was asked about a rank is asked about it again, because it may have kept the
    trace.
    """

    workers: int

    @contextmanager
    def __call__(self) -> Iterator[ReadsRanks]:
        """See `advice.job.reading.EachRank`. The processes end with the context."""
        from stepscope.fleet.engines.local import LocalWorkers

        function = partial(_read, OpenedTraces(KEPT_BYTES // self.workers))
        with LocalWorkers(function, self.workers, _rank_of) as workers:
            yield partial(_answers, workers)


def _answers(workers: LocalWorkers, tasks: Sequence[Task[Answer]]) -> list[Answer]:
    """See `advice.job.reading.ReadsRanks`.

    What fails in another process is tried here again, so that its error is the one of this process.
    """
    with ranks_done() as progress:
        found = workers.run(tasks, progress=progress).values
    return [
        found[number] if number in found else task.read(OpenedTraces(0))
        for number, task in enumerate(tasks)
    ]


def _read(opened: OpenedTraces, task: Task[Any]) -> Any:
    """Reads a rank; `opened` keeps the trace for the next task."""
    return task.read(opened)


def _rank_of(task: Task[Any]) -> int:
    return task.rank.rank
