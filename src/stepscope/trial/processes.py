"""Runs a command in a session of its own, and ends everything that it started.

Descendants carry a mark in their environment, so that those are found that left the session, as
torchrun's workers do, or that were orphaned.

Meanwhile it measures how much of the CPUs other programs use: the busy time of the CPUs that this
process may use, less the CPU time of this process and of the children that ended meanwhile.
Programs at a lower priority (nice) do not count where this process has the usual one, as they run
on what is left. Whether others share the memory bus or the GPU is not seen.

A command, and everything that it starts, is kept from writing outside some paths: Landlock (Linux
6.2 and later) lets a thread give up rights for itself and for whatever it starts afterwards, in any
language. So a thread of its own gives up writing, starts the command and ends; the rest of this
process keeps its rights. Elsewhere commands start unconfined.

The command also loses the right to gain privileges, as by sudo, which the kernel requires.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

import psutil

from stepscope.adapters.script.launch import why_not_started
from stepscope.errors import UsageError

MARK = "STEPSCOPE_TRIAL"
DISTURBED = 0.1
"""From this share of the CPUs on, what ran meanwhile is not compared."""
_LEAST_SHARE = 0.1
"""A command that hung counts as having had this share of the CPUs, at least."""
_POLL_S = 0.05
_GRACE_S = 3.0
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True)
class CpuClock:
    """The CPU times at one moment.

    Attributes:
        busy_s: Busy time of the CPUs that this process may use; None if unknown.
        own_s: CPU time of this process and its ended children.
    """

    wall_s: float
    busy_s: float | None
    own_s: float
    cpus: int

    @classmethod
    def now(cls) -> CpuClock:
        """The clock of this moment."""
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        try:
            every = psutil.cpu_times(percpu=True)
            usable = psutil.Process().cpu_affinity() if hasattr(os, "sched_getaffinity") else None
            chosen = [every[cpu] for cpu in usable if cpu < len(every)] if usable else every
            lowers = hasattr(os, "getpriority") and os.getpriority(os.PRIO_PROCESS, 0) == 0
            kinds = ("user", "system", "irq", "softirq", *(() if lowers else ("nice",)))
            busy_s = sum(getattr(cpu, kind, 0.0) for cpu in chosen for kind in kinds)
        except (OSError, psutil.Error, NotImplementedError, AttributeError):
            return cls(time.monotonic(), None, own_s, 1)
        return cls(time.monotonic(), busy_s, own_s, len(chosen))

    def others_share_until(self, later: CpuClock) -> float | None:
        """The share of the CPUs' time, 0 to 1, that other programs used; None if unknown."""
        spent_s = (later.wall_s - self.wall_s) * later.cpus
        if self.busy_s is None or later.busy_s is None or spent_s <= 0:
            return None
        others_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        return min(1.0, max(0.0, others_s / spent_s))


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        exit_code: Its exit code, negative for a signal; None if it had to be ended.
        others_share: Share of the CPUs that other programs used meanwhile; None if unknown.
        is_confined: Whether the system kept it from writing elsewhere.
    """

    exit_code: int | None
    wall_s: float
    others_share: float | None = None
    is_confined: bool = False


@dataclass(frozen=True)
class Limits:
    """When a command is ended.

    Attributes:
        most_s: After so many seconds.
        hung_s: After so many seconds of CPUs to itself: on a busy machine, of which other programs
            use three quarters, after four times as many, and after ten times as many at most.
        linger_s: How long it may still run once it has.
        meanwhile: Called again and again while it runs.
    """

    most_s: float
    is_done: Callable[[], bool]
    linger_s: float = 15.0
    hung_s: float = math.inf
    meanwhile: Callable[[], None] = lambda: None


def own_standard_input() -> bytes:
    """What this process was given as a file; nothing where its standard input is no file."""
    try:
        is_file = sys.stdin is not None and stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
        return sys.stdin.buffer.read() if is_file else b""
    except (OSError, ValueError):
        return b""


@dataclass(frozen=True)
class Start:
    """How a command is started.

    Attributes:
        directory: Its working directory; None: this process's.
        standard_input: What it reads.
        writable: The paths to which it, and what it starts, can write, where the system can see to
            that; None: wherever this process can.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    directory: Path | None = None
    standard_input: bytes = b""
    writable: Sequence[Path] | None = None


