"""py-spy: samples which Python functions run, from outside the process.

It is launched with the training below it, which any user may do on Linux, or attached to a running
process, which requires permission.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.tools import Tool, require_program
from stepscope.errors import UsageError

FORMATS = {
    "flamegraph": ".svg",
    "speedscope": ".speedscope.json",
    "chrometrace": ".json",
    "raw": ".txt",
}
"""Format of py-spy to file suffix."""

_PLACED = "its file goes into the run; stepscope attach has --output"
_TIMED = "py-spy ends the training when the time is over; stepscope attach --seconds does not"
OURS = {
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
"""Arguments of `py-spy record` that our own options set, and what to use instead."""

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
    """How py-spy records; `rate` is in samples per second."""

    name = "py-spy"
    format: str = "chrometrace"
    rate: int = 100
    arguments: tuple[str, ...] = ()

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
        if self.format == "chrometrace":
            # The first separates threads into lanes. Without the second, a waiting thread is drawn
            # as still running what it ran before, and all its times are too long.
            wanted = ("--threads", "--idle")
            command += [word for word in wanted if word not in self.arguments]
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
        from stepscope.doctor.permissions import check_attaching
        from stepscope.system import this_machine

        check = check_attaching(this_machine())
        remedy = check.remedy or "run as the owner of the process, or with sudo"
        return f"{check.detail}; {remedy}"


def format_of(path: Path) -> str:
    """The format that a file's ending asks for; that which reports read if it asks for none."""
    endings = sorted(FORMATS, key=lambda name: len(FORMATS[name]), reverse=True)
    asked = (name for name in endings if path.name.endswith(FORMATS[name]))
    return next(asked, PySpyOptions.format)


def explain(said: str, allowance: str) -> UsageError:
    """Explain py-spy's error message, with a remedy."""
    text = said.lower()
    for sign, meaning in _SIGNS.items():
        if sign in text:
            return UsageError(f"{meaning}: {allowance}" if "may not" in meaning else meaning)
    lines = [line for line in said.splitlines() if line.strip()]
    return UsageError(f"py-spy failed: {lines[0] if lines else 'no reason given'}")
