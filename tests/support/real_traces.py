"""Real traces for conformance tests, each read once."""

from __future__ import annotations

import functools

from stepscope.trace.load import load
from stepscope.trace.model import Trace
from tests.support.traces import trace_path

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


def real_trace(name: str) -> Trace:
    """A real trace, read once per test session; skips the test where it is absent."""
    return _load(str(trace_path(name)))


@functools.cache
def _load(path: str) -> Trace:
    return load(path)
