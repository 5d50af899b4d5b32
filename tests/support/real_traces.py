"""Real GPU traces to test against, where they are at hand (`STEPSCOPE_TRACES`)."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

import stepscope
from stepscope.trace.model import Trace

ROOT = Path(
    os.environ.get("STEPSCOPE_TRACES", Path(__file__).parents[2] / ".." / "shared" / "traces")
)


def path_of(name: str) -> Path:
    """The path of one trace; skips the test where it is absent."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{path} is not at hand; set STEPSCOPE_TRACES")
    return path


@functools.lru_cache(maxsize=32)
def load_real(name: str) -> Trace:
    """One trace, read once for several tests; skips the test where it is absent."""
    return stepscope.load(path_of(name))


def all_names() -> list[str]:
    """Names of all traces at hand, for parametrising; one that will skip where there are none."""
    found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/*.json.gz"))
    return found or ["a100_nccl_train/trace.json.gz"]
