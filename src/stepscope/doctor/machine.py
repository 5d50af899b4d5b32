"""What of this machine disturbs a recording or limits it.

Environment variables that change what a recording shows, or prevent it; disk, shared memory, and a
control group's limits; external profilers, and whether the kernel lets one process read another.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.doctor.check import Check, State, absent, ok, problem, warning
from stepscope.run.figures import binary_size, plural, significant
from stepscope.system import ControlGroups, Machine


@dataclass(frozen=True)
class _Variable:
    name: str
    disturbs: Callable[[str], bool]
    effect: str
    remedy: str = "unset it for the recording"
    state: State = State.WARNING


def _is_on(value: str) -> bool:
    return value.strip().lower() not in {"", "0", "false", "no", "off"}


def _is_set(value: str) -> bool:
    return value != ""


def _injects(value: str) -> bool:
    tools = ("toolsinjection", "nsys", "nsight", "cupti", "memray", "rocprof")
    return any(tool in value.lower() for tool in tools)


_ANOTHER_TOOL = (
    "another tool is attached to CUDA, and CUPTI serves one at a time: recordings have no kernels"
)
_EVERY_CALL_WAITS = (
    "every launch waits until its kernel ends: steps are slower, and overlap disappears"
)
_NO_CACHING = (
    "the driver allocates every tensor separately: times and memory differ from a regular run"
)

_VARIABLES = (
    _Variable(
        "CUDA_INJECTION64_PATH",
        _is_set,
        _ANOTHER_TOOL,
        "start the training without nsys (or the tool that sets it)",
        State.PROBLEM,
    ),
    _Variable(
        "NSYS_PROFILING_SESSION_ID",
        _is_set,
        f"nsys is recording this process: {_ANOTHER_TOOL}",
        "use one of the two at a time",
        State.PROBLEM,
    ),
    _Variable(
        "HSA_TOOLS_LIB",
        _is_set,
        "another tool is attached to ROCm: kernels may be missing in recordings",
    ),
    _Variable(
        "LD_PRELOAD",
        _injects,
        "another profiler is loaded into every process: it takes time, and may hide kernels",
        "start the training without it",
    ),
    _Variable("CUDA_LAUNCH_BLOCKING", _is_on, _EVERY_CALL_WAITS),
    _Variable("HIP_LAUNCH_BLOCKING", _is_on, _EVERY_CALL_WAITS),
    _Variable("AMD_SERIALIZE_KERNEL", _is_on, _EVERY_CALL_WAITS),
    _Variable(
        "TORCH_NCCL_BLOCKING_WAIT",
        _is_on,
        "the host waits for collectives: communication looks like host time",
    ),
    _Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", _is_set, _NO_CACHING),
    _Variable("PYTORCH_NO_HIP_MEMORY_CACHING", _is_set, _NO_CACHING),
    _Variable(
        "TEARDOWN_CUPTI",
        lambda value: value.strip() == "0",
        "CUPTI stays active after a window, and the steps after it are slower",
        "unset it, unless the training replays CUDA graphs with CUDA before 12.6",
    ),
    _Variable(
        "TEARDOWN_CUPTI",
        lambda value: value.strip() == "1",
        "with CUDA before 12.6, a training that replays CUDA graphs can crash in its second window",
        "unset it, or record only one window, unless torch is built for CUDA 12.6 or later",
    ),
    _Variable(
        "DISABLE_CUPTI_LAZY_REINIT",
        _is_set,
        "any value, even 0, enables it: CUPTI is set up again right after each window",
        "unset it, unless the training replays CUDA graphs with CUDA before 12.6",
    ),
    _Variable(
        "KINETO_USE_DAEMON",
        _is_set,
        "any value, even 0, enables it: a dynolog daemon may start recordings, and two at once do "
        "not work",
    ),
    _Variable("KINETO_CONFIG", _is_set, "torch's profiler reads further options from that file"),
    _Variable(
        "TORCH_SHOW_CPP_STACKTRACES",
        _is_on,
        "every C++ exception looks up its symbols, which is slow if exceptions are frequent",
    ),
    _Variable(
        "PYTHONTRACEMALLOC",
        _is_on,
        "Python records every allocation: host code is much slower",
    ),
)


def check_environment(machine: Machine) -> list[Check]:
    """One check for each variable that interferes, or one that says that there is none."""
    checks = []
    for variable in _VARIABLES:
        value = machine.environment.get(variable.name)
        if value is not None and variable.disturbs(value):
            detail = f"{variable.name}={_shorten(value)}: {variable.effect}"
            checks.append(Check("", variable.name, variable.state, detail, variable.remedy))
    return checks or [ok("variables", "no variable is set that changes what a recording shows")]


def _shorten(value: str, most: int = 60) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"


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


def check_permissions(machine: Machine) -> list[Check]:
    """Check py-spy, memray and nsys, and the permissions that they need."""
    memray = "not installed", 'pip install "stepscope[memray]"'
    if machine.system == "win32":
        memray = "not available on Windows", "use it on Linux or macOS"
    return [
        _program(machine, "py-spy", "not installed", 'pip install "stepscope[py-spy]"'),
        check_attaching(machine),
        _program(machine, "memray", *memray),
        _program(machine, "nsys", *_without_nsys(machine)),
    ]


def _program(machine: Machine, name: str, missing: str, remedy: str) -> Check:
    found = machine.find_program(name)
    return ok(name, found) if found else absent(name, missing, remedy)


def check_attaching(machine: Machine) -> Check:
    """Whether one process may read another's memory, as py-spy must."""
    name = "attaching to a process"
    if machine.system == "darwin":
        if machine.user == 0:
            return ok(name, "running as root")
        return warning(name, "on macOS, only root may", "start py-spy with sudo")
    if not machine.is_linux:
        return ok(name, "allowed for your own processes")
    if machine.may_trace():
        return ok(name, "allowed: this process has CAP_SYS_PTRACE")
    in_container = "in a container, start it with --cap-add=SYS_PTRACE"
    scope = machine.read_number("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None or scope == 0:
        if machine.user == 0:
            # Without the capability, the kernel restricts root as well.
            return warning(
                name,
                "root without CAP_SYS_PTRACE may only attach to processes of root",
                in_container,
            )
        return ok(name, "allowed for your own processes")
    if scope == 1:
        return warning(
            name,
            "kernel.yama.ptrace_scope is 1: a program may only read processes that it started",
            "let py-spy start the training (py-spy record -- python train.py), or "
            f"`sudo sysctl kernel.yama.ptrace_scope=0`; {in_container}",
        )
    if scope == 2:
        return warning(
            name,
            "kernel.yama.ptrace_scope is 2: only processes with CAP_SYS_PTRACE may",
            f"start py-spy with sudo; {in_container}",
        )
    return warning(
        name,
        f"kernel.yama.ptrace_scope is {scope}: nobody may until the machine restarts",
        "change kernel.yama.ptrace_scope in /etc/sysctl.d and restart, or do not use py-spy",
    )


def _without_nsys(machine: Machine) -> tuple[str, str]:
    """What to say of nsys if it is not on PATH, and the remedy."""
    for pattern in ("opt/nvidia/nsight-systems/*/bin/nsys", "usr/local/cuda*/bin/nsys"):
        for path in sorted(machine.root.glob(pattern)):
            return f"{path} is installed, but not on PATH", f"add {path.parent} to PATH"
    needed = "it is needed only to record with nsys, or to open its .nsys-rep files"
    return "not on PATH", f"install NVIDIA Nsight Systems; {needed}"
