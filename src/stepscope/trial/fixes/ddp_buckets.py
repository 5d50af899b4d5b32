"""Send gradients in larger buckets."""

from __future__ import annotations

from stepscope.trial.fixes.ddp import ddp_fix

FIX = ddp_fix(
    name="ddp-buckets",
    title="send gradients in larger buckets",
    argument="bucket_cap_mb",
    value=100,
    risks="sending begins later; sums round differently",
)
