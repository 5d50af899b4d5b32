"""py-spy: which Python functions run, sampled from outside the process.

It is launched with the training below it, which any user may do on Linux, or attached to one that
runs, which needs a permission.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.tools import require_program
from stepscope.errors import UsageError

FORMATS = {
    "flamegraph": ".svg",
    "speedscope": ".speedscope.json",
    "chrometrace": ".json",
    "raw": ".txt",
}
"""Format of py-spy to the ending of its file."""

_PLACED = "its file goes into the run; stepscope attach has --output"
_TIMED = (
    "py-spy ends what it started when the time is over; stepscope attach --seconds lets it go on"
)
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
"""Arguments of `py-spy record` that are given by options of ours, and which."""

INSTALL = 'pip install "stepscope[py-spy]"'
NO_PYTHON = "no python processes found"
_SIGNS = {
    "permission denied": "py-spy may not read the other process",
    "operation not permitted": "py-spy may not read the other process",
    "requires root": "py-spy may not read the other process",
    "no such file or directory (os error 2)": "there is no such process",
    NO_PYTHON: "no Python runs there: it has ended, or is another program",
    "failed to find python version": "the process is no Python that py-spy knows",
}


class NotAllowedError(UsageError):
    """py-spy was refused: the message says what this machine allows and how to change it."""


@dataclass(frozen=True)
class PySpyOptions:
    """How py-spy records.

    Attributes:
        format: One of `FORMATS`.
        rate: Samples in a second.
        arguments: More arguments of `py-spy record`, as they are.
    """

    format: str = "flamegraph"
    rate: int = 100
    arguments: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The name of the file that it writes."""
        return f"py-spy{FORMATS[self.format]}"


def require_py_spy() -> str:
    """Where py-spy is.

    Raises:
        MissingToolError: It is not installed.
        NotAllowedError: This system lets only root use it, and we are not.
    """
    program = require_program("py-spy", INSTALL)
    if sys.platform == "darwin" and os.geteuid() != 0:
        raise NotAllowedError(
            "macOS lets only root read another process's memory: put sudo before the command"
        )
    return program


def record_command(
    options: PySpyOptions,
    output: Path,
    *,
    below: Sequence[str] = (),
    process_id: int | None = None,
    seconds: float | None = None,
    program: str = "py-spy",
) -> list[str]:
    """The command that records.

    Args:
        options: How.
        output: The file that it writes.
        below: A command to launch, with all Python processes below it.
        process_id: A process to attach to instead, with those below it.
        seconds: How long; None until the process ends.
        program: py-spy.
    """
    command = [program, "record", "--subprocesses", "--format", options.format]
    command += ["--rate", str(options.rate), "--output", str(output)]
    if options.format == "chrometrace":
        # Lanes are told apart by the first. Without the second a thread that waits is drawn as
        # still in what it ran before, and all its times are too long.
        wanted = ("--threads", "--idle")
        command += [word for word in wanted if word not in options.arguments]
    if seconds is not None:
        command += ["--duration", str(max(1, round(seconds)))]
    command += options.arguments
    if process_id is not None:
        return [*command, "--pid", str(process_id)]
    return [*command, "--", *below]


def explain(said: str, allowance: str) -> UsageError:
    """What py-spy's complaint means, and what to do.

    Args:
        said: What it wrote to standard error.
        allowance: What this machine allows, and how to change it.
    """
    text = said.lower()
    for sign, meaning in _SIGNS.items():
        if sign in text:
            if "may not" in meaning:
                return NotAllowedError(f"{meaning}: {allowance}")
            return UsageError(meaning)
    lines = [line for line in said.splitlines() if line.strip()]
    return UsageError(f"py-spy failed: {lines[0] if lines else 'it did not say why'}")
