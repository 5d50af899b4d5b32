"""Let DDP plan for a graph that never changes."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.ddp import ANSWERS, APPLIES_TO, change_ddp, why_not
from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    return why_not(facts) or Plan(
        True,
        "static_graph=True",
        ("DistributedDataParallel(..., static_graph=True)",),
        promise_basis="the findings promise what hiding all communication saves",
    )


def _apply(patches: Patches, value: Any) -> None:
    change_ddp(patches, {"static_graph": value})


FIX = Fix(
    name="ddp-static-graph",
    title="let DDP plan for a graph that never changes",
    answers=ANSWERS,
    applies_to=APPLIES_TO,
    risks="wrong if the parameters in use change from step to step",
    plan=_plan,
    apply=_apply,
)
