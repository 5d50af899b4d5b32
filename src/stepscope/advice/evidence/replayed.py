"""Findings whose saving is estimated by a replay of the steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from stepscope.advice.evidence.loader_advice import facts_of
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import (
    Evidence,
    Finding,
    Severity,
    few_batches,
    severity_of,
    without_batch_pace,
)
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import NodeKind
from stepscope.analysis.graph.replay import host_alone_ns, is_host_bound, replay, unchanged
from stepscope.analysis.graph.steady_state import replayed_durations
from stepscope.analysis.record.summary import NOTABLY_LONGER, is_uneven
from stepscope.run.figures import duration

_WAITS_FOR_GPU = 0.98
"""Share of the step below which the host's own time does not limit it now."""
_SAME_SHARE = "the same share of an unrecorded step as"
BATCHES_IN_TIME = "the loader's workers keep up with steps of"


def replayed_finding(
    subject: Subject,
    changes: Changes,
    *,
    rule: str,
    title: str,
    assumption: str,
    evidence: tuple[Evidence, ...],
    advice: str,
    steps: tuple[int, ...] = (),
    least: float | None = None,
    before: Changes | None = None,
    about_collectives: bool = False,
    waits_for: int | None = None,
    is_upper_bound: bool = False,
    most_ns: int | None = None,
) -> list[Finding]:
    """The finding, if the replay with the changes is shorter by a notable share.

    Where it is not, but the rank waits for others, the finding is behind these waits
    (`Finding.is_behind_waits`): without them it may shorten the step.

    Where batches come from workers that keep up, how soon they could have the next one is unknown:
    the assumption says with what steps they must keep up. Where workers do not keep up, and the
    window does not show at what pace they work, nothing is promised. Nor is what would be saved
    only if batches came as soon as the few late ones of the window.

    Where a step record shows what a step takes without recording, the saving is the same share of
    that step, and the assumption says so where the two differ notably. Where some unrecorded steps
    take so much longer that their mean is far above their median, which the window does not show,
    it is that share of the median step. Where recording made the steps much longer
    (`profiler_factor`), the finding is of low severity.

    Args:
        changes: The steps without the cause.
        evidence: The measurements; the mean step of the window is added.
        least: Share of the step that the saving must reach; default: `saving_low`.
        before: What is assumed to be fixed first; default: nothing. The saving is what the changes
            save beyond that.
        about_collectives: Whether the changes are to collectives. In other replays collectives keep
            their length, including waits for other ranks, and the assumption says so.
        waits_for: The rank whose coming earlier the saving rests on; None otherwise.
        is_upper_bound: Whether no fix brings more, and most bring less (`Finding`).
        most_ns: What it saves of a step at most, however long that is; None: not known. Recording
            slows what consists of many operators more than the rest, and what the host does once
            in a step takes no longer in a larger one.
    """
    window = subject.window
    if window is None:
        return []
    again = replay(changes)
    limits = subject.thresholds
    share = again.saving_share
    if before is not None:
        share -= replay(before).saving_share
    step_ns = subject.step_ns or window.step_ns
    most = math.inf if most_ns is None else most_ns / max(1, step_ns)
    is_capped, share = most < share, min(most, share)
    least = limits.saving_low if least is None else least
    is_too_little = share < least
    graph = window.graph
    if is_too_little and (subject.waits is None or about_collectives or waits_for is not None):
        share = min(most, _share_with_batches_as_measured(changes, before))
        if share < least:
            return []
        return plain_finding(
            subject,
            rule=rule,
            title=title,
            severity=severity_of(share, limits),
            reason=few_batches(round(share * step_ns)),
            evidence=(*evidence, *_mean_step(window, evidence)),
            advice=advice,
            steps=steps,
            waits_for=waits_for,
        )
    if not about_collectives and (graph.kind == NodeKind.COMMUNICATION).any():
        assumption += "; collectives last as long as now"
    # Workers make the batches, and no wait shows how soon they can.
    if not len(graph.arrivals) and facts_of(subject).has_workers:
        then_ns = round((1 - share) * step_ns)
        assumption += f"; {BATCHES_IN_TIME} {duration(then_ns)}"
    alone_ns = host_alone_of(window)
    if alone_ns < _WAITS_FOR_GPU * graph.replayed_step_ns and is_host_bound(changes, again):
        then_ns = window.per_step(again.steady_state_ns)
        # Unrecorded steps that the GPU limits do not show how much sooner their host is done.
        is_slowed = subject.steps is not None and graph.host_scale == 1.0
        less = " as recorded, and less without recording" if is_slowed else ""
        assumption += (
            f"; the host then needs {duration(then_ns)} per step{less}: below that, a faster GPU "
            "does not help"
        )
        host_needs = Evidence("host time per step, waits for the GPU apart", alone_ns, "ns")
        evidence = (*evidence, host_needs)
    severity = severity_of(share, limits)
    factor = subject.recording_factor
    alike_ns = _like_those_recorded(subject, window, step_ns)
    if factor >= limits.profiler_factor and not graph.has_recorded_pace:
        severity = Severity.LOW
    same = "no larger a share of an unrecorded step than" if is_capped else _SAME_SHARE
    if graph.has_recorded_pace:
        assumption += "; replayed at the pace of unrecorded steps"
    elif factor >= NOTABLY_LONGER:
        assumption += f"; it saves {same} of a recorded one, which takes {factor:.2f}× as long"
    elif step_ns >= NOTABLY_LONGER * window.step_ns:
        assumption += (
            f"; it saves {same} of the recorded ones, which took {duration(window.step_ns)}"
        )
    if alike_ns < step_ns:
        alike = duration(alike_ns)
        assumption += f"; some unrecorded steps take far longer: it is counted for one of {alike}"
    saving_ns = min(round(share * alike_ns), step_ns)
    found = plain_finding(
        subject,
        rule=rule,
        title=title,
        severity=severity,
        step_ns=step_ns,
        saving_ns=saving_ns,
        assumption=assumption,
        evidence=(*evidence, *_mean_step(window, evidence)),
        advice=advice,
        steps=steps,
        changes=changes,
        longest_work=_longest_work(changes),
        waits_for=waits_for,
        is_upper_bound=is_upper_bound,
        is_behind_waits=is_too_little,
    )
    return found if graph.arrivals.has_pace else [without_batch_pace(one) for one in found]


