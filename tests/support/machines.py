"""Machines and torch reports of one's own making, for the doctor's checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepscope.doctor.check import Check
from stepscope.doctor.torch_check import TorchReport
from stepscope.system import Machine

CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


def make_machine(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    programs: Iterable[str] = (),
    capabilities: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    system: str = "linux",
    user: int | None = 1000,
    cpu_count: int = 8,
) -> Machine:
    """A machine whose files lie below `root`, with programs on its PATH."""
    mask = sum(1 << CAPABILITIES[name] for name in capabilities)
    contents = {"/proc/self/status": f"Name:\tpython\nCapEff:\t{mask:016x}\n", **(files or {})}
    for name, text in contents.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder = root / "programs"
    folder.mkdir(exist_ok=True)
    for name in programs:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return Machine(system, root, {"PATH": str(folder), **(environment or {})}, user, cpu_count)


def make_report(**stages: Any) -> TorchReport:
    """A report of a CPU-only torch in good order; stages replace its own, None takes one away."""
    good: dict[str, Any] = {
        "torch": {
            "version": "2.13.0+cpu",
            "path": "/site/torch",
            "cuda": None,
            "hip": None,
            "xpu": None,
            "kineto": True,
            "activities": ["CPU"],
        },
        "devices": {"kind": None, "names": [], "driver_cuda": None},
        "recording": {"needed": True, "events": {"cpu_op": 14}, "table_rows": 11},
        "stacks": {
            "needed": True,
            "events": {"cpu_op": 14, "python_function": 61},
            "table_rows": 65,
        },
        "gpu_recording": {"needed": False},
    }
    good.update(stages)
    return TorchReport(stages={name: result for name, result in good.items() if result is not None})


def make_cuda_report(**stages: Any) -> TorchReport:
    """The same with two NVIDIA GPUs."""
    good: dict[str, Any] = {
        "torch": {
            "version": "2.13.0+cu126",
            "path": "/site/torch",
            "cuda": "12.6",
            "hip": None,
            "kineto": True,
            "activities": ["CPU", "CUDA"],
        },
        "devices": {"kind": "cuda", "names": ["NVIDIA A100", "NVIDIA A100"], "driver_cuda": 12060},
        "gpu_recording": {"needed": True, "events": {"cpu_op": 14, "kernel": 3}},
    }
    return make_report(**{**good, **stages})


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    """The checks by their names; a name that comes twice is an error."""
    found: dict[str, Check] = {}
    for check in checks:
        assert check.name not in found, check.name
        found[check.name] = check
    return found
