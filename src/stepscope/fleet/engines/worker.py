"""A worker process of this machine: tasks on its standard input, answers on its standard output.

A message is its length in eight bytes and a pickle. Only the process that started the worker is at
the other end. The worker ends when its input does, so it never outlives that process by more than
one task. What a task prints goes to standard error.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
from itertools import count
from typing import Any, BinaryIO

from stepscope.errors import StepscopeError
from stepscope.trace.arrays.memory_reuse import return_freed_memory

HEADER = struct.Struct("<Q")

DONE, REFUSED, BROKEN = "done", "refused", "broken"
"""Kinds of answers: a value; an input that cannot be used, which trying again will not change; any
other error."""
_FREED_EACH = 8
"""Freed memory is returned after the first of so many tasks: in 200 ranks, fragments of it add up
to 3 MB."""


def send(stream: BinaryIO, message: Any) -> None:
    """Writes one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message.

    Raises:
        EOFError: The other end is gone.
    """
    (length,) = HEADER.unpack(_exactly(stream, HEADER.size))
    return pickle.loads(_exactly(stream, length))  # noqa: S301 - from our own child or parent


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = stream.read(length - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


class _NoTerminal(io.TextIOWrapper):
    """A stream on which nothing is drawn, even if it leads to a terminal."""

    def isatty(self) -> bool:
        return False


def work() -> None:
    """Does tasks until there are no more."""
    tasks = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Several processes would draw their progress over one another.
    sys.stderr = _NoTerminal(sys.stderr.buffer, line_buffering=True)
    try:
        function = receive(tasks)
        for number in count(1):
            send(answers, answer(function, receive(tasks)))
            if number % _FREED_EACH == 1:
                return_freed_memory()
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return


def answer(function: Any, item: Any) -> tuple[str, Any]:
    """What a function makes of an item: a kind of answer, and the value or the reason."""
    try:
        return DONE, function(item)
    except StepscopeError as error:
        return REFUSED, str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this item's
        return BROKEN, f"{type(error).__name__}: {error}"
