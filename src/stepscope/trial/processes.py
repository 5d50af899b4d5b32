"""Runs a command in a session of its own, and ends everything that it started.

Descendants carry a mark in their environment, so that those are found that left the session, as
torchrun's workers do, or that were orphaned.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from stepscope.errors import UsageError

MARK = "STEPSCOPE_TRIAL"
_POLL_S = 0.05
_GRACE_S = 3.0
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        exit_code: Its exit code, negative for a signal; None if it had to be ended.
        wall_s: How long it ran.
    """

    exit_code: int | None
    wall_s: float


@dataclass(frozen=True)
class Limits:
    """When a command is ended.

    Attributes:
        most_s: After so many seconds.
        is_done: Whether it has done what it was run for.
        linger_s: How long it may still run once it has.
    """

    most_s: float
    is_done: Callable[[], bool]
    linger_s: float = 15.0


def run_apart(
    command: Sequence[str], environment: Mapping[str, str], mark: str, log: Path, limits: Limits
) -> Ended:
    """Run a command in a session of its own; nothing that it started is left when this returns.

    Args:
        command: Program and arguments.
        environment: Its environment.
        mark: A word that no other command of this machine has; see `MARK`.
        log: File for its standard output and standard error.
        limits: When it is ended.

    Raises:
        UsageError: It cannot be started.
        KeyboardInterrupt: This process was interrupted, or told to end.
    """
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        try:
            child = subprocess.Popen(
                list(command),
                env={**environment, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"{command[0]}: cannot be started: {error.strerror or error}"
            ) from None
        try:
            with _interruptible():
                code = _wait(child, limits, started)
        finally:
            _end_all(child, mark)
    return Ended(code, time.monotonic() - started)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While the block runs, signals that would end this process at once interrupt it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(child: subprocess.Popen[bytes], limits: Limits, started: float) -> int | None:
    """Wait for a command; None if it ran into its limits."""
    done_at: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL_S)
        now = time.monotonic()
        if done_at is None and limits.is_done():
            done_at = now
        if now - started > limits.most_s:
            return None
        if done_at is not None and now - done_at > limits.linger_s:
            return 0


def _end_all(child: subprocess.Popen[bytes], mark: str) -> None:
    """End a command and its descendants: politely, then at once."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = list(_marked(mark))
        if child.poll() is None:
            left.append(psutil.Process(child.pid))
        if not left:
            break
        for process in left:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.send_signal(number)
        psutil.wait_procs(left, timeout=_GRACE_S)
    child.wait()


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Processes of this user that carry a mark, other than this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process
