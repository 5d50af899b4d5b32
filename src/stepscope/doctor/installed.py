"""What is installed: Python, torch, required and optional packages, frameworks."""

from __future__ import annotations

import contextlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

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
    text = f"; last line: {report.last_line}" if report.last_line else ""
    return problem(
        "torch",
        f"importing torch failed: {why}{text}",
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


USES = {
    "fleet": "--engine dask",
    "http": "traces and runs at http(s) URLs",
    "mcp": "stepscope mcp",
    "mlflow": "stepscope monitor --mlflow",
    "otel": "stepscope monitor --otlp",
    "perfetto": "stepscope view --perfetto without the internet",
    "prometheus": "stepscope monitor --prometheus",
    "tensorboard": "looking at what `stepscope monitor --tensorboard` writes",
    "wandb": "stepscope monitor --wandb",
    "xlsx": "stepscope export --to xlsx",
    "zstd": "traces compressed with zstd (.json.zst)",
}
"""Extra to the only thing that needs it. torch, py-spy and memray are checked elsewhere."""
_REQUIREMENT = re.compile(r"([\w.-]+)>=([\d.]+)(?:;.*\bextra == ['\"]([\w-]+)['\"])?")

FRAMEWORKS = (
    "accelerate",
    "deepspeed",
    "lightning",
    "megatron-core",
    "mosaicml",
    "pytorch-lightning",
    "torchtitan",
    "transformers",
    "trl",
)


def requirements() -> dict[str, dict[str, tuple[int, ...]]]:
    """Packages with their oldest versions by extra, "" for a plain installation.

    They are those of this package's own metadata. Where a later Python needs a later version, the
    first counts.
    """
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for line in metadata.requires("stepscope") or ():
        if match := _REQUIREMENT.match(line):
            oldest = found.setdefault(match[3] or "", {})
            oldest.setdefault(match[1], version_of(match[2]))
    return found


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, by its metadata; nothing is imported."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_packages() -> list[Check]:
    """Check the installed packages."""
    by_extra: dict[str, dict[str, tuple[int, ...]]] = {}
    with contextlib.suppress(metadata.PackageNotFoundError):  # it runs from a folder of its source
        by_extra = requirements()
    optional = [_optional(extra, by_extra[extra]) for extra in USES if extra in by_extra]
    return [*_core(by_extra.get("", {})), *optional, _frameworks()]


def _core(required: Mapping[str, tuple[int, ...]]) -> list[Check]:
    checks, good = [], []
    for name, oldest in required.items():
        found = installed_version(name)
        wanted = f'pip install "{name}>={dotted(oldest)}"'
        if found is None:
            checks.append(problem(name, "missing", wanted))
        elif version_of(found) < oldest:
            text = f"version {found} is too old: {dotted(oldest)} or later is required"
            checks.append(problem(name, text, wanted))
        else:
            good.append(f"{name} {found}")
    if good:
        checks.append(ok("required", ", ".join(good)))
    return checks


def _optional(extra: str, names: Iterable[str]) -> Check:
    found = {name: installed_version(name) for name in names}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        return absent(
            f"extra {extra}",
            f"{', '.join(missing)} not installed; needed only for {USES[extra]}",
            f'pip install "stepscope[{extra}]"',
        )
    return ok(f"extra {extra}", ", ".join(f"{name} {number}" for name, number in found.items()))


def _frameworks() -> Check:
    found = {name: installed_version(name) for name in FRAMEWORKS}
    text = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    return ok("frameworks", text or "no known framework is installed")