def _share_with_batches_as_measured(changes: Changes, before: Changes | None) -> float:
    """What the changes save of the step if batches come as soon as late ones did; 0: no more."""
    if not changes.graph.batches_later_ns:
        return 0.0
    share = replay(changes.with_batches_as_measured()).saving_share
    if before is None:
        return share
    return share - replay(before.with_batches_as_measured()).saving_share


def _longest_work(changes: Changes) -> tuple[int, int, int] | None:
    graph = changes.graph
    # What scales threads leaves the devices' work as it is.
    less = np.where(graph.is_gpu, replayed_durations(graph, 1.0) - changes.dur_ns, 0)
    if less.max(initial=0) <= 0:
        return None
    at = int(less.argmax())
    return int(graph.start_ns[at]), int(graph.end_ns[at]), int(graph.event[at])


@once
def host_alone_of(window: WindowView) -> int:
    """What the host needs per step if neither the GPU nor batches make it wait."""
    return window.per_step(host_alone_ns(unchanged(window.graph)))


def _mean_step(window: WindowView, evidence: tuple[Evidence, ...]) -> list[Evidence]:
    """The mean step of the window; and that of the host, if something takes longer than the first.

    A window may begin while the device still has earlier work. Then the host's steps begin earlier
    than the device's, which are shown, and take longer: what the host does is a part of those.
    """
    mean = [Evidence("mean step of the window", window.step_ns, "ns")]
    longest = max((one.value for one in evidence if one.unit == "ns"), default=0)
    host_ns = window.per_step(window.graph.host_time_ns)
    if window.has_gpu and float(longest) > window.step_ns and host_ns > window.step_ns:
        mean.append(Evidence("mean step on the host", host_ns, "ns"))
    return mean


def _like_those_recorded(subject: Subject, window: WindowView, step_ns: int) -> int:
    """The step that a share of the window's step is taken from."""
    summary = subject.steps
    if summary is None or not is_uneven(summary.mean_ns, summary.median_ns):
        return step_ns
    return min(step_ns, max(summary.median_ns, window.step_ns))


def saved_together(
    findings: Sequence[Finding], window: WindowView | None, step_ns: int
) -> int | None:
    """What the findings of one rank save together, per step; None if none has a saving.

    Savings overlap, so they do not add up: one replay removes the causes of all replayed findings
    at once (`saved_by`).
    """
    savings = [one for one in findings if one.saving_ns is not None]
    if not savings:
        return None
    changes = [one.changes for one in savings if one.changes is not None]
    share = None
    if changes and window is not None:
        again = replay(functools.reduce(Changes.and_also, changes))
        share = again.saving_share
    return min(saved_by(savings, share, step_ns), sum(one.saving_ns or 0 for one in savings))


def saved_by(findings: Sequence[Finding], replayed_share: float | None, step_ns: int) -> int:
    """What a replay and the findings that were not replayed save together, per step.

    Causes that were not replayed and have a time of their own, such as a phase, are added up. The
    replay, and each cause that slows everything (`Finding.slows_everything`), save their share of
    what is left. The result is at least the largest saving, and at most the step.

    Args:
        replayed_share: Share of the step that the replay with the changes of all of them saves;
            None without one.
    """
    unreplayed = [one for one in findings if one.changes is None]
    alone = sum(one.saving_ns or 0 for one in unreplayed if not one.slows_everything)
    slowing = [one.saving_ns or 0 for one in unreplayed if one.slows_everything]
    shares = [saving / max(1, step_ns) for saving in slowing]
    if replayed_share is not None:
        shares.append(replayed_share)
    for share in shares:
        alone += round(max(0, step_ns - alone) * share)
    return min(max(alone, *(one.saving_ns or 0 for one in findings), 0), step_ns)
