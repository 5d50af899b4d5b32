"""External profilers, and whether the kernel lets one process read another."""

from __future__ import annotations

from stepscope.doctor.check import Check, absent, ok, warning
from stepscope.system import Machine


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
