"""Uneven stages: one stage of a pipeline computes for longer than the others, which wait for it.

Measured on the ranks of a run that send and receive: what their GPUs compute in a step. The saving
is by the replay of all ranks (`analysis.blame.stages`), where the stage computes longer beyond
chance. What it would bring to move layers to other stages depends on how they can be divided, and
on the schedule.
"""

from __future__ import annotations

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.severities import severity_of
from stepscope.run.figures import duration, ranks_in_words

ID = "uneven-stages"
_OF_A_PIPELINE = (
    "Move layers from this stage to others (embedding and output layers count as well), or see "
    "what makes it slower: its own findings, its GPU's clock."
)
_OF_A_RING = (
    "Even out what the ranks compute, or see what makes this one slower: its own findings, its "
    "GPU's clock. All ranks have as many sends and receives: in a ring, as of context parallelism, "
    "look at sequence lengths and the order of chunks under a causal mask; in a pipeline whose "
    "stages have several chunks of layers each, move layers from this rank to others."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, on the rank whose stage computes longest, if that is notably longer."""
    slow = subject.slow_stage
    step_ns = subject.step_ns
    if slow is None or slow.ranks[0] != subject.rank or not step_ns:
        return []
    share = (slow.compute_ns - slow.mean_ns) / step_ns
    if share < subject.thresholds.uneven_stages:
        return []
    beyond_ns = slow.compute_ns - slow.mean_ns
    named = ranks_in_words(slow.ranks)
    who, others = "its stage of the pipeline computes", "the others"
    each, what = "stages", "layers"
    if len(slow.ranks) > 1:
        who = f"the stage of {named} computes"
    elif slow.may_be_ring:
        who, others = f"{named} computes", "the ranks that it exchanges data with"
        each, what = "ranks", "work"
    saving_ns = None if slow.saving_ns is None else min(slow.saving_ns, step_ns)
    return [
        Finding(
            id=ID,
            title=f"{who} {duration(slow.compute_ns)} per step, {others} "
            f"{duration(slow.others_ns)} on average",
            severity=severity_of(max(share, (saving_ns or 0) / step_ns), subject.thresholds),
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason=""
            if saving_ns is not None
            else f"it depends on how the {what} can be divided, and on the schedule; at "
            f"most {duration(beyond_ns)} per step",
            assumption=""
            if saving_ns is None
            else f"it computes as long as the others, as once what slows it down is gone; {what} "
            "that move make these longer",
            is_upper_bound=saving_ns is not None,
            predicted_step_ns=None if saving_ns is None else step_ns - saving_ns,
            evidence=(
                Evidence("computing per step", slow.compute_ns, "ns"),
                Evidence(f"on the other {each}, on average", slow.others_ns, "ns"),
                Evidence(f"beyond the mean of all {each}", beyond_ns, "ns"),
                Evidence("computes longest", named, "text"),
                Evidence(f"{each} compared", slow.stages, "count"),
            ),
            steps=(),
            advice=_OF_A_RING if slow.may_be_ring else _OF_A_PIPELINE,
        )
    ]
