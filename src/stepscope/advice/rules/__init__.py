"""Rules by cause: one module each, named after its id, with `ID` and `find(subject)`.

Rules import the analyses that they need, so each is imported only when it is asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Finding

_CAUSES = {
    "input-bound": "input",
    "slow-epoch-start": "input",
    "launch-bound": "host",
    "cpu-bound-python": "host",
    "busy-cpus": "host",
    "synchronisation": "host",
    "pageable-copies": "copies",
    "exposed-copies": "copies",
    "exposed-communication": "communication",
    "abnormal-collective": "communication",
    "poor-overlap": "communication",
    "pipeline-bubble": "communication",
    "uneven-stages": "communication",
    "many-small-collectives": "communication",
    "rank-waiting": "communication",
    "late-rank": "communication",
    "imbalance": "communication",
    "throttled-gpu": "compute",
    "allocator-churn": "memory",
    "out-of-memory": "memory",
    "memory-leak": "memory",
    "python-memory-leak": "memory",
    "memory-fragmented": "memory",
    "reserved-without-bound": "memory",
    "memory-near-limit": "memory",
    "memory-far-below-limit": "memory",
    "optimizer-state-dominates": "memory",
    "activations-dominate": "memory",
    "one-tensor-dominates": "memory",
    "low-gpu-utilisation": "host",
    "tensor-cores-unused": "compute",
    "full-precision-matmuls": "compute",
    "unfused-attention": "compute",
    "slow-matmuls": "compute",
    "fusible-pattern": "compute",
    "unfused-elementwise": "compute",
    "layout-copies": "copies",
    "unfused-optimizer": "host",
    "gpu-unused": "host",
    "slow-random-numbers": "compute",
    "zeroed-gradients": "host",
    "many-small-kernels": "host",
    "heavy-recomputation": "compute",
    "slow-phase": "steps",
    "slow-first-steps": "steps",
    "one-off-costs": "steps",
    "stalled-step": "steps",
    "uneven-steps": "steps",
    "recompilation": "steps",
    "compilation-in-window": "steps",
    "garbage-collector": "host",
    "profiler-overhead": "recording",
    "trace-incomplete": "recording",
}
"""Every rule, in the order in which they are asked, and the package that its module stands in."""


class _Rules(Mapping[str, Callable[[Subject], list[Finding]]]):
    """Rules by id; a rule's module is imported when it is looked up."""

    def __getitem__(self, rule: str) -> Callable[[Subject], list[Finding]]:
        name = f"{__name__}.{_CAUSES[rule]}.{rule.replace('-', '_')}"
        module = importlib.import_module(name)
        return cast(Callable[[Subject], list[Finding]], module.find)

    def __iter__(self) -> Iterator[str]:
        return iter(_CAUSES)

    def __len__(self) -> int:
        return len(_CAUSES)


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
