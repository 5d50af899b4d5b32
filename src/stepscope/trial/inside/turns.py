"""Trains in turns with the other run of a round; see `trial.alternation`."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time

TURN_S = 0.25
"""How long a turn lasts at least; it ends at a step boundary."""
_ASK = b"a"


class Turns:
    """The turns of this process.

    Args:
        address: The path of the socket at which it asks for them.
    """

    def __init__(self, address: str) -> None:
        self._server: socket.socket | None = None
        self._ends = 0.0
        with contextlib.suppress(OSError):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(address)
            self._server = server
        # The end of this process is told by the end of its connection, which a fork would keep.
        os.register_at_fork(after_in_child=self._leave)

    def wait(self) -> bool:
        """At a step boundary: wait if the turn is over; whether it was.

        The workers of loaders stop meanwhile: what they prepare in the other's turn would disturb
        it, and be free in the next one of this process.
        """
        if self._server is None or time.monotonic() < self._ends:
            return False
        workers = [one.pid for one in multiprocessing.active_children() if one.pid is not None]
        _signal(workers, signal.SIGSTOP)
        try:
            self._server.sendall(_ASK)
            may_go = bool(self._server.recv(1))
        except OSError:
            may_go = False
        finally:
            _signal(workers, signal.SIGCONT)
        if not may_go:
            # The other has ended, or whoever gives turns: go on without.
            self._leave()
        self._ends = time.monotonic() + TURN_S
        return True

    def _leave(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)
