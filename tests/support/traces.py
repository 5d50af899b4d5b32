"""Where the real traces lie that conformance tests run on, and reading each of them once."""

import functools
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("STEPSCOPE_TRACES", ROOT.parent / "shared" / "traces"))

KINETO = (
    "a100_nccl_train/trace.json.gz",
    "amd_resnet_ddp_4rank/rank0.pt.trace.json.gz",
    "h100_qwen_inference/trace.json.gz",
    "h100_timesformer_inference/trace.json.gz",
    "hta_trace_diff/control.json.gz",
    "hta_trace_diff/test.json.gz",
    "mi300x_resnet_train/trace.json.gz",
    "v100_dataloader_contrast/num_workers_4_worker0.1623212756351.pt.trace.json.gz",
    "v100_dlrm_8rank/rank0.pt.trace.json.gz",
    "v100_train_5steps/trace.json.gz",
)
"""One trace of each kind."""


def trace_path(name):
    """Path of a real trace; skips the test where it is absent."""
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"no {name} in {TRACES} (set STEPSCOPE_TRACES)")
    return path


@functools.cache
def read_tables(name):
    """Tables of a real trace, read once."""
    from tests.support.real_traces import real_trace

    return real_trace(name).tables()


@functools.cache
def read_derived(name):
    """Everything derived from a real trace, once."""
    from stepscope.trace.derive.columns import derive

    return derive(read_tables(name))
