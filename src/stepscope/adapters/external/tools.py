"""What other tools have in common: how they are found, and how their files get into the run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar

from stepscope.errors import UsageError
from stepscope.run.files import numbered
from stepscope.run.layout import MANIFEST_FILE, RunLayout
from stepscope.run.manifest import ArtifactRecord, ExternalRecord, hide_secrets, write_record
from stepscope.system import this_machine

_VERSION = re.compile(r"\d+(?:\.\d+)+")


def flag(default: Any, help_line: str, metavar: str = "", **more: Any) -> Any:
    """Declare a field of a tool as an option of the command line, named after tool and field.

    Args:
        more: `choices` of words, the `limits` of a number, or `short`, another name.
    """
    return field(default=default, metadata={"help": help_line, "metavar": metavar, **more})


class Tool:
    """Another tool that records a training; its subclasses are its options.

    Attributes:
        ours: Its own arguments that our options set, and what to use instead.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    ours: ClassVar[Mapping[str, str]] = {}

    def require(self) -> str:
        """Check that it is available before anything starts; returns the path of its program."""
        raise NotImplementedError

    def command(
        self, folder: Path, below: Sequence[str], program: str, *, windows: int
    ) -> list[str]:
        """The command that records into a folder what runs below it; 0 windows for no limit."""
        raise NotImplementedError

    def missing(self, folder: Path) -> str:  # noqa: ARG002
        """What it should have written there and did not, and why; empty for nothing."""
        return ""

    def lacks(self) -> str:
        """What it may lack if it did not start."""
        return "see its own output above; `stepscope doctor` checks what it needs"


def find_program(name: str) -> str | None:
    """The path of a program, on PATH or beside this interpreter; None if there is none."""
    return this_machine().find_program(name)


def require_program(name: str, remedy: str) -> str:
    """The path of a program."""
    found = find_program(name)
    if found is None:
        raise UsageError(f"{name} is not on PATH: {remedy}")
    return found


def version_of(program: str) -> str:
    """The version that a program reports; empty if unknown."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    found = _VERSION.search(answer.stdout or answer.stderr)
    return found.group() if found else ""


def split_arguments(option: str, text: str, ours: Mapping[str, str]) -> tuple[str, ...]:
    """Split arguments like a shell; none of `ours` may be among them.

    Raises:
        UsageError: A quotation mark is not closed, or an argument is one that we set ourselves.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option}={text!r}: {error}") from None
    for word in words:
        name = word.partition("=")[0]
        name = name if name.startswith("--") else name[:2]
        if name in ours:
            raise UsageError(f"{option}={text!r}: leave {name} out: {ours[name]}")
    return words


def scratch_folder(output: Path, tool: str) -> Path:
    """Create a folder of this process for a tool's files, next to the runs."""
    name = f"external-{tool}-{socket.gethostname()}-{os.getpid()}"
    folder = next(one for one in numbered(output.absolute() / name) if not one.exists())
    folder.mkdir(parents=True)
    return folder


def keep(
    folder: Path, record: ExternalRecord, run: Path | None, problems: Sequence[str] = ()
) -> Path | None:
    """Move a recording's files into the run, and describe them in a manifest.

    Args:
        folder: The folder of its files, outside any run until there is one.
        run: The run directory; None to leave the files where they are.

    Returns:
        The folder of the files; None if there are neither files nor a run.

    Raises:
        OSError: The files cannot be moved.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files and run is None:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    if run is not None:
        target = RunLayout(run).external / folder.name.removeprefix("external-")
        target.parent.mkdir(parents=True, exist_ok=True)
        files = [target / path.relative_to(folder) for path in files]
        folder = folder.rename(target)
    artifacts = tuple(
        ArtifactRecord.of(f"{record.tool} {path.suffix.lstrip('.') or 'file'}", path, folder)
        for path in files
    )
    write_record(
        folder / MANIFEST_FILE,
        replace(
            record,
            command=hide_secrets(record.command),
            host=socket.gethostname(),
            ended_ns=time.time_ns(),
            artifacts=artifacts,
            problems=tuple(problems),
        ),
    )
    return folder
