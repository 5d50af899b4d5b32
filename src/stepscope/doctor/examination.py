"""All checks, in the order of display."""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path

from stepscope.doctor.check import Check
from stepscope.doctor.devices import check_devices
from stepscope.doctor.disk import SpaceOf, check_disk, space_of
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
    space: SpaceOf = space_of,
) -> list[Check]:
    """Run every check.

    Args:
        version: Returns the version of an installed package.
        space: Returns the space on a file system.
    """
    return [
        *check_python_and_torch(interpreter, report),
        *check_devices(machine, report),
        *check_recording(report),
        *check_environment(machine),
        *check_disk(machine, output_dir, space),
        *check_limits(machine),
        *check_permissions(machine),
        *check_packages(version),
    ]


def this_interpreter() -> Interpreter:
    """The Python interpreter of this process."""
    return Interpreter(
        version=sys.version_info[:3],
        implementation=platform.python_implementation().lower(),
        executable=sys.executable,
        has_gil=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )
