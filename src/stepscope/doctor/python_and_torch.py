"""Python and torch: are they installed, in supported versions?"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Sequence

from stepscope.doctor.check import Check, absent, ok, problem, warning
from stepscope.doctor.torch_check import TorchReport

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 4)
_CRASHING_PYTHON, _SAFE_TORCH = (3, 13), (2, 7, 1)
"""From which Python on stacks can crash a training, and from which torch on they do not."""


def check_python_and_torch(report: TorchReport) -> list[Check]:
    """Check this interpreter and the torch that it imports."""
    checks = [_python(), _torch(report)]
    if report.result("torch") is not None:
        checks.append(_kineto(report))
        checks += _stacks(report)
    return checks


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for "2.13.0+cpu"; empty if there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def dotted(version: Sequence[int]) -> str:
    """A version as text."""
    return ".".join(map(str, version))


def _python() -> Check:
    version, implementation = dotted(sys.version_info[:3]), sys.implementation.name
    name = f"Python {version}"
    if implementation != "cpython":
        return problem(
            "Python",
            f"{implementation} {version}: required compiled packages exist only for CPython",
            f"use CPython {dotted(OLDEST_PYTHON)} or later",
        )
    if sys.version_info[:2] < OLDEST_PYTHON:
        return problem(
            "Python", f"{name} is too old", f"use CPython {dotted(OLDEST_PYTHON)} or later"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return warning(
            "Python",
            f"{name}, free-threaded build: stepscope is not tested on it",
            "use the regular build if something goes wrong",
        )
    return ok("Python", f"{name} at {sys.executable}")


def _torch(report: TorchReport) -> Check:
    found = report.result("torch")
    if found is None:
        return _torch_failed(report)
    version = str(found["version"])
    if version_of(version)[:2] < OLDEST_TORCH:
        return problem(
            "torch",
            f"torch {version} is too old: recording needs {dotted(OLDEST_TORCH)} or later",
            "pip install --upgrade torch; recorded runs can be read without it",
        )
    toolkits = (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU"))
    builds = [f"{word} {found[key]}" for key, word in toolkits if found.get(key)]
    build = f"built for {', '.join(builds)}" if builds else "built for the CPU only"
    return ok("torch", f"torch {version}, {build}, at {found['path']}")


def _torch_failed(report: TorchReport) -> Check:
    why = report.failure("torch")
    if re.match(r"ModuleNotFoundError: No module named '(torch|stepscope)'", why):
        detail = "not installed: this Python can read runs and traces, but not record"
        return absent("torch", detail, "pip install torch, in the environment that trains")
    words = f"; last line: {report.last_line}" if report.last_line else ""
    return problem(
        "torch",
        f"importing torch failed: {why}{words}",
        'run `python -c "import torch"`; if it fails, reinstall torch; if it is only slow (a cold '
        "network disk), try again with a longer --timeout",
    )


def _kineto(report: TorchReport) -> Check:
    found = report.result("torch") or {}
    if found.get("kineto"):
        activities = ", ".join(found.get("activities", ())) or "none"
        return ok("Kineto", f"torch's profiler records: {activities}")
    return problem(
        "Kineto",
        "this torch is built without Kineto, so its profiler writes no traces",
        "install a torch with Kineto, such as the official packages",
    )


def _stacks(report: TorchReport) -> list[Check]:
    """A crash that no short recording shows: the tracer took an object for a dictionary.

    The fix (pytorch#153848) is in 2.7.1 and not in 2.7.0, by the symbols that the packages import.
    """
    found = report.result("torch") or {}
    is_safe = version_of(str(found.get("version"))) >= _SAFE_TORCH
    if is_safe or sys.version_info[:2] < _CRASHING_PYTHON:
        return []
    return [
        warning(
            "stacks on Python 3.13",
            "with_stack=True can crash the training (segmentation fault) with torch before 2.7.1 "
            "on Python 3.13 and later",
            "leave with_stack off, or upgrade torch to 2.7.1 or later",
        )
    ]
