"""Lets the two runs of a round train in turns of a quarter of a second, both alive all the while.

What a machine does to a program changes from second to second: neighbours of a virtual machine, the
CPU's clock, the memory bus. Runs of a few seconds, one after the other, meet different moments.
Runs that take turns meet the same ones, so that their ratio shows what the programs differ by.

Both load and warm up by themselves, the second while the first waits. Then the one whose turn has
lasted long enough waits at its next step boundary (`inside.companion`) until the other has had one.
A run that has ended, or has lost this process, leaves the other alone, which continues without
turns.
"""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_GO = b"g"


@dataclass(frozen=True)
class InTurns:
    """What a run needs for taking turns with another.

    Attributes:
        address: The path of the socket at which it asks for its turn.
        meanwhile: To be called again and again while it runs.
    """

    address: str
    meanwhile: Callable[[], None]


class Alternation:
    """Gives turns to two processes that ask for them.

    Attributes:
        has_begun: Whether the first waits for its turn, so that the second should start.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._waiting: deque[socket.socket] = deque()
        self._all: set[socket.socket] = set()
        self.has_begun = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # Closed to wake the thread, and end it.
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let whoever still trains go on without turns."""
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.ExitStack() as stack:
            for one in (self._selector, self._woken, self._listener):
                stack.callback(one.close)
            while self._hear():
                self._give()
            for one in self._all:
                one.close()

    def _hear(self) -> bool:
        """Wait for what the processes say; False if there are to be no more turns."""
        for key, _ in self._selector.select():
            source = key.fileobj
            assert isinstance(source, socket.socket)
            if source is self._woken:
                return False
            if source is self._listener:
                new, _ = source.accept()
                self._all.add(new)
                self._selector.register(new, selectors.EVENT_READ)
                continue
            message = b""
            with contextlib.suppress(OSError):
                message = source.recv(1)
            if message:
                self._waiting.append(source)
                self.has_begun = True
                continue
            return False  # one has ended
        return True

    def _give(self) -> None:
        """Give a turn if both have come, and none has it."""
        if len(self._waiting) == 2:
            with contextlib.suppress(OSError):
                self._waiting.popleft().sendall(_GO)


@contextlib.contextmanager
def alternating() -> Iterator[tuple[Alternation, str]]:
    """An alternation and the path of its socket, for the time of a round."""
    # Not in the scratch folder: the path of a socket has a hundred bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = str(folder / "turns")
        listener.bind(address)
        listener.listen(2)
        alternation = Alternation(listener)
        try:
            yield alternation, address
        finally:
            alternation.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
