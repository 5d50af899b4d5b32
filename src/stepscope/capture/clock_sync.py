"""The offset between this rank's clock and rank 0's, with an error bound.

Cristian's method over the process group's store: ask, let rank 0 answer with its time, and take the
middle of the round trip. Half of the shortest round trip bounds the error. Clocks drift apart, so
the measurement is repeated: rank 0 announces a round every minute and answers the ranks that join
in its first seconds. Everything runs in the listening threads, over separate connections; nobody
else waits for it, and keys are removed from the store afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from stepscope.run.manifest import ClockSample

log = logging.getLogger("stepscope")

_QUESTIONS = 5
_EVERY_S = 60.0
_SOON_S = 5.0
_FIRST_ROUNDS = 12
_COME_S = 3.0
"""How long rank 0 waits in total for other ranks to join a round."""
_PATIENCE_S = 10.0
_LOOK_S = 0.002
_QUICK_LOOK_S = 0.0002
"""Short, because it adds to the error bound; but the training thread needs its turns."""

ReadClock = Callable[[], int]
"""Returns epoch nanoseconds of the rank's own clock, which never jumps."""


class ClockRounds:
    """Takes part in rounds of clock comparison; rank 0 answers, the others ask.

    Every rank joins once. After that, one rank of each machine does, since its processes share a
    clock.
    """

    def __init__(
        self,
        rank: int,
        local_rank: int,
        world_size: int,
        read_clock: ReadClock,
        found: Callable[[ClockSample], None],
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
        """Hold a round if one is due (rank 0), or join one that was announced (the others)."""
        if self._rank == 0:
            if time.monotonic() < self._next_s:
                return
            self._round += 1
            self._all_who_came += tell(
                store, prefix, self._round, self._world_size, self._read_clock, is_over
            )
            # At first, some ranks may not be there yet.
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
        offset = measure(store, prefix, announced, self._read_clock, is_over)
        self._has_come = offset is not None
        if offset is not None:
            self._found(offset)


def measure(
    store: Any,
    prefix: str,
    number: int,
    read_clock: ReadClock,
    is_over: Callable[[], bool] = lambda: False,
) -> ClockSample | None:
    """Ask rank 0 for the time in a round; None if it does not answer."""
    best: ClockSample | None = None
    try:
        turn = store.add(f"{prefix}clock/{number}/come", 1)
    except Exception as error:  # noqa: BLE001 - a store can fail in many ways
        log.debug("stepscope: no turn in a clock round: %s", error)
        return None
    for question in range(_QUESTIONS):
        key = f"{prefix}clock/{number}/{turn}/{question}"
        asked_ns = read_clock()
        try:
            store.set(f"{key}/ask", b"?")
            _wait(store, f"{key}/answer", _PATIENCE_S, is_over, is_first=question == 0)
            answer_ns = int(store.get(f"{key}/answer"))
        except Exception as error:  # noqa: BLE001 - a store can fail in many ways
            log.debug("stepscope: rank 0 did not answer with its time: %s", error)
            return best
        told_ns = read_clock()
        _remove(store, f"{key}/ask", f"{key}/answer")
        error_ns = (told_ns - asked_ns + 1) // 2
        offset_ns = answer_ns - (asked_ns + told_ns) // 2
        if best is None or error_ns < best.error_ns:
            best = ClockSample(told_ns, offset_ns, error_ns)
    return best


def tell(
    store: Any,
    prefix: str,
    number: int,
    world_size: int,
    read_clock: ReadClock,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Announce a round, and answer every rank that joins; returns how many did. Only on rank 0."""
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
            break  # turns are taken in order: nobody else has joined
    store.set(f"{prefix}clock/round", b"0")
    _remove(store, f"{prefix}clock/{number - 1}/come")
    return came


def _wait(
    store: Any, key: str, patience_s: float, is_over: Callable[[], bool], *, is_first: bool
) -> None:
    """Wait for a key in many short calls.

    The store's own wait is one long call, and a thread that is still in it when the interpreter
    exits crashes the process.

    Raises:
        TimeoutError: The key did not appear, or the capture ends.
    """
    until_s = time.monotonic() + patience_s
    while not store.check([key]):
        if is_over() or time.monotonic() > until_s:
            raise TimeoutError(key)
        time.sleep(_LOOK_S if is_first else _QUICK_LOOK_S)


def _remove(store: Any, *keys: str) -> None:
    """Delete keys from the store, if it supports that."""
    with contextlib.suppress(Exception):
        for key in keys:
            store.delete_key(key)
