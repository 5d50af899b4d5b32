"""Rules by cause: each is a function `find_…(subject)` with its id, in a module with its like.

Rules import the analyses that they need, so a module is imported only when one of its is asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Finding

_MODULES = {
    "input-bound": "input.input_bound",
    "slow-epoch-start": "input.slow_epoch_start",
    "launch-bound": "host.launches",
    "cpu-bound-python": "host.cpu_bound_python",
    "busy-cpus": "host.interruptions",
    "synchronisation": "host.launches",
    "pageable-copies": "copies",
    "exposed-copies": "copies",
    "exposed-communication": "communication.exposed",
    "abnormal-collective": "communication.abnormal_collective",
    "poor-overlap": "communication.exposed",
    "pipeline-bubble": "communication.waiting",
    "uneven-stages": "communication.ranks",
    "many-small-collectives": "communication.exposed",
    "rank-waiting": "communication.waiting",
    "late-rank": "communication.ranks",
    "imbalance": "communication.ranks",
    "throttled-gpu": "communication.ranks",
    "allocator-churn": "memory.windows",
    "out-of-memory": "memory.snapshots",
    "memory-leak": "memory.snapshots",
    "python-memory-leak": "memory.windows",
    "memory-fragmented": "memory.snapshots",
    "reserved-without-bound": "memory.snapshots",
    "memory-near-limit": "memory.windows",
    "memory-far-below-limit": "memory.windows",
    "optimizer-state-dominates": "memory.dominating",
    "activations-dominate": "memory.dominating",
    "one-tensor-dominates": "memory.dominating",
    "low-gpu-utilisation": "host.utilisation",
    "tensor-cores-unused": "compute.precision",
    "full-precision-matmuls": "compute.precision",
    "unfused-attention": "compute.work",
    "slow-matmuls": "compute.slow_matmuls",
    "fusible-pattern": "compute.fusion",
    "unfused-elementwise": "compute.fusion",
    "layout-copies": "copies",
    "unfused-optimizer": "host.optimizer",
    "gpu-unused": "host.utilisation",
    "cpu-operators": "host.utilisation",
    "slow-random-numbers": "compute.work",
    "zeroed-gradients": "host.optimizer",
    "many-small-kernels": "host.launches",
    "heavy-recomputation": "compute.work",
    "work-outside-steps": "steps.outside",
    "slow-phase": "steps.slow_phase",
    "slow-first-steps": "steps.first_steps",
    "one-off-costs": "steps.first_steps",
    "stalled-step": "steps.uneven",
    "uneven-steps": "steps.uneven",
    "recompilation": "steps.compilation",
    "compilation-in-window": "steps.compilation",
    "garbage-collector": "host.interruptions",
    "profiler-overhead": "recording",
    "trace-incomplete": "recording",
}
"""Every rule, in the order in which they are asked, and its module."""


class _Rules(Mapping[str, Callable[[Subject], list[Finding]]]):
    """Rules by id; a rule's module is imported when it is looked up."""

    def __getitem__(self, rule: str) -> Callable[[Subject], list[Finding]]:
        module = importlib.import_module(f"{__name__}.{_MODULES[rule]}")
        found = getattr(module, f"find_{rule.replace('-', '_')}")
        return cast(Callable[[Subject], list[Finding]], found)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


RULES: Mapping[str, Callable[[Subject], list[Finding]]] = _Rules()
"""Every rule by its id, in the order in which they are asked."""

OF_THE_RUN = ("late-rank", "imbalance", "throttled-gpu", "uneven-stages")
"""Rules that compare all ranks of the run, and need nothing of a window."""

OF_COMMUNICATION = frozenset({"exposed-communication", "rank-waiting", "poor-overlap"})
"""Rules whose findings may come from a rank that is late, and never make it late."""

OF_COMPUTE = frozenset(
    {
        "tensor-cores-unused",
        "full-precision-matmuls",
        "unfused-attention",
        "slow-matmuls",
        "fusible-pattern",
        "unfused-elementwise",
        "layout-copies",
        "heavy-recomputation",
    }
)
"""Rules about what the GPU computes: they make a rank late only if it computes for longer."""

_OF_MEMORY = (
    "out-of-memory",
    "memory-leak",
    "memory-fragmented",
    "reserved-without-bound",
    "optimizer-state-dominates",
    "activations-dominate",
    "one-tensor-dominates",
)
"""Rules that find nothing without recorded memory: a snapshot, or the host's in a trace."""


MEMORY_RULES = (*_OF_MEMORY, "memory-near-limit", "memory-far-below-limit")
"""Rules that a snapshot alone can answer, in the order in which they are asked."""


def rules_of_a_rank(has_memory: bool) -> tuple[str, ...]:
    """The rules to ask about one rank, in order.

    Args:
        has_memory: Whether the rank recorded its memory. Most did not, and what looks into such
            records takes as long to import as a tenth of all that a report needs.
    """
    left_out = OF_THE_RUN if has_memory else (*OF_THE_RUN, *_OF_MEMORY)
    return tuple(name for name in RULES if name not in left_out)
