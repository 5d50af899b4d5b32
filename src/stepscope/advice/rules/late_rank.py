"""Late rank: the other ranks wait for this one in every step.

Measured from the step records of all ranks, without a trace (`stepscope.run.rank_skew` has the
definition), else from when each rank arrives at the collectives in the recorded windows, and what
its waits in them cost it: the step, replayed without them. The saving assumes that the late ranks
come no later than the next one: then the step is shorter by what that one waits.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import duration, percent, ranks_in_words
from stepscope.run.rank_skew import ARRIVALS, STEP_BORDERS, RankSkew

ID = "late-rank"

_ADVICE = (
    "Compare what this rank does with the others: its wait for input, its forward, what it alone "
    "does (logging, saving), its batches' sizes, its machine's load and its GPU's clock. Record a "
    "window on it and on another rank."
)
_BY_COMPUTE = (
    "Its GPU computes for longer. Compare its kernels with another rank's (`stepscope compare` of "
    "both traces): with the same kernels, only longer, its GPU is slower (clock, temperature, "
    "other programs: `stepscope monitor`); with more or larger ones, it has more to do (batch "
    "sizes, sequence lengths, tokens of its experts, layers)."
)
_MOSTLY = 0.5
_NOTABLY = 0.25
_MOST_PARTS = 3


def find(subject: Subject) -> list[Finding]:
    """The finding, on the rank that comes last, if waiting for it is worth it."""
    skew = subject.skew
    limits = subject.thresholds
    if skew is None or not is_late(skew, limits):
        return []
    if subject.rank != skew.late[0]:
        return []
    where = f"{ranks_in_words(skew.late)} come{'' if len(skew.late) > 1 else 's'}"
    basis = skew.basis if skew.basis in (STEP_BORDERS, ARRIVALS) else f"time in {skew.basis}"
    how = f"last in {percent(skew.last_share)} of the steps, and the others wait"
    if skew.basis == ARRIVALS:
        whom = "them" if len(skew.late) > 1 else "it"
        how = f"late: the others wait for {whom} at collectives"
    step_ns = subject.step_ns or skew.step_ns
    longer = [one for one in subject.longer_parts if one.more_ns >= _NOTABLY * skew.wait_ns]
    if longer and longer[0].more_ns >= _MOSTLY * skew.wait_ns:
        there = "on them" if len(skew.late) > 1 else "on it"
        how += f", and '{longer[0].name}' takes {duration(longer[0].more_ns)} longer {there}"
    saving_ns = min(skew.saving_ns, step_ns)
    return [
        Finding(
            id=ID,
            title=f"{where} {how}",
            severity=Severity.HIGH if skew.share >= limits.late_rank_high else Severity.MEDIUM,
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason="",
            assumption="the late ranks come no later than the next one, and the others stay as "
            "they are",
            predicted_step_ns=step_ns - saving_ns,
            evidence=(
                Evidence("what another rank waits, per step", skew.wait_ns, "ns"),
                Evidence("share of the step", skew.share, "share"),
                Evidence("who comes late", ranks_in_words(skew.late), "text"),
                *(
                    Evidence(
                        f"'{one.name}' per step",
                        f"{duration(one.late_ns)}, {duration(one.others_ns)} on the others",
                        "text",
                    )
                    for one in longer[:_MOST_PARTS]
                ),
                Evidence("taken from", basis, "text"),
                Evidence("steps compared", skew.steps, "count"),
                *([Evidence("clocks are right to", skew.error_ns, "ns")] if skew.error_ns else []),
            ),
            steps=(),
            advice=_BY_COMPUTE if longer and longer[0].name == "compute" else _ADVICE,
        )
    ]


def is_late(skew: RankSkew, limits: Thresholds) -> bool:
    """Whether the others wait notably for the late ranks, and the step is shorter without that."""
    is_worth_it = skew.saving_ns >= limits.saving_low * skew.step_ns
    return skew.is_notable and skew.share >= limits.late_rank and is_worth_it
