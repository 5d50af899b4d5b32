"""Disk space and permissions for recordings, and shared memory for DataLoader workers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from stepscope.doctor.check import Check, ok, problem, warning
from stepscope.run.figures import binary_size, significant
from stepscope.system import Machine

# A window of a million events is about 300 MB as plain JSON, which exists alongside its .gz.
_SCARCE_BYTES = 5 << 30
_TOO_LITTLE_BYTES = 500 << 20
_SMALL_SHARED_BYTES = 1 << 30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - measured, never written


def check_disk(machine: Machine, output_dir: Path) -> list[Check]:
    """Check where recordings go. Leaves nothing behind."""
    checks = _output(output_dir)
    if machine.is_linux:
        checks.append(_shared_memory(machine))
    return checks


def _output(output_dir: Path) -> list[Check]:
    target = output_dir.absolute()
    folder = next(
        (path for path in (target, *target.parents) if path.exists()), Path(target.anchor)
    )
    label = str(target) if folder == target else f"{target} (to be created in {folder})"
    elsewhere = "choose another folder: output_dir in the capture, --output-dir here"
    if not folder.is_dir():
        return [problem("output folder", f"{folder} is not a folder", elsewhere)]
    try:
        # Permission bits are not enough (read-only mounts, quotas), so try to write.
        with tempfile.TemporaryFile(dir=folder, prefix=".stepscope-doctor-") as file:
            file.write(b"x")
    except OSError as error:
        text = f"{label} is not writable: {error.strerror or error}"
        return [problem("output folder", text, elsewhere)]
    checks = [ok("output folder", f"{label} is writable")]
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError:
        return checks
    text = (
        f"{significant(free_bytes / 1e9)} GB free; a window of a million events needs about 0.4 GB "
        "at first"
    )
    if free_bytes < _TOO_LITTLE_BYTES:
        checks.append(problem("free space", text, f"free some space, or {elsewhere}"))
    elif free_bytes < _SCARCE_BYTES:
        remedy = f"record short windows (active=1), free some space, or {elsewhere}"
        checks.append(warning("free space", text, remedy))
    else:
        checks.append(ok("free space", text))
    return checks


def _shared_memory(machine: Machine) -> Check:
    name = "shared memory"
    try:
        total_bytes = shutil.disk_usage(machine.path(_SHARED_MEMORY)).total
    except OSError:
        return warning(
            name,
            f"{_SHARED_MEMORY} is missing: DataLoader workers cannot pass batches through it",
            "mount a tmpfs there, or call "
            "torch.multiprocessing.set_sharing_strategy('file_system')",
        )
    size = binary_size(total_bytes)
    text = f"{_SHARED_MEMORY} has {size}; DataLoader workers pass batches through it"
    if total_bytes < _SMALL_SHARED_BYTES:
        return warning(
            name,
            text,
            "start the container with --shm-size=8g or --ipc=host; otherwise remount it larger",
        )
    return ok(name, text)
