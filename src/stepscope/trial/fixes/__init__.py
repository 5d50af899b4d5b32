"""Fixes that can be tried without a word in the script: one module each, and their registry."""

from __future__ import annotations

from stepscope.trial.fixes import (
    loader_prefetch,
    loader_workers,
    persistent_workers,
    rare_gc,
    threads,
)
from stepscope.trial.fixes.fix import Fix

FIXES: dict[str, Fix] = {
    module.FIX.name: module.FIX
    for module in (
        loader_workers,
        loader_prefetch,
        persistent_workers,
        rare_gc,
        threads,
    )
}
"""Every fix by its name, in the order in which they are listed and tried."""
