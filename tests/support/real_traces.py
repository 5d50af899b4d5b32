"""Real GPU traces to test against, each read once, where they are at hand (`STEPSCOPE_TRACES`)."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from tests.support.traces import trace_path

ROOT = Path(
    os.environ.get("STEPSCOPE_TRACES", Path(__file__).parents[2] / ".." / "shared" / "traces")
)
NAMES = (
    "a100_nccl_train/trace.json.gz",
    *(f"amd_resnet_ddp_4rank/rank{rank}.pt.trace.json.gz" for rank in range(4)),
    "h100_qwen_inference/trace.json.gz",
    "h100_timesformer_inference/trace.json.gz",
    "hta_trace_diff/control.json.gz",
    "hta_trace_diff/test.json.gz",
    "mi300x_resnet_train/trace.json.gz",
    "v100_dataloader_contrast/num_workers_0_worker0.1623143089861.pt.trace.json.gz",
    "v100_dataloader_contrast/num_workers_0_worker0.1623143566756.pt.trace.json.gz",
    "v100_dataloader_contrast/num_workers_4_worker0.1623212756351.pt.trace.json.gz",
    "v100_dataloader_contrast/num_workers_4_worker0.1623213129365.pt.trace.json.gz",
    *(f"v100_dlrm_8rank/rank{rank}.pt.trace.json.gz" for rank in range(8)),
    "v100_train_5steps/trace.json.gz",
)
"""Every trace at hand in Kineto's format."""
_LIKE_OTHERS = (
    *(f"amd_resnet_ddp_4rank/rank{rank}." for rank in (1, 2)),
    *(f"v100_dlrm_8rank/rank{rank}." for rank in range(1, 7)),
    "v100_dataloader_contrast/num_workers_0_worker0.1623143566756.",
    "v100_dataloader_contrast/num_workers_4_worker0.1623212756351.",
)
"""Ranks and windows of a job of which others are tested: only where the slow tests run."""
EACH = [
    pytest.param(name, marks=pytest.mark.slow) if name.startswith(_LIKE_OTHERS) else name
    for name in NAMES
]
"""`NAMES` to parametrise with."""


def real_trace(name: str) -> Trace:
    """A real trace, read once per test session; skips the test where it is absent."""
    return _load(str(trace_path(name)))


def path_of(name: str) -> Path:
    """The path of one trace; skips the test where it is absent."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{path} is not at hand; set STEPSCOPE_TRACES")
    return path


def load_real(name: str) -> Trace:
    """One trace, read once for several tests; skips the test where it is absent."""
    return _load(str(path_of(name)))


@functools.cache
def diagnosis_of(name: str) -> Diagnosis:
    """The diagnosis of one trace, made once for several tests; skips where it is absent."""
    return diagnose(open_run(str(path_of(name))))


@functools.cache
def _load(path: str) -> Trace:
    return load(path)