def run_apart(start: Start, mark: str, limits: Limits) -> Ended:
    """Run a command in a session of its own; nothing that it started is left when this returns.

    Args:
        mark: A word that no other command of this machine has; see `MARK`.

    Raises:
        KeyboardInterrupt: This process was interrupted, or asked to end.
    """
    clock = CpuClock.now()
    start.log.parent.mkdir(parents=True, exist_ok=True)
    with start.log.open("wb") as file, tempfile.TemporaryFile() as given:
        given.write(start.standard_input)
        given.seek(0)

        def open_process() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                list(start.command),
                env={**start.environment, MARK: mark},
                cwd=start.directory,
                stdin=given,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        is_confined = False
        try:
            if start.writable is None:
                child = open_process()
            else:
                child, is_confined = start_confined(open_process, start.writable)
        except OSError as error:
            why = why_not_started(start.command[0], error, start.directory)
            raise UsageError(why) from None
        try:
            with _interruptible():
                code = _wait(child, limits, mark, clock)
        finally:
            _end_all(child, mark)
    ended = CpuClock.now()
    others_share = clock.others_share_until(ended)
    return Ended(code, ended.wall_s - clock.wall_s, others_share, is_confined)


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


def _wait(child: subprocess.Popen[bytes], limits: Limits, mark: str, clock: CpuClock) -> int | None:
    """Wait for a command; None if it ran into its limits."""
    done_at: float | None = None
    hung_at = clock.wall_s + limits.hung_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL_S)
        limits.meanwhile()
        now = time.monotonic()
        if done_at is None and limits.is_done():
            done_at = now
        if now > hung_at:
            hung_at = clock.wall_s + limits.hung_s / max(_LEAST_SHARE, _own_share(mark, clock))
        if now > min(hung_at, clock.wall_s + limits.most_s):
            return None
        if done_at is not None and now - done_at > limits.linger_s:
            return 0


def _own_share(mark: str, clock: CpuClock) -> float:
    """The share of the CPUs that other programs have left, to a command that still runs."""
    now = CpuClock.now()
    for process in _marked(mark):
        with contextlib.suppress(psutil.Error, OSError):
            now = replace(now, own_s=now.own_s + sum(process.cpu_times()[:2]))
    return 1 - (clock.others_share_until(now) or 0.0)


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


Started = TypeVar("Started")

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_LEAST_VERSION = 3
"""The first that knows of truncation, and that lets files move between folders."""
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITE = _WRITE_FILE | sum(1 << bit for bit in range(4, 15))
"""Writing, removing, creating, linking, moving and truncating."""


def start_confined(start: Callable[[], Started], writable: Iterable[Path]) -> tuple[Started, bool]:
    """Start a command that can write to some paths only, and below them.

    Args:
        writable: The paths. Those that do not exist are left out.

    Returns:
        What `start` returns, and whether the command is confined.

    Raises:
        BaseException: What `start` raises.
    """
    if not is_available():
        return start(), False
    found: list[tuple[Started, bool]] = []
    failed: list[BaseException] = []

    def act() -> None:
        try:
            is_confined = _confine_this_thread(writable)
            found.append((start(), is_confined))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=act, name="stepscope-start")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


@functools.cache
def is_available() -> bool:
    """Whether this system can confine a command."""
    if sys.platform != "linux":
        return False
    return _system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG) >= _LEAST_VERSION


def _confine_this_thread(writable: Iterable[Path]) -> bool:
    attributes = ctypes.create_string_buffer(struct.pack("=Q", _WRITE), 8)
    ruleset = _system_call(_CREATE_RULESET, attributes, 8, 0)
    if ruleset < 0:
        return False
    try:
        for path in writable:
            with suppress(OSError):
                _allow(ruleset, path)
        if ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return _system_call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path) -> None:
    rights = _WRITE if path.is_dir() else _WRITE_FILE | _TRUNCATE
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, opened), 12)
        _system_call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(opened)


def _system_call(number: int, *arguments: object) -> int:
    """The result of a system call; -1 if it failed."""
    values = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *values))
