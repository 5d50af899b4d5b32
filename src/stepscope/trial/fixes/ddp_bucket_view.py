"""Let gradients be views of the buckets that are sent."""

from __future__ import annotations

from stepscope.trial.fixes.ddp import ddp_fix

FIX = ddp_fix(
    name="ddp-bucket-view",
    title="let gradients be views of the buckets that are sent",
    argument="gradient_as_bucket_view",
    value=True,
    risks="code that calls detach_() on gradients fails",
)
