"""Reads the ranks of a run in several processes of this machine, as many as memory allows.

A rank is read by `advice.rank_judging`, wherever that happens, and only its summary comes back. For
few ranks with small traces, starting processes takes longer than it saves, so this process does it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from stepscope.advice.diagnosis import EachRank, Item, Value, in_turn
from stepscope.fleet.engines.progress_line import ranks_done
from stepscope.run.cpus import allowed_cpus
from stepscope.run.reader import RankRun, Run

if TYPE_CHECKING:
    from stepscope.fleet.engines.outcome import Engine

_WORTH_PROCESSES_BYTES = 20_000_000
"""From so many bytes of traces on, starting processes takes less time than it saves."""
_WORTH_PROCESSES_RANKS = 32
"""From so many ranks on, likewise, however small their traces are."""
_PEAK_PER_BYTE = 3
"""Bytes of memory that judging takes at most for each byte of a trace; 1.4 were measured."""
_UNPACKED = 15
"""Bytes of a trace for each byte of its compressed file, at most."""
_COMPRESSED = (".gz", ".zst")


def reader_for(run: Run) -> EachRank:
    """What reads the ranks of a run: this process, or as many as there are CPUs and memory for."""
    sizes = [size for rank in run.ranks if (size := _trace_bytes(rank))]
    is_little = sum(sizes) < _WORTH_PROCESSES_BYTES and len(sizes) < _WORTH_PROCESSES_RANKS
    if is_little or len(sizes) < 2:
        return in_turn
    import psutil

    from stepscope.fleet.engines.local import LocalEngine

    fitting = psutil.virtual_memory().available // (_PEAK_PER_BYTE * max(sizes))
    workers = min(allowed_cpus(), len(sizes), fitting)
    return in_turn if workers < 2 else EachByEngine(LocalEngine(workers))


def _trace_bytes(rank: RankRun) -> int:
    """Size of the rank's last trace, unpacked; 0 if there is none."""
    paths = [window.trace_path for window in rank.windows if window.trace_path is not None]
    try:
        size = paths[-1].stat().st_size if paths else 0
    except OSError:
        return 0
    return size * (_UNPACKED if paths and paths[-1].suffix in _COMPRESSED else 1)


@dataclass(frozen=True)
class EachByEngine:
    """Applies a function to each rank by an engine.

    Attributes:
        engine: What runs it.
    """

    engine: Engine

    def __call__(self, function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
        """See `advice.diagnosis.EachRank`.

        What fails in another process is tried here again, so that its error is the one of this
        process.
        """
        numbered = list(enumerate(items))
        with ranks_done() as progress:
            outcome = self.engine.run(
                _Numbered(function), numbered, operator.add, progress=progress
            )
        found = dict(outcome.value or ())
        return [
            found[number] if number in found else function(item)
            for number, item in enumerate(items)
        ]


@dataclass(frozen=True)
class _Numbered(Generic[Item, Value]):
    """A function whose values say which item they are of."""

    function: Callable[[Item], Value]

    def __call__(self, numbered: tuple[int, Item]) -> tuple[tuple[int, Value], ...]:
        number, item = numbered
        return ((number, self.function(item)),)
