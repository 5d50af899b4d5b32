"""Fixes that can be tried without a word in the script: one module each, and their registry."""

from __future__ import annotations

from stepscope.trial.fixes import (
    allocator,
    compiled_model,
    cpu_affinity,
    cudnn_benchmark,
    ddp_bucket_view,
    ddp_buckets,
    ddp_static_graph,
    foreach_optimizer,
    fused_optimizer,
    loader_prefetch,
    loader_workers,
    non_blocking,
    persistent_workers,
    pin_memory,
    rare_gc,
    tf32,
    threads,
    zero_grad_none,
)
from stepscope.trial.fixes.fix import Fix

FIXES: dict[str, Fix] = {
    module.FIX.name: module.FIX
    for module in (
        loader_workers,
        loader_prefetch,
        persistent_workers,
        pin_memory,
        non_blocking,
        rare_gc,
        threads,
        cpu_affinity,
        fused_optimizer,
        foreach_optimizer,
        zero_grad_none,
        tf32,
        cudnn_benchmark,
        ddp_bucket_view,
        ddp_static_graph,
        ddp_buckets,
        allocator,
        compiled_model,
    )
}
"""Every fix by its name, in the order in which they are listed and tried."""
