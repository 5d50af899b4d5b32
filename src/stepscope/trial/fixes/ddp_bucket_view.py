"""Let gradients be views of the buckets that are sent."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.ddp import ANSWERS, APPLIES_TO, change_ddp, why_not
from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    return why_not(facts) or Plan(
        True,
        "gradient_as_bucket_view=True",
        ("DistributedDataParallel(..., gradient_as_bucket_view=True)",),
        promise_basis="the findings promise what hiding all communication saves",
    )


def _apply(patches: Patches, value: Any) -> None:
    change_ddp(patches, {"gradient_as_bucket_view": value})


FIX = Fix(
    name="ddp-bucket-view",
    title="let gradients be views of the buckets that are sent",
    answers=ANSWERS,
    applies_to=APPLIES_TO,
    risks="code that calls detach_() on gradients fails",
    plan=_plan,
    apply=_apply,
)
