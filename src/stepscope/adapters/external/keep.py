"""Moves the files of another tool into the run that they belong to, with a manifest."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.capture.record.home import hide_secrets
from stepscope.run.files import numbered
from stepscope.run.layout import MANIFEST_FILE, RunLayout
from stepscope.run.manifest import ArtifactRecord, ExternalRecord, write_record


@dataclass(frozen=True)
class Recording:
    """A recording by a tool, outside any run until there is one."""

    tool: str
    folder: Path
    started_ns: int
    command: tuple[str, ...]
    tool_version: str = ""


def scratch_folder(output: Path, tool: str) -> Path:
    """Create a folder of this process for a tool's files, next to the runs."""
    name = f"external-{tool}-{socket.gethostname()}-{os.getpid()}"
    folder = next(one for one in numbered(output.absolute() / name) if not one.exists())
    folder.mkdir(parents=True)
    return folder


def keep(recording: Recording, run: Path | None, problems: Sequence[str] = ()) -> Path | None:
    """Move a recording's files into the run, and describe them in a manifest.

    Args:
        run: The run directory; None to leave the files where they are.

    Returns:
        The folder of the files; None if there are neither files nor a run.

    Raises:
        OSError: The files cannot be moved.
    """
    folder = recording.folder
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files and run is None:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    if run is not None:
        target = RunLayout(run).external / folder.name.removeprefix("external-")
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = folder.rename(target)
        files = [target / path.relative_to(recording.folder) for path in files]
    artifacts = tuple(
        ArtifactRecord.of(f"{recording.tool} {path.suffix.lstrip('.') or 'file'}", path, folder)
        for path in files
    )
    write_record(
        folder / MANIFEST_FILE,
        ExternalRecord(
            tool=recording.tool,
            tool_version=recording.tool_version,
            command=hide_secrets(recording.command),
            host=socket.gethostname(),
            started_ns=recording.started_ns,
            ended_ns=time.time_ns(),
            artifacts=artifacts,
            problems=tuple(problems),
        ),
    )
    return folder
