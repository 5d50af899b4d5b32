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

from stepscope.capture.ranks import RankIdentity
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
        self, identity: RankIdentity, read_clock: ReadClock, found: Callable[[ClockSample], None]
    ) -> None:
        self._identity = identity
        self._has_come = False
        self._joined_ranks = 0
        self._read_clock = read_clock
        self._found = found
        self._round = 0
        self._next_s = 0.0

    def look(self, store: Any, prefix: str, is_over: Callable[[], bool] = lambda: False) -> None:
        """Hold a round if one is due (rank 0), or join one that was announced (the others)."""
        prefix = f"{prefix}clock/"
        if self._identity.rank == 0:
            if time.monotonic() < self._next_s:
                return
            self._round += 1
            self._joined_ranks += self._announce(store, prefix, is_over)
            # At first, some ranks may not be there yet.
            others = self._identity.world_size - 1
            is_waited_for = self._joined_ranks < others and self._round < _FIRST_ROUNDS
            self._next_s = time.monotonic() + (_SOON_S if is_waited_for else _EVERY_S)
            return
        if self._has_come and self._identity.local_rank:
            return
        key = f"{prefix}round"
        announced = int(store.get(key)) if store.check([key]) else 0
        if announced <= self._round:
            return
        self._round = announced
        samples = self._measured(store, prefix, is_over)
        self._has_come = bool(samples)
        if samples:
            self._found(min(samples, key=lambda sample: sample.error_ns))

    def _measured(self, store: Any, prefix: str, is_over: Callable[[], bool]) -> list[ClockSample]:
        """Ask rank 0 for the time in this round, as often as it answers."""
        samples: list[ClockSample] = []
        try:
            turn = store.add(f"{prefix}{self._round}/come", 1)
            for question in range(_QUESTIONS):
                key = f"{prefix}{self._round}/{turn}/{question}"
                asked_ns = self._read_clock()
                store.set(f"{key}/ask", b"?")
                _wait(store, f"{key}/answer", _PATIENCE_S, is_over, is_first=question == 0)
                answer_ns = int(store.get(f"{key}/answer"))
                announced_ns = self._read_clock()
                _remove(store, f"{key}/ask", f"{key}/answer")
                offset_ns = answer_ns - (asked_ns + announced_ns) // 2
                samples.append(
                    ClockSample(announced_ns, offset_ns, (announced_ns - asked_ns + 1) // 2)
                )
        except Exception as error:  # noqa: BLE001 - a store can fail in many ways
            log.debug("stepscope: rank 0 did not answer with its time: %s", error)
        return samples

    def _announce(self, store: Any, prefix: str, is_over: Callable[[], bool]) -> int:
        """Announce a round, and answer every rank that joins; returns how many did."""
        came = 0
        store.set(f"{prefix}round", str(self._round).encode())
        until_s = time.monotonic() + _COME_S
        for turn in range(1, self._identity.world_size):
            for question in range(_QUESTIONS):
                key = f"{prefix}{self._round}/{turn}/{question}"
                patience_s = max(0.01, until_s - time.monotonic()) if question == 0 else 1.0
                try:
                    _wait(store, f"{key}/ask", patience_s, is_over, is_first=question == 0)
                    store.set(f"{key}/answer", str(self._read_clock()).encode())
                except Exception as error:  # noqa: BLE001 - one silent rank must not cost the others
                    log.debug("stepscope: turn %d of a round is not taken: %s", turn, error)
                    break
            else:
                came += 1
                continue
            if question == 0:
                break  # turns are taken in order: nobody else has joined
        store.set(f"{prefix}round", b"0")
        _remove(store, f"{prefix}{self._round - 1}/come")
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
