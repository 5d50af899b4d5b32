"""Give each rank of a machine CPUs of its own."""

from __future__ import annotations

import os
from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    if facts.local_ranks < 2:
        return "a single rank has the machine to itself"
    if facts.cpus < 2 * facts.local_ranks:
        return f"{facts.cpus} CPUs are too few to divide among {facts.local_ranks} ranks"
    if not hasattr(os, "sched_setaffinity"):
        return "this system has no CPU affinity"
    share = facts.cpus // facts.local_ranks
    return Plan(
        facts.local_ranks,
        f"{share} CPUs of its own for each rank",
        (f"os.sched_setaffinity(0, range(local_rank * {share}, (local_rank + 1) * {share}))",),
    )


def _apply(patches: Patches, ranks: Any) -> None:
    import torch

    before = sorted(os.sched_getaffinity(0))
    share = len(before) // ranks
    first = int(os.environ["LOCAL_RANK"]) * share
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, before[first : first + share])
    torch.set_num_threads(min(threads, share))
    patches.later(lambda: os.sched_setaffinity(0, before))
    patches.later(lambda: torch.set_num_threads(threads))
    patches.did(f"CPUs {before[first]} to {before[first + share - 1]}")


FIX = Fix(
    name="cpu-affinity",
    title="give each rank of a machine CPUs of its own",
    answers=("busy-cpus", "late-rank", "rank-waiting"),
    applies_to="several ranks on a machine with at least two CPUs for each",
    risks="a rank cannot use CPUs that others leave idle",
    plan=_plan,
    apply=_apply,
)
