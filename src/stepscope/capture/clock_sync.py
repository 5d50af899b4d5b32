"""How far this rank's clock is from rank 0's, and how sure that is.

Cristian's method over the process group's store: ask, let rank 0 answer with its time, and take
the middle of the round trip; half of the shortest round trip bounds the error. It runs in the
listening thread, over a connection of its own, and gives up after a few seconds.
"""

from __future__ import annotations

import datetime
import logging
import time
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("stepscope")

_ROUNDS = 5
_PATIENCE = datetime.timedelta(seconds=10)


@dataclass(frozen=True)
class ClockOffset:
    """Rank 0's clock less this rank's.

    Attributes:
        offset_ns: What to add to this rank's epoch times to get rank 0's.
        error_ns: The offset is right to within this much.
    """

    offset_ns: int
    error_ns: int


def measure(store: Any, prefix: str, rank: int) -> ClockOffset | None:
    """Ask rank 0 for the time; None if it does not answer."""
    best: ClockOffset | None = None
    for number in range(_ROUNDS):
        asked_ns = time.time_ns()
        try:
            store.set(f"{prefix}clock/ask/{rank}/{number}", b"?")
            answer_key = f"{prefix}clock/answer/{rank}/{number}"
            store.wait([answer_key], _PATIENCE)
            answer_ns = int(store.get(answer_key))
        except Exception as error:  # noqa: BLE001 - a store can fail in many ways
            log.debug("stepscope: rank 0 did not tell the time: %s", error)
            return best
        told_ns = time.time_ns()
        error_ns = (told_ns - asked_ns) // 2
        offset_ns = answer_ns - (asked_ns + told_ns) // 2
        if best is None or error_ns < best.error_ns:
            best = ClockOffset(offset_ns, error_ns)
    return best


def serve(store: Any, prefix: str, world_size: int) -> None:
    """Rank 0: tell every other rank the time, one after the other."""
    for rank in range(1, world_size):
        try:
            for number in range(_ROUNDS):
                store.wait([f"{prefix}clock/ask/{rank}/{number}"], _PATIENCE)
                store.set(f"{prefix}clock/answer/{rank}/{number}", str(time.time_ns()))
        except Exception as error:  # noqa: BLE001, PERF203 - one silent rank must not cost the others
            log.debug("stepscope: rank %d did not ask for the time: %s", rank, error)
            return
