"""What a recording and a training may use: disk, shared memory, and a control group's limits."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from stepscope.doctor.check import Check, ok, problem, warning
from stepscope.run.figures import binary_size, plural, significant
from stepscope.system import ControlGroups, Machine

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


_SMALL_MEMORY_BYTES = 4 << 30


def check_limits(machine: Machine) -> list[Check]:
    """Compare the limits with what a training process sees. Only Linux has them."""
    if not machine.is_linux:
        return []
    groups = ControlGroups(machine)
    return [_memory(machine, groups.memory()[1]), _cpu(machine, groups.cpus())]


def _memory(machine: Machine, limit_bytes: int | None) -> Check:
    total_bytes = machine.memory_bytes("MemTotal")
    whole = binary_size(total_bytes or 0)
    total = f" of the machine's {whole}" if total_bytes is not None else ""
    usable = [size for size in (limit_bytes, total_bytes) if size is not None]
    if limit_bytes is None or (total_bytes and limit_bytes >= total_bytes):
        text = f"no limit below the machine's {whole}" if total_bytes else "no limit"
    else:
        text = f"limited to {binary_size(limit_bytes)}{total}"
    if usable and min(usable) < _SMALL_MEMORY_BYTES:
        return warning(
            "memory",
            f"{text}; a window takes about 3 kB per event in the training process",
            "record short windows (active=1), or raise the container's limit",
        )
    return ok("memory", text)


def _cpu(machine: Machine, limit: float | None) -> Check:
    seen = plural(machine.cpu_count, "CPU")
    # Half a CPU of difference does no harm; a training that sees many CPUs and gets few suffers.
    if limit is None or limit > machine.cpu_count - 0.5:
        return ok("CPU", f"{seen}, no limit on CPU time")
    most = max(1, int(limit))
    return warning(
        "CPU",
        f"the process sees {seen} but gets the time of {limit:g}: if threads and workers "
        "are sized by what it sees, they compete for CPU time",
        f"set OMP_NUM_THREADS and num_workers so that together they stay near {most}, or raise "
        "the container's limit",
    )
