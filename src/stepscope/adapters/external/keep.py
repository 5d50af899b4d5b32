"""Moves the files of another tool into the run that they belong to, with a manifest."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.capture.record.home import hide_secrets
from stepscope.run.files import numbered
from stepscope.run.layout import MANIFEST_FILE, RunLayout
from stepscope.run.manifest import ArtifactRecord, ExternalRecord, write_record


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
        record: What was recorded, and how.
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
