"""What other tools have in common; finds them, and explains how to install one that is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from stepscope.errors import UsageError
from stepscope.system import this_machine

_VERSION = re.compile(r"\d+(?:\.\d+)+")


class Tool:
    """Another tool that records a training; its subclasses are its options."""

    name: ClassVar[str]

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
    """Split arguments like a shell.

    Args:
        ours: Arguments that must not be among them, such as "--output" or "-o", and what to use
            instead.

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
