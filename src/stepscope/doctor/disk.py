"""Room and permission for what a recording writes, and shared memory for DataLoader workers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.doctor.check import Check, State
from stepscope.doctor.machine import Machine

AREA = "disk"
# A window of a million events is about 300 MB as plain JSON, which lies there beside its .gz.
_SCARCE_BYTES = 5 << 30
_TOO_LITTLE_BYTES = 500 << 20
_SMALL_SHARED_BYTES = 1 << 30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - measured, never written


@dataclass(frozen=True)
class Space:
    """Room on a file system, in bytes.

    Attributes:
        total_bytes: Its size.
        free_bytes: What this user may still write.
    """

    total_bytes: int
    free_bytes: int


SpaceOf = Callable[[Path], Space]
"""Room on the file system that holds a path; raises OSError where that cannot be found out."""


def space_of(path: Path) -> Space:
    """Room on the file system that holds `path`.

    Raises:
        OSError: It cannot be found out.
    """
    usage = shutil.disk_usage(path)
    return Space(usage.total, usage.free)


def check_disk(machine: Machine, output_dir: Path, space: SpaceOf = space_of) -> list[Check]:
    """Check where recordings go. Nothing is left behind there."""
    checks = _output(output_dir, space)
    if machine.is_linux:
        checks.append(_shared_memory(machine, space))
    return checks


def _output(output_dir: Path, space: SpaceOf) -> list[Check]:
    target = output_dir.absolute()
    folder = next(
        (path for path in (target, *target.parents) if path.exists()), Path(target.anchor)
    )
    label = str(target) if folder == target else f"{target} (to be made in {folder})"
    elsewhere = "give another folder: output_dir in the capture, --output-dir here"
    if not folder.is_dir():
        text = f"{folder} is in the way: it is no folder"
        return [Check(AREA, "output folder", State.PROBLEM, text, elsewhere)]
    try:
        # The permission bits do not tell all (read-only mounts, quotas): so write.
        with tempfile.TemporaryFile(dir=folder, prefix=".stepscope-doctor-") as file:
            file.write(b"x")
    except OSError as error:
        text = f"{label} cannot be written: {error.strerror or error}"
        return [Check(AREA, "output folder", State.PROBLEM, text, elsewhere)]
    checks = [Check(AREA, "output folder", State.OK, f"{label} can be written")]
    try:
        free_bytes = space(folder).free_bytes
    except OSError:
        return checks
    text = f"{_gib(free_bytes)} free; a window of a million events needs about 0.4 GiB at first"
    if free_bytes < _TOO_LITTLE_BYTES:
        checks.append(Check(AREA, "free space", State.PROBLEM, text, f"make room, or {elsewhere}"))
    elif free_bytes < _SCARCE_BYTES:
        remedy = f"record short windows (active=1), make room, or {elsewhere}"
        checks.append(Check(AREA, "free space", State.WARNING, text, remedy))
    else:
        checks.append(Check(AREA, "free space", State.OK, text))
    return checks


def _shared_memory(machine: Machine, space: SpaceOf) -> Check:
    name = "shared memory"
    try:
        total_bytes = space(machine.path(_SHARED_MEMORY)).total_bytes
    except OSError:
        return Check(
            AREA,
            name,
            State.WARNING,
            f"{_SHARED_MEMORY} is missing: DataLoader workers cannot hand over batches through it",
            "mount a tmpfs there, or torch.multiprocessing.set_sharing_strategy('file_system')",
        )
    text = f"{_SHARED_MEMORY} holds {_gib(total_bytes)}; DataLoader workers pass batches through it"
    if total_bytes < _SMALL_SHARED_BYTES:
        return Check(
            AREA,
            name,
            State.WARNING,
            text,
            "in a container, start it with --shm-size=8g or --ipc=host; else remount it larger",
        )
    return Check(AREA, name, State.OK, text)


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 30):.3g} GiB"
