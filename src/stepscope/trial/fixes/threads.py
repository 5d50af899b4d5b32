"""Use fewer threads within an operator: no more than the process has CPUs for."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.settings import hold


def _plan(facts: Facts) -> Plan | str:
    if facts.threads == 1:
        return "torch uses a single thread"
    mine = max(1, facts.cpus // facts.local_ranks)
    number = max(1, mine - min(facts.loader_workers or 0, mine - 1))
    if number >= facts.threads:
        number = facts.threads // 2
    return Plan(
        number,
        f"intra-op threads {facts.threads} → {number}",
        (f"torch.set_num_threads({number})",),
    )


def _apply(patches: Patches, number: Any) -> None:
    hold(patches, "num_threads", number)


FIX = Fix(
    name="threads",
    title="use no more intra-op threads than there are CPUs to spare",
    answers=("busy-cpus",),
    applies_to="work on the CPU, and processes that share a machine",
    risks="too few threads slow large operators on the CPU; sums round differently",
    plan=_plan,
    apply=_apply,
    promised_by=("busy-cpus",),
)
