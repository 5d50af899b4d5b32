"""py-spy: samples which Python functions run, from outside the process.

It is launched with the training below it, which any user may do on Linux, or attached to a running
process, which requires permission.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.tools import (
    Tool,
    flag,
    keep,
    require_program,
    scratch_folder,
    version_of,
)
from stepscope.errors import UsageError
from stepscope.monitor.processes import is_running
from stepscope.run.manifest import ExternalRecord

FORMATS = {
    "flamegraph": ".svg",
    "speedscope": ".speedscope.json",
    "chrometrace": ".json",
    "raw": ".txt",
}
"""Format of py-spy to file suffix."""

_PLACED = "its file goes into the run; stepscope attach has --output"
_TIMED = "py-spy ends the training when the time is over; stepscope attach --seconds does not"
_OURS = {
    "-o": _PLACED,
    "--output": _PLACED,
    "-f": "give --py-spy-format",
    "--format": "give --py-spy-format",
    "-r": "give --py-spy-rate",
    "--rate": "give --py-spy-rate",
    "-p": "use stepscope attach",
    "--pid": "use stepscope attach",
    "-d": _TIMED,
    "--duration": _TIMED,
}

INSTALL = 'pip install "stepscope[py-spy]"'
NO_PYTHON = "no python processes found"
_SIGNS = {
    "permission denied": "py-spy may not read the other process",
    "operation not permitted": "py-spy may not read the other process",
    "requires root": "py-spy may not read the other process",
    "no such file or directory (os error 2)": "there is no such process",
    NO_PYTHON: "it is not a Python process, or has ended",
    "failed to find python version": "py-spy does not support the process's Python",
}


@dataclass(frozen=True)
class PySpyOptions(Tool):
    """How py-spy records."""

    name, about, ours = "py-spy", "Sample Python stacks with py-spy.", _OURS
    format: str = flag("chrometrace", "Format of py-spy's file.", choices=tuple(FORMATS))
    rate: int = flag(100, "Samples per second.", "N", limits=(1, 1000))
    arguments: tuple[str, ...] = flag(
        (),
        'More arguments of `py-spy record`, as in --py-spy-arguments="--native --gil".',
        "TEXT",
    )

    @property
    def file_name(self) -> str:
        """The name of the file that it writes."""
        return f"py-spy{FORMATS[self.format]}"

    def require(self) -> str:
        """The path of py-spy, which only root may use on macOS."""
        program = require_program("py-spy", INSTALL)
        if sys.platform == "darwin" and os.geteuid() != 0:
            raise UsageError(
                "macOS lets only root read another process's memory: run the command with sudo"
            )
        return program

    def command(
        self,
        folder: Path,
        below: Sequence[str],
        program: str,
        *,
        windows: int,  # noqa: ARG002 - it knows of none
    ) -> list[str]:
        """The command that records what is launched below it."""
        return self.record(program, folder / self.file_name, ("--", *below))

    def record(
        self, program: str, output: Path, what: Sequence[str], seconds: float | None = None
    ) -> list[str]:
        """The command that records.

        Args:
            what: "--" and a command to launch, or "--pid" and a process to attach to; together with
                all its Python child processes.
            seconds: How long to record; None until the process ends.
        """
        command = [program, "record", "--subprocesses", "--format", self.format]
        command += ["--rate", str(self.rate), "--output", str(output)]
        # Of a chrometrace, the first separates threads into lanes, and names them in a raw. Without
        # the second, a waiting thread of a chrometrace is drawn as still running what it ran
        # before, and all its times are too long.
        wanted = {"chrometrace": ("--threads", "--idle"), "raw": ("--threads",)}
        command += [word for word in wanted.get(self.format, ()) if word not in self.arguments]
        if seconds is not None:
            command += ["--duration", str(max(1, round(seconds)))]
        return [*command, *self.arguments, *what]

    def missing(self, folder: Path) -> str:
        """That it took no samples."""
        path = folder / self.file_name
        has_any = path.is_file() and path.stat().st_size
        return "" if has_any else "it took no samples and wrote no file"

    def lacks(self) -> str:
        """Whether this machine allows reading another process, and how to change that."""
        from stepscope.doctor.machine import check_attaching
        from stepscope.system import this_machine

        check = check_attaching(this_machine())
        remedy = check.remedy or "run as the owner of the process, or with sudo"
        return f"{check.detail}; {remedy}"


def format_of(path: Path) -> str:
    """The format that a file's ending asks for; that which reports read if it asks for none."""
    endings = sorted(FORMATS, key=lambda name: len(FORMATS[name]), reverse=True)
    asked = (name for name in endings if path.name.endswith(FORMATS[name]))
    return next(asked, PySpyOptions.format)


def explain(messages: str, allowance: str) -> UsageError:
    """Explain py-spy's error message, with a remedy."""
    text = messages.lower()
    for sign, meaning in _SIGNS.items():
        if sign in text:
            return UsageError(f"{meaning}: {allowance}" if "may not" in meaning else meaning)
    lines = [line for line in messages.splitlines() if line.strip()]
    return UsageError(f"py-spy failed: {lines[0] if lines else 'no reason given'}")


_PATIENCE_S = 120.0
"""How long py-spy may take to write its file after sampling."""


def attach(
    process_id: int,
    options: PySpyOptions,
    seconds: float,
    run: Path | None,
    output: Path | None,
    print_message: Callable[[str], None],
) -> Path:
    """Sample a process and its children.

    Args:
        run: The run directory to which the file belongs; None if it belongs to no run.

    Raises:
        UsageError: py-spy is missing or not allowed, or cannot sample this process.
    """
    program = options.require()
    if not is_running(process_id):
        raise UsageError(f"there is no process {process_id} on this machine")
    try:
        folder = scratch_folder(run, "py-spy") if run is not None else None
        if folder is not None:
            path = folder / options.file_name
        else:
            path = output or Path(f"py-spy-{process_id}{FORMATS[options.format]}")
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{run or output}: {error.strerror or error}") from None
    command = options.record(program, path, ("--pid", str(process_id)), seconds)
    version = version_of(program) if folder is not None else ""
    record = ExternalRecord("py-spy", version, tuple(command), started_ns=time.time_ns())
    print_message(f"sampling process {process_id} for {seconds:g} s")
    code, messages = _run(command, seconds)
    if code or not path.is_file():
        if folder is not None:
            keep(folder, record, None)
        if NO_PYTHON in messages.lower():
            # py-spy also says so of processes that it may not read; asked for a single stack, it is
            # exact.
            _, more = _run([program, "dump", "--pid", str(process_id)], 0.0)
            messages = more or messages
        raise explain(messages, options.lacks())
    if folder is None:
        return path
    home = keep(folder, record, run)
    return path if home is None else home / path.name


def _run(command: list[str], seconds: float) -> tuple[int, str]:
    """Run py-spy; returns its exit code and standard error."""
    with tempfile.TemporaryFile() as complaints:
        sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints)
        until = time.monotonic() + seconds + _PATIENCE_S
        while sampler.poll() is None:
            if time.monotonic() > until:
                sampler.kill()
                sampler.wait()
                return 1, f"py-spy was still running {_PATIENCE_S:.0f} s after the end"
            # A terminal sends Ctrl-C to py-spy as well, which then writes its samples.
            with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                sampler.wait(1.0)
        complaints.seek(0)
        return sampler.returncode, complaints.read().decode("utf-8", "replace")
