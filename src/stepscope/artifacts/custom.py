"""Custom artifacts: functions or small classes that receive a finished window."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.run.figures import error_with_class
from stepscope.run.files import digest_of
from stepscope.run.layout import STEPS_FILE
from stepscope.run.manifest import ArtifactRecord
from stepscope.run.step_record import StepRecord, read_steps

CustomArtifact = Callable[["FinishedWindow"], object]
"""Receives a finished window and writes files to the window's folder."""


@dataclass(frozen=True)
class FinishedWindow:
    """A window whose files are finished.

    Attributes:
        step_numbers: The steps that it recorded completely.
        directory: Its folder, where custom files belong.
        trace_path: The trace: plain JSON in the finishing process, the finished file otherwise.
        files: The finished files, by kind ("trace", "key_averages", …).
    """

    rank: int
    index: int
    step_numbers: tuple[int, ...]
    directory: Path
    trace_path: Path
    files: dict[str, Path]

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The step records of the window's steps."""
        records, _ = read_steps(self.directory.parent / STEPS_FILE)
        wanted = set(self.step_numbers)
        return tuple(record for record in records if record.step in wanted)


def address_of(artifact: Any) -> str | None:
    """The address of a function or class for another process, "module:name"; None without one."""
    module = getattr(artifact, "__module__", None)
    name = getattr(artifact, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return f"{module}:{name}"


def find(address: str) -> Any:
    """The function or class at an address.

    Raises:
        ImportError: There is no such module.
        AttributeError: The module has no such name.
    """
    module, _, name = address.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def make_custom(artifact: Any, name: str, window: FinishedWindow) -> list[ArtifactRecord]:
    """Call a custom artifact; its new files become records, an exception becomes a problem."""
    before = {path: path.stat().st_mtime_ns for path in window.directory.iterdir()}
    problem = ""
    try:
        maker = artifact() if isinstance(artifact, type) else artifact
        maker(window)
    except Exception as error:  # noqa: BLE001 - a user's function must not affect the rest
        problem = f"{name} raised {error_with_class(error)}"
    records = [
        ArtifactRecord(
            "custom", f"{window.directory.name}/{path.name}", path.stat().st_size, digest_of(path)
        )
        for path in sorted(window.directory.iterdir())
        if path.is_file() and not path.name.startswith(".") and path not in before
    ]
    if problem:
        records.append(ArtifactRecord("custom", name, problem=problem))
    return records
