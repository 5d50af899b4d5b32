"""Rules that compare all ranks of the run, and need nothing of a window."""

from __future__ import annotations

from dataclasses import replace

from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.finding import Evidence, Finding, Severity, seen, severity_of
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import duration, percent, rank_names
from stepscope.skew.course import Course, EveryNth, FromOneStep, InSomeSteps, Rising
from stepscope.skew.rank_causes import SLOW_STAGE, cause_clause, means_slow_link
from stepscope.skew.rank_skew import ARRIVALS, OFF_CPU, RECORDED_WAITS, STEP_BORDERS, RankSkew

_ADVICE_ON_LATE = (
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


def find_late_rank(subject: Subject) -> list[Finding]:
    """Late rank: the other ranks wait for this one in every step.

    Measured from the step records of all ranks, without a trace (`stepscope.skew.rank_skew` has the
    definition), and from when each rank arrives at the collectives in the recorded windows
    (`stepscope.advice.job.stragglers` puts both together). The saving assumes that late ranks come
    as the others do, which may make them the last at times.
    """
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
    is_same = is_mostly_one and f" {longer[0].name} takes" in skew.cause
    how = _how(replace(skew, cause="") if is_same else skew)
    if is_mostly_one:
        there = "on them" if len(skew.late) > 1 else "on it"
        how += f", and '{longer[0].name}' takes {duration(longer[0].more_ns)} longer {there}"
    return plain_finding(
        subject,
        rule="late-rank",
        title=f"{rank_names(skew.late)} {how}",
        severity=Severity.HIGH if skew.share >= limits.late_rank_high else Severity.MEDIUM,
        step_ns=step_ns,
        saving_ns=min(skew.saving_ns, step_ns),
        assumption="the late ranks come as the others do, and these stay as they are",
        evidence=(
            Evidence("what another rank waits, per step", skew.wait_ns, "ns"),
            Evidence("share of the step", skew.share, "share"),
            Evidence("who comes late", rank_names(skew.late), "text"),
            *seen("why", skew.cause, "text"),
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
            *seen("clocks are right to", skew.error_ns, "ns"),
        ),
        steps=skew.course.steps if isinstance(skew.course, EveryNth | InSomeSteps) else (),
        advice=_advice_on_late(skew, bool(longer) and longer[0].name == "compute"),
    )


def _how(skew: RankSkew) -> str:
    several = len(skew.late) > 1
    comes, course = "come" if several else "comes", skew.course
    if skew.basis == ARRIVALS:
        late = f"{comes} late"
        if isinstance(course, Rising):
            late = f"{comes} later from step to step"
        elif course is not None:
            is_part = isinstance(course, EveryNth) and not course.only
            late += f"{',' if is_part else ''} {course.text}"
        why = f"; {skew.cause}" if skew.cause else ""
        return f"{late}: the others wait for {'them' if several else 'it'} at collectives{why}"
    if isinstance(course, EveryNth) and course.only:
        return f"{comes} last {course.text}, and the others wait"
    often = f"{percent(skew.last_share)} of the steps"
    if skew.basis == RECORDED_WAITS:
        last = round(skew.last_share * skew.steps)
        often = f"{'all' if last == skew.steps else f'{last} of'} {skew.steps} recorded steps"
    text = f"{comes} last in {often}, and the others wait"
    if course is not None:
        return f"{text} {_longer(course)}"
    return f"{text}; {skew.cause}" if skew.cause else text


def _longer(course: Course) -> str:
    if isinstance(course, FromOneStep):
        return f"longer {course.text}"
    return "longer from step to step" if isinstance(course, Rising) else course.text


def _course(course: Course | None) -> tuple[Evidence, ...]:
    if course is None:
        return ()
    is_growing = isinstance(course, Rising | FromOneStep)
    label = "the wait grows" if is_growing else "the others wait"
    return (Evidence(label, course.evidence, "text"),)


def _advice_on_late(skew: RankSkew, is_compute: bool) -> str:
    course = skew.course
    if means_slow_link(skew.cause):
        return _BY_LINK
    if isinstance(course, EveryNth):
        return _EVERY_NTH.format(course.every)
    if isinstance(course, Rising):
        return _RISING
    if isinstance(course, FromOneStep):
        return _FROM_ONE_STEP.format(course.step)
    return _BY_COMPUTE if is_compute else _ADVICE_ON_LATE


def is_late(skew: RankSkew, limits: Thresholds) -> bool:
    """Whether the others wait notably for the late ranks, and the step is shorter without that."""
    is_worth_it = skew.saving_ns >= limits.saving_low * skew.step_ns
    return skew.is_notable and skew.share >= limits.late_rank and is_worth_it


_ADVICE_ON_IMBALANCE = (
    "Give all ranks as much work in each step: sort samples by length into buckets and let all "
    "ranks draw from the same one (a length-grouped sampler), pack short sequences into one of "
    "fixed length, or fill each batch up to a number of tokens instead of samples. With experts, "
    "balance their load (auxiliary loss, capacity factor)."
)


def find_imbalance(subject: Subject) -> list[Finding]:
    """Imbalance: in each step some rank has more work than the others, not always the same.

    Measured from the work and the waits of all ranks (`advice.job.imbalance` has the definitions).
    The saving assumes that all ranks have as much work in a step as they have on average.
    """
    found, step_ns = subject.imbalance, subject.step_ns
    if found is None or not step_ns:
        return []
    saving_ns = min(found.wait_ns, step_ns)
    share = saving_ns / step_ns
    if share < subject.thresholds.imbalance:
        return []
    return plain_finding(
        subject,
        rule="imbalance",
        title=f"ranks have unequal work: the one with the most in a step has "
        f"{duration(found.most_ns)}, the mean is {duration(found.mean_ns)}, and the others "
        "wait for it; which one it is changes",
        severity=severity_of(share, subject.thresholds),
        step_ns=step_ns,
        saving_ns=saving_ns,
        assumption="all ranks have the mean of the work in each step",
        evidence=(
            Evidence("what a rank waits per step, on average", found.wait_ns, "ns"),
            Evidence("share of the step", share, "share"),
            Evidence("most work of a rank in a step", found.most_ns, "ns"),
            Evidence("mean work of the ranks", found.mean_ns, "ns"),
            Evidence("ranks that have the most in some step", found.ranks_with_most, "count"),
            Evidence("ranks compared", found.ranks, "count"),
            Evidence("steps compared", found.steps, "count"),
            Evidence(
                "lateness follows work with a correlation of",
                percent(found.correlation),
                "text",
            ),
        ),
        advice=_ADVICE_ON_IMBALANCE,
    )


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


def find_uneven_stages(subject: Subject) -> list[Finding]:
    """Uneven stages: one stage of a pipeline computes for longer, and the others wait for it.

    Measured on the ranks of a run that send and receive: what their GPUs compute in a step. The
    saving is by the replay of all ranks (`analysis.blame.stages`), where the stage computes longer
    beyond chance. What it would bring to move layers to other stages depends on how they can be
    divided, and on the schedule.
    """
    slow = subject.slow_stage
    step_ns = subject.step_ns
    if slow is None or slow.ranks[0] != subject.rank or not step_ns:
        return []
    share = (slow.compute_ns - slow.mean_ns) / step_ns
    if slow.saving_ns is None and share < subject.thresholds.uneven_stages:
        return []
    beyond_ns = slow.compute_ns - slow.mean_ns
    named = rank_names(slow.ranks)
    whose, others = "its stage of the pipeline computes", "the others"
    each, what = "stages", "layers"
    if len(slow.ranks) > 1:
        whose = f"the stage of {named} computes"
    elif slow.may_be_ring:
        whose, others = f"{named} computes", "the ranks that it exchanges data with"
        each, what = "ranks", "work"
    saving_ns = None if slow.saving_ns is None else min(slow.saving_ns, step_ns)
    why = cause_clause(SLOW_STAGE, several=len(slow.ranks) > 1)
    return plain_finding(
        subject,
        rule="uneven-stages",
        title=f"{whose} {duration(slow.compute_ns)} per step, {others} "
        f"{duration(slow.others_ns)} on average",
        severity=severity_of(max(share, (saving_ns or 0) / step_ns), subject.thresholds),
        step_ns=step_ns,
        saving_ns=saving_ns,
        reason=f"it depends on how the {what} can be divided, and on the schedule; at "
        f"most {duration(beyond_ns)} per step",
        assumption=f"it computes as long as the others, as once what slows it down is gone; {what} "
        "that move make these longer",
        is_upper_bound=saving_ns is not None,
        evidence=(
            Evidence("computing per step", slow.compute_ns, "ns"),
            Evidence(f"on the other {each}, on average", slow.others_ns, "ns"),
            Evidence(f"beyond the mean of all {each}", beyond_ns, "ns"),
            Evidence("computes longest", named, "text"),
            *([] if saving_ns is None else [Evidence("why", why, "text")]),
            Evidence(f"{each} compared", slow.stages, "count"),
        ),
        advice=_OF_A_RING if slow.may_be_ring else _OF_A_PIPELINE,
    )


_NOBODY_WAITS = "no other rank is known to wait for this one"


def find_throttled_gpu(subject: Subject) -> list[Finding]:
    """Throttled GPU: this rank's GPU runs at a lower clock than the other ranks' GPUs.

    Measured from the sampled metrics of all ranks (`analysis.record.metrics` has the
    definition). If the others wait for this rank, the saving is what its kernels would take less at
    its peers' clock, and no more than the step gains until the next rank is the last. Kernels that
    memory limits gain less from a higher clock, so this is the most that can be saved.
    """
    slow = subject.slow_clock
    if slow is None:
        return []
    saving_ns = _saving_ns(subject)
    step_ns = subject.step_ns
    own = slow.own
    evidence = [
        Evidence("clock while busy, in MHz", round(own.clock_mhz), "count"),
        Evidence("median of its peers, in MHz", round(slow.peers_mhz), "count"),
        Evidence("share of its peers' clock", slow.share, "share"),
        Evidence("peers: ranks with the same GPU", slow.peers, "count"),
        Evidence("samples", own.samples, "count"),
    ]
    if own.temperature_celsius is not None:
        evidence.append(
            Evidence("highest temperature, in °C", round(own.temperature_celsius), "count")
        )
    if own.power_watts is not None:
        evidence.append(Evidence("mean power, in W", round(own.power_watts), "count"))
    evidence += [
        Evidence(f"samples with {reason.replace('_', ' ')}", share, "share")
        for reason, share in own.reasons
    ]
    return plain_finding(
        subject,
        rule="throttled-gpu",
        title=f"the GPU of rank {subject.rank} is throttled: {own.clock_mhz:.0f} MHz, "
        f"{percent(slow.share)} of its peers' {slow.peers_mhz:.0f} MHz",
        severity=_severity(subject, is_late=saving_ns is not None),
        step_ns=step_ns or 0,
        saving_ns=None if step_ns is None else saving_ns,
        reason=_NOBODY_WAITS,
        assumption=_assumption(subject),
        evidence=tuple(evidence),
        advice=_advice_on_clocks(dict(own.reasons)),
        slows_everything=True,
    )


def _saving_ns(subject: Subject) -> int | None:
    """What the step would be shorter by at most; None where nobody waits for this rank."""
    skew, slow = subject.skew, subject.slow_clock
    if skew is None or slow is None or subject.shown_compute_ns is None:
        return None
    is_late = skew.is_notable and skew.share >= subject.thresholds.late_rank
    if not is_late or subject.rank not in skew.late:
        return None
    return min(skew.saving_ns, round(subject.shown_compute_ns * (1 - slow.share)))


def _assumption(subject: Subject) -> str:
    text = "its kernels take less time in proportion to the clock, and "
    skew = subject.skew
    if skew is not None and (also := [rank for rank in skew.late if rank != subject.rank]):
        text += f"{rank_names(also)}, late as well, come{'' if also[1:] else 's'} earlier, too"
        return f"{text}; the others stay as they are"
    return f"{text}the others stay as they are"


def _severity(subject: Subject, *, is_late: bool) -> Severity:
    if not is_late or subject.skew is None:
        return Severity.LOW
    is_high = subject.skew.share >= subject.thresholds.late_rank_high
    return Severity.HIGH if is_high else Severity.MEDIUM


def _advice_on_clocks(reasons: dict[str, float]) -> str:
    first = next(iter(reasons), "")
    if "thermal" in first:
        remedy = (
            "It is too hot: check its fans or coolant, dust, its place in the rack and the room."
        )
    elif "power" in first:
        remedy = "Power limits it: compare its power limit and supply with the other GPUs'."
    elif first == "applications_clocks_setting":
        remedy = "Its clocks were set lower: reset them (nvidia-smi --reset-applications-clocks)."
    else:
        remedy = "Look at `nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,POWER` on its machine."
    return f"{remedy} Until it is repaired, leave this GPU or its machine out of the job."
