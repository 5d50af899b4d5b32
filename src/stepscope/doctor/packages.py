"""Python packages: required ones, optional ones, and frameworks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from importlib import metadata

from stepscope.doctor.check import Check, absent, ok, problem
from stepscope.doctor.python_and_torch import dotted, version_of

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
