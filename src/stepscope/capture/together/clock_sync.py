"""How far this rank's clock is from rank 0's, and how sure that is.

Cristian's method over the process group's store: ask, let rank 0 answer with its time, and take
the middle of the round trip; half of the shortest round trip bounds the error. Clocks drift apart,
so that it is done again and again: rank 0 announces a round every minute, and answers whoever comes
in its first seconds. It runs in the listening threads, over connections of their own; nobody else
waits for it, and what it leaves in the store is removed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("stepscope")

_QUESTIONS = 5
_EVERY_S = 60.0
_SOON_S = 5.0
_FIRST_ROUNDS = 12
_COME_S = 3.0
"""How long rank 0 waits for other ranks to come, in all, after it has announced a round."""
_PATIENCE_S = 10.0
_LOOK_S = 0.002
_QUICK_LOOK_S = 0.0002
"""Short, as it counts into the bound of the error; but the training's thread needs its turns."""

ReadClock = Callable[[], int]
"""Gives epoch nanoseconds of the rank's own clock, which never jumps."""


@dataclass(frozen=True)
class ClockOffset:
    """Rank 0's clock less this rank's, at one moment.

    Attributes:
        offset_ns: What to add to this rank's epoch times to get rank 0's.
        error_ns: The offset is right to within this much.
        time_ns: When it was found, on this rank's clock.
    """

    offset_ns: int
    error_ns: int
    time_ns: int = 0


class ClockRounds:
    """Takes part in rounds of comparing clocks, as the one that tells the time or one that asks.

    Every rank comes once; after that one of each machine does, since its processes have one clock.

    Args:
        rank: This rank.
        local_rank: Its number on its machine.
        world_size: Number of ranks.
        read_clock: This rank's clock.
        found: Receives each offset that was found; never called on rank 0.
    """

    def __init__(
        self,
        rank: int,
        local_rank: int,
        world_size: int,
        read_clock: ReadClock,
        found: Callable[[ClockOffset], None],
    ) -> None:
        self._rank = rank
        self._local_rank = local_rank
        self._has_come = False
        self._all_who_came = 0
        self._world_size = world_size
        self._read_clock = read_clock
        self._found = found
        self._round = 0
        self._next_s = 0.0

    def look(self, store: Any, prefix: str, is_over: Callable[[], bool] = lambda: False) -> None:
        """Hold a round if one is due (rank 0), or join one that was announced (the others).

        Args:
            store: The store, over a connection that nobody else uses.
            prefix: Put before every key.
            is_over: Whether to stop waiting at once, since the capture ends.
        """
        if self._rank == 0:
            if time.monotonic() < self._next_s:
                return
            self._round += 1
            self._all_who_came += tell(
                store, prefix, self._round, self._world_size, self._read_clock, is_over
            )
            # At first some may not be there yet.
            is_waited_for = (
                self._all_who_came < self._world_size - 1 and self._round < _FIRST_ROUNDS
            )
            self._next_s = time.monotonic() + (_SOON_S if is_waited_for else _EVERY_S)
            return
        if self._has_come and self._local_rank:
            return
        key = f"{prefix}clock/round"
        announced = int(store.get(key)) if store.check([key]) else 0
        if announced <= self._round:
            return
        self._round = announced
        self._has_come = True
        offset = measure(store, prefix, announced, self._read_clock, is_over)
        if offset is not None:
            self._found(offset)
        else:
            self._has_come = False


def measure(
    store: Any,
    prefix: str,
    number: int,
    read_clock: ReadClock,
    is_over: Callable[[], bool] = lambda: False,
) -> ClockOffset | None:
    """Ask rank 0 for the time in a round; None if it does not answer."""
    best: ClockOffset | None = None
    try:
        turn = store.add(f"{prefix}clock/{number}/come", 1)
    except Exception as error:  # noqa: BLE001 - a store can fail in many ways
        log.debug("stepscope: no turn in a round of the clocks: %s", error)
        return None
    for question in range(_QUESTIONS):
        key = f"{prefix}clock/{number}/{turn}/{question}"
        asked_ns = read_clock()
        try:
            store.set(f"{key}/ask", b"?")
            _wait(store, f"{key}/answer", _PATIENCE_S, is_over, is_first=question == 0)
            answer_ns = int(store.get(f"{key}/answer"))
        except Exception as error:  # noqa: BLE001 - a store can fail in many ways
            log.debug("stepscope: rank 0 did not tell the time: %s", error)
            return best
        told_ns = read_clock()
        _remove(store, f"{key}/ask", f"{key}/answer")
        error_ns = (told_ns - asked_ns + 1) // 2
        offset_ns = answer_ns - (asked_ns + told_ns) // 2
        if best is None or error_ns < best.error_ns:
            best = ClockOffset(offset_ns, error_ns, told_ns)
    return best


def tell(
    store: Any,
    prefix: str,
    number: int,
    world_size: int,
    read_clock: ReadClock,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Rank 0: announce a round, and tell every rank that comes the time, one after the other.

    Returns:
        How many have come.
    """
    came = 0
    store.set(f"{prefix}clock/round", str(number).encode())
    until_s = time.monotonic() + _COME_S
    for turn in range(1, world_size):
        for question in range(_QUESTIONS):
            key = f"{prefix}clock/{number}/{turn}/{question}"
            patience_s = max(0.01, until_s - time.monotonic()) if question == 0 else 1.0
            try:
                _wait(store, f"{key}/ask", patience_s, is_over, is_first=question == 0)
                store.set(f"{key}/answer", str(read_clock()).encode())
            except Exception as error:  # noqa: BLE001 - one silent rank must not cost the others
                log.debug("stepscope: turn %d of round %d is not taken: %s", turn, number, error)
                break
        else:
            came += 1
            continue
        if question == 0:
            break  # turns are taken in order: nobody else has come
    store.set(f"{prefix}clock/round", b"0")
    _remove(store, f"{prefix}clock/{number - 1}/come")
    return came


def _wait(
    store: Any, key: str, patience_s: float, is_over: Callable[[], bool], *, is_first: bool
) -> None:
    """Wait for a key in many short calls.

    The store's own wait is one long call: a thread that is still in it when the interpreter ends
    takes the process down with it.

    Raises:
        TimeoutError: It did not come, or the capture ends.
    """
    until_s = time.monotonic() + patience_s
    while not store.check([key]):
        if is_over() or time.monotonic() > until_s:
            raise TimeoutError(key)
        time.sleep(_LOOK_S if is_first else _QUICK_LOOK_S)


def _remove(store: Any, *keys: str) -> None:
    """Let the store forget; not all of torch's can."""
    with contextlib.suppress(Exception):
        for key in keys:
            store.delete_key(key)
