"""Uneven stages: one stage of a pipeline computes for longer than the others, which wait for it.

Measured on the ranks of a run that send and receive: what their GPUs compute in a step. What it
would bring to move layers to other stages depends on how they can be divided, and on the schedule;
it is at most what the slowest stage computes beyond the mean.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.severities import severity_of
from stepscope.advice.subject import Subject
from stepscope.run.figures import duration

ID = "uneven-stages"


def find(subject: Subject) -> list[Finding]:
    """The finding, on the rank whose stage computes longest, if that is notably longer."""
    slow = subject.slow_stage
    step_ns = subject.step_ns
    if slow is None or slow.rank != subject.rank or not step_ns:
        return []
    share = (slow.compute_ns - slow.mean_ns) / step_ns
    if share < subject.thresholds.uneven_stages:
        return []
    beyond_ns = slow.compute_ns - slow.mean_ns
    return [
        Finding(
            id=ID,
            title=f"its stage of the pipeline computes {duration(slow.compute_ns)} per step, the "
            f"others {duration(slow.others_ns)} on average",
            severity=severity_of(share, subject.thresholds),
            rank=subject.rank,
            saving_ns=None,
            saving_reason="it depends on how the layers can be divided, and on the schedule; at "
            f"most {duration(beyond_ns)} per step",
            assumption="",
            predicted_step_ns=None,
            evidence=(
                Evidence("computing per step", slow.compute_ns, "ns"),
                Evidence("on the other stages, on average", slow.others_ns, "ns"),
                Evidence("beyond the mean of all stages", beyond_ns, "ns"),
                Evidence("ranks compared", slow.ranks, "count"),
            ),
            steps=(),
            advice="Move layers from this stage to others (embedding and output layers count as "
            "well), or see what makes it slower: its own findings, its GPU's clock.",
        )
    ]
