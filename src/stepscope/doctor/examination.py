"""All checks, in the order of display."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope.doctor.check import Check
from stepscope.doctor.installed import check_packages, check_python_and_torch
from stepscope.doctor.machine import (
    check_disk,
    check_environment,
    check_limits,
    check_permissions,
)
from stepscope.doctor.recording import check_devices, check_recording
from stepscope.doctor.torch_check import TorchReport
from stepscope.system import Machine


def examine(machine: Machine, report: TorchReport, output_dir: Path) -> list[Check]:
    """Run every check."""
    areas = {
        "python and torch": check_python_and_torch(report),
        "devices": check_devices(machine, report),
        "recording": check_recording(report),
        "environment": check_environment(machine),
        "disk": check_disk(machine, output_dir),
        "limits": check_limits(machine),
        "external profilers": check_permissions(machine),
        "packages": check_packages(),
    }
    return [replace(check, area=area) for area, checks in areas.items() for check in checks]
