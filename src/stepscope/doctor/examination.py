"""All checks, in the order of display."""

from __future__ import annotations

import platform
import shutil
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

from stepscope.doctor.check import Check
from stepscope.doctor.devices import check_devices
from stepscope.doctor.disk import SpaceOf, check_disk
from stepscope.doctor.environment import check_environment
from stepscope.doctor.limits import check_limits
from stepscope.doctor.packages import VersionOf, check_packages, installed_version
from stepscope.doctor.permissions import check_permissions
from stepscope.doctor.python_and_torch import Interpreter, check_python_and_torch
from stepscope.doctor.recording import check_recording
from stepscope.doctor.torch_check import TorchReport
from stepscope.system import Machine


def examine(
    machine: Machine,
    interpreter: Interpreter,
    report: TorchReport,
    output_dir: Path,
    *,
    version: VersionOf = installed_version,
    space: SpaceOf = shutil.disk_usage,
) -> list[Check]:
    """Run every check."""
    areas = {
        "python and torch": check_python_and_torch(interpreter, report),
        "devices": check_devices(machine, report),
        "recording": check_recording(report),
        "environment": check_environment(machine),
        "disk": check_disk(machine, output_dir, space),
        "limits": check_limits(machine),
        "external profilers": check_permissions(machine),
        "packages": check_packages(version),
    }
    return [replace(check, area=area) for area, checks in areas.items() for check in checks]


def this_interpreter() -> Interpreter:
    """The Python interpreter of this process."""
    return Interpreter(
        version=sys.version_info[:3],
        implementation=platform.python_implementation().lower(),
        executable=sys.executable,
        has_gil=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )
