"""The process that makes a window's files: fork or start it, wait for it, end it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.artifacts.job import FinishJob
from stepscope.run.helper_processes import command_of, environment_of

log = logging.getLogger("stepscope")

_SAVE_FAILED = 91
_MESSAGE_BYTES = 2000


@dataclass
class FinishingProcess:
    """A process that makes a window's files.

    Attributes:
        process_id: Its process ID.
        child: The process, if it was started and not forked.
        exit_code: Its exit code; None while it runs.
    """

    process_id: int
    child: subprocess.Popen[bytes] | None = None
    exit_code: int | None = field(default=None, init=False)

    def has_ended(self) -> bool:
        """Whether the process has ended. Reaps it if so; never waits."""
        if self.exit_code is not None:
            return True
        if self.child is not None:
            self.exit_code = self.child.poll()
            return self.exit_code is not None
        try:
            process_id, status = os.waitpid(self.process_id, os.WNOHANG)
        except ChildProcessError:  # another handler has already reaped it
            self.exit_code = 0
            return True
        if process_id:
            self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def kill(self) -> None:
        """Kill the process and reap it."""
        if self.has_ended():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)
        if self.child is not None:
            self.exit_code = self.child.wait()
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process_id, 0)
        self.exit_code = -signal.SIGKILL

    def leave(self) -> None:
        """Leave the process running on its own."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it keeps running on purpose
            self.child = None


def fork(profiler: Any, job: FinishJob, scratch: Path) -> FinishingProcess | None:
    """Fork a child that writes the raw trace and then becomes the finishing process.

    Returns:
        The child, or None if the system allows no more processes.
    """
    results = profiler.profiler.kineto_results
    arguments = _command(job)
    environment = environment_of(job.search_path)
    descriptor = os.open(scratch / "messages.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with warnings.catch_warnings():
        # Python warns about forks in processes with threads; this child only handles files.
        warnings.simplefilter("ignore")
        try:
            process_id = os.fork()
        except OSError as error:
            log.warning("stepscope: cannot fork (%s): writing inline", error)
            process_id = -1
    if process_id:
        os.close(descriptor)
        return FinishingProcess(process_id) if process_id > 0 else None
    # The child from here on: only file work, and never a return into the caller's frames.
    try:
        os.setsid()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        results.save(job.raw)
        os.execve(arguments[0], arguments, environment)  # noqa: S606 - a list that we build
    finally:
        os._exit(_SAVE_FAILED)


def start(job: FinishJob, scratch: Path) -> FinishingProcess:
    """Start the finishing process for a raw trace that already exists."""
    with (scratch / "messages.txt").open("ab") as messages:
        child = subprocess.Popen(
            _command(job),
            env=environment_of(job.search_path),
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
        )
    return FinishingProcess(child.pid, child)


def _command(job: FinishJob) -> list[str]:
    return command_of("stepscope.artifacts", job.encode())


def last_words(scratch: Path) -> str:
    """The last line that the process wrote, if any."""
    try:
        data = (scratch / "messages.txt").read_bytes()[-_MESSAGE_BYTES:]
    except OSError:
        return ""
    lines = data.decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
