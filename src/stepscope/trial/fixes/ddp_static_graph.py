"""Let DDP plan for a graph that never changes."""

from __future__ import annotations

from stepscope.trial.fixes.ddp import ddp_fix

FIX = ddp_fix(
    name="ddp-static-graph",
    title="let DDP plan for a graph that never changes",
    argument="static_graph",
    value=True,
    risks="wrong if the parameters in use change from step to step",
)
