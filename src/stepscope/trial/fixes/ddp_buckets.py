"""Send gradients in larger buckets."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.ddp import ANSWERS, APPLIES_TO, change_ddp, why_not
from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    return why_not(facts) or Plan(
        100,
        "bucket_cap_mb=100",
        ("DistributedDataParallel(..., bucket_cap_mb=100)",),
        promise_basis="the findings promise what hiding all communication saves",
    )


def _apply(patches: Patches, value: Any) -> None:
    change_ddp(patches, {"bucket_cap_mb": value})


FIX = Fix(
    name="ddp-buckets",
    title="send gradients in larger buckets",
    answers=ANSWERS,
    applies_to=APPLIES_TO,
    risks="sending begins later; sums round differently",
    plan=_plan,
    apply=_apply,
)
