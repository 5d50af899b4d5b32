"""One module per rule, named after its id, with `ID` and `find(subject)`, which returns findings.

Rules import the analyses that they need, so each is imported only when it is asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from stepscope.advice.finding import Finding
from stepscope.advice.subject import Subject

_IDS = (
    "input-bound",
    "slow-epoch-start",
    "launch-bound",
    "cpu-bound-python",
    "busy-cpus",
    "synchronisation",
    "pageable-copies",
    "exposed-copies",
    "exposed-communication",
    "abnormal-collective",
    "poor-overlap",
    "pipeline-bubble",
    "uneven-stages",
    "many-small-collectives",
    "rank-waiting",
    "late-rank",
    "imbalance",
    "throttled-gpu",
    "allocator-churn",
    "out-of-memory",
    "memory-leak",
    "python-memory-leak",
    "memory-fragmented",
    "reserved-without-bound",
    "memory-near-limit",
    "memory-far-below-limit",
    "optimizer-state-dominates",
    "activations-dominate",
    "one-tensor-dominates",
    "low-gpu-utilisation",
    "tensor-cores-unused",
    "full-precision-matmuls",
    "unfused-attention",
    "slow-matmuls",
    "fusible-pattern",
    "unfused-elementwise",
    "layout-copies",
    "unfused-optimizer",
    "gpu-unused",
    "slow-random-numbers",
    "zeroed-gradients",
    "many-small-kernels",
    "heavy-recomputation",
    "slow-phase",
    "slow-first-steps",
    "one-off-costs",
    "stalled-step",
    "uneven-steps",
    "recompilation",
    "compilation-in-window",
    "garbage-collector",
    "profiler-overhead",
    "trace-incomplete",
)


class _Rules(Mapping[str, Callable[[Subject], list[Finding]]]):
    """Rules by id; a rule's module is imported when it is looked up."""

    def __getitem__(self, rule: str) -> Callable[[Subject], list[Finding]]:
        if rule not in _IDS:
            raise KeyError(rule)
        module = importlib.import_module(f"{__name__}.{rule.replace('-', '_')}")
        return cast(Callable[[Subject], list[Finding]], module.find)

    def __iter__(self) -> Iterator[str]:
        return iter(_IDS)

    def __len__(self) -> int:
        return len(_IDS)


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
