"""Late rank: the other ranks wait for this one in every step.

Measured from the step records of all ranks, without a trace (`stepscope.skew.rank_skew` has the
definition), and from when each rank arrives at the collectives in the recorded windows
(`stepscope.advice.job.accused` puts both together). The saving assumes that late ranks come as the
others do, which may make them the last at times.
"""

from __future__ import annotations

from dataclasses import replace

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import duration, percent, ranks_in_words
from stepscope.skew.course import Course, EveryNth, FromOneStep, InSomeSteps, Rising
from stepscope.skew.rank_causes import SLOW_LINK, in_words
from stepscope.skew.rank_skew import ARRIVALS, OFF_CPU, RECORDED_WAITS, STEP_BORDERS, RankSkew

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
_BY_LINK = (
    "Look at the links between these ranks first: their transfers take far longer than others of "
    "the same size (`stepscope show collectives` on all ranks' traces compares the bandwidths of "
    "the groups). Cables, switches, the choice of the network interface, and ranks that share one."
)
_EVERY_NTH = (
    "Find what this rank alone does every {0} steps: saving, evaluation, logging. Do it less "
    "often, beside the training (an asynchronous checkpoint, another thread), or spread it over "
    "the ranks. A window over one of these steps on this rank shows it."
)
_RISING = (
    "See what grows on this rank alone: a list or cache that it keeps, its process's memory, its "
    "samples' length, its GPU's temperature while the clock falls (`stepscope monitor`). Record a "
    "window early and one late on it, and compare them (`stepscope compare`)."
)
_FROM_ONE_STEP = (
    "See what began on this rank about step {0}: another program on its machine, a lower clock of "
    "its GPU (`stepscope monitor`), larger batches, what its logs say. Record a window on it and "
    "on another rank."
)
_MOSTLY = 0.5
_NOTABLY = 0.25
_MOST_PARTS = 3


def find(subject: Subject) -> list[Finding]:
    """The finding, on the rank that comes last, if waiting for it is worth it."""
    skew = subject.skew
    limits = subject.thresholds
    if skew is None or not skew.accuses or not is_late(skew, limits):
        return []
    if subject.rank != skew.late[0]:
        return []
    basis = (
        skew.basis if skew.basis in (STEP_BORDERS, ARRIVALS, OFF_CPU) else f"time in {skew.basis}"
    )
    step_ns = subject.step_ns or skew.step_ns
    longer = [one for one in subject.longer_parts if one.more_ns >= _NOTABLY * skew.wait_ns]
    is_mostly_one = bool(longer) and longer[0].more_ns >= _MOSTLY * skew.wait_ns
    says_the_same = is_mostly_one and f" {longer[0].name} takes" in skew.cause
    how = _how(replace(skew, cause="") if says_the_same else skew)
    if is_mostly_one:
        there = "on them" if len(skew.late) > 1 else "on it"
        how += f", and '{longer[0].name}' takes {duration(longer[0].more_ns)} longer {there}"
    saving_ns = min(skew.saving_ns, step_ns)
    return [
        Finding(
            id=ID,
            title=f"{ranks_in_words(skew.late)} {how}",
            severity=Severity.HIGH if skew.share >= limits.late_rank_high else Severity.MEDIUM,
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason="",
            assumption="the late ranks come as the others do, and these stay as they are",
            predicted_step_ns=step_ns - saving_ns,
            evidence=(
                Evidence("what another rank waits, per step", skew.wait_ns, "ns"),
                Evidence("share of the step", skew.share, "share"),
                Evidence("who comes late", ranks_in_words(skew.late), "text"),
                *([Evidence("why", skew.cause, "text")] if skew.cause else []),
                *_course(skew.course),
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
            steps=skew.course.steps if isinstance(skew.course, EveryNth | InSomeSteps) else (),
            advice=_advice(skew, bool(longer) and longer[0].name == "compute"),
        )
    ]


def _how(skew: RankSkew) -> str:
    """How ranks come late, and when."""
    several = len(skew.late) > 1
    comes, course = "come" if several else "comes", skew.course
    if skew.basis == ARRIVALS:
        late = f"{comes} late"
        if isinstance(course, Rising):
            late = f"{comes} later from step to step"
        elif course is not None:
            is_part = isinstance(course, EveryNth) and not course.only
            late += f"{',' if is_part else ''} {course.words}"
        why = f"; {skew.cause}" if skew.cause else ""
        return f"{late}: the others wait for {'them' if several else 'it'} at collectives{why}"
    if isinstance(course, EveryNth) and course.only:
        return f"{comes} last {course.words}, and the others wait"
    often = f"{percent(skew.last_share)} of the steps"
    if skew.basis == RECORDED_WAITS:
        last = round(skew.last_share * skew.steps)
        often = f"{'all' if last == skew.steps else f'{last} of'} {skew.steps} recorded steps"
    words = f"{comes} last in {often}, and the others wait"
    if course is not None:
        return f"{words} {_longer(course)}"
    return f"{words}; {skew.cause}" if skew.cause else words


def _longer(course: Course) -> str:
    if isinstance(course, FromOneStep):
        return f"longer {course.words}"
    return "longer from step to step" if isinstance(course, Rising) else course.words


def _course(course: Course | None) -> tuple[Evidence, ...]:
    """How the wait changes over the steps."""
    if course is None:
        return ()
    is_growing = isinstance(course, Rising | FromOneStep)
    label = "the wait grows" if is_growing else "the others wait"
    return (Evidence(label, course.evidence, "text"),)


def _advice(skew: RankSkew, is_compute: bool) -> str:
    course = skew.course
    if skew.cause in {in_words(SLOW_LINK), in_words(SLOW_LINK, several=True)}:
        return _BY_LINK
    if isinstance(course, EveryNth):
        return _EVERY_NTH.format(course.every)
    if isinstance(course, Rising):
        return _RISING
    if isinstance(course, FromOneStep):
        return _FROM_ONE_STEP.format(course.step)
    return _BY_COMPUTE if is_compute else _ADVICE


def is_late(skew: RankSkew, limits: Thresholds) -> bool:
    """Whether the others wait notably for the late ranks, and the step is shorter without that."""
    is_worth_it = skew.saving_ns >= limits.saving_low * skew.step_ns
    return skew.is_notable and skew.share >= limits.late_rank and is_worth_it
