"""Imbalance: in each step some rank has more work than the others, and it is not always the same.

Measured from the work and the waits of all ranks (`advice.imbalance` has the definitions). The
saving assumes that all ranks have as much work in a step as they have on average.
"""

from __future__ import annotations

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.severities import severity_of
from stepscope.run.figures import duration, percent

ID = "imbalance"
_ADVICE = (
    "Give all ranks as much work in each step: sort samples by length into buckets and let all "
    "ranks draw from the same one (a length-grouped sampler), pack short sequences into one of "
    "fixed length, or fill each batch up to a number of tokens instead of samples. With experts, "
    "balance their load (auxiliary loss, capacity factor)."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, on the rank that stands for all, if ranks wait notably."""
    found, step_ns = subject.imbalance, subject.step_ns
    if found is None or not step_ns:
        return []
    saving_ns = min(found.wait_ns, step_ns)
    share = saving_ns / step_ns
    if share < subject.thresholds.imbalance:
        return []
    return [
        Finding(
            id=ID,
            title=f"ranks have unequal work: the one with the most in a step has "
            f"{duration(found.most_ns)}, the mean is {duration(found.mean_ns)}, and the others "
            "wait for it; which one it is changes",
            severity=severity_of(share, subject.thresholds),
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason="",
            assumption="all ranks have the mean of the work in each step",
            predicted_step_ns=step_ns - saving_ns,
            evidence=(
                Evidence("what a rank waits per step, on average", found.wait_ns, "ns"),
                Evidence("share of the step", share, "share"),
                Evidence("most work of a rank in a step", found.most_ns, "ns"),
                Evidence("mean work of the ranks", found.mean_ns, "ns"),
                Evidence("ranks that have the most in some step", found.turns, "count"),
                Evidence("ranks compared", found.ranks, "count"),
                Evidence("steps compared", found.steps, "count"),
                Evidence(
                    "lateness follows work with a correlation of",
                    percent(found.correlation),
                    "text",
                ),
            ),
            steps=(),
            advice=_ADVICE,
        )
    ]
