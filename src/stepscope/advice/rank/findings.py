"""What the rules find about one rank, and what their fixes save together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stepscope.advice.evidence.believable import loss_of
from stepscope.advice.evidence.collectives import waited_in, without_waits
from stepscope.advice.evidence.replayed import saved_together
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Finding, of_few_steps, of_whole_file
from stepscope.advice.rank.inference import for_purpose
from stepscope.advice.rank.rungs import climb
from stepscope.advice.rank.summary import RankSummary, Request
from stepscope.advice.rules import RULES, rules_of_a_rank
from stepscope.analysis.calls.allocations import has_only_host_memory
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import NodeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.record.python_memory import KIND, read_python_memory
from stepscope.errors import StepscopeError
from stepscope.opening.reader import RankRun
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import JobRecord, read_record
from stepscope.terminal.working import working
from stepscope.trace.model import Trace

if TYPE_CHECKING:
    from stepscope.advice.evidence.window_view import WindowView
    from stepscope.memory.view import MemoryView


def subject_of(
    rank: RankRun, summary: RankSummary, request: Request, trace: Trace | None, notes: list[str]
) -> Subject:
    """What the rules look at, as far as it does not depend on a window.

    Args:
        notes: Receives why its recorded memory cannot be read.
    """
    manifest = summary.compared.manifest
    windows = () if rank.manifest is None else rank.manifest.windows
    files = [item for window in windows for item in window.artifacts]
    job = _job(rank)
    of_python = [item.path for item in files if item.kind == KIND]  # of windows with tracemalloc
    return Subject(
        summary.rank,
        summary.steps,
        thresholds=request.thresholds,
        memory=_memory(rank, trace, notes),
        python_memory=read_python_memory(rank.directory / of_python[-1]) if of_python else None,
        has_peers=request.has_peers,
        is_late=summary.rank in request.late,
        world_size=1 if manifest is None else manifest.world_size,
        loader=None if manifest is None else manifest.loader,
        gc_calls=() if manifest is None else manifest.gc_calls,
        training_phases=frozenset() if manifest is None else frozenset(manifest.training_phases),
        window_files=frozenset(item.kind for item in files),
        job_devices=() if job is None else job.devices,
        job_cpus=job.cpu_count or None if job is not None and job.world_size == 1 else None,
    )


def _job(rank: RankRun) -> JobRecord | None:
    if rank.manifest is None:
        return None
    try:
        return read_record(RunLayout(rank.directory.parent).run_file, JobRecord)
    except (StepscopeError, OSError):
        return None


def _memory(rank: RankRun, trace: Trace | None, notes: list[str]) -> MemoryView | None:
    if rank.manifest is None and (trace is None or not has_only_host_memory(trace)):
        return None
    from stepscope.analysis.memory.opening import memory_of_rank  # many modules, for few ranks

    try:
        return memory_of_rank(rank, trace)
    except StepscopeError as error:
        notes.append(str(error))
        return None


def with_findings(summary: RankSummary, subject: Subject) -> RankSummary:
    """The summary with the findings of the rules about one rank, and their joint saving."""
    names = rules_of_a_rank(has_memory=subject.memory is not None)
    found = [one for name in names for one in _check(name, subject)]
    behind = [one for one in found if one.is_behind_waits]
    found = [one for one in found if not one.is_behind_waits]
    if any(one.id == "low-gpu-utilisation" for one in found):
        from stepscope.advice.rules.host.utilisation import is_explained

        found = [
            one for one in found if one.id != "low-gpu-utilisation" or not is_explained(one, found)
        ]
    if subject.window is not None and loss_of(subject.window).leaves_nothing:
        # What such steps seem to wait for may be hidden by work that was not recorded.
        found, behind = [finding for finding in found if finding.changes is None], []
    together_ns = saved_together(found, subject.window, subject.step_ns or 0)
    own = [finding for finding in found if finding.waits_for is None]
    own_ns = together_ns
    if len(own) < len(found):
        own_ns = saved_together(own, subject.window, subject.step_ns or 0)
    ladder = climb(subject, found)
    found, behind, with_waits_ns = _with_waits(found, behind, subject)
    alone_ns = _without_collectives_ns(subject)
    # The changes of a replay are as large as the trace, so they are dropped here.
    findings = tuple(replace(finding, changes=None) for finding in found)
    if subject.steps is None and subject.window is not None and not subject.window.graph.steps:
        findings = tuple(map(of_whole_file, findings))
    if subject.steps is not None and subject.steps.holds_few_steps:
        those = "the first" if subject.steps.holds_only_first_steps else "those recorded"
        findings = tuple(of_few_steps(finding, those) for finding in findings)
    return replace(
        summary,
        findings=findings,
        together_ns=together_ns,
        together_own_ns=own_ns,
        together_with_waits_ns=with_waits_ns,
        behind_waits_ns=tuple((one.id, one.with_waits_ns or 0) for one in behind),
        without_collectives_ns=alone_ns,
        ladder=ladder,
    )


def _with_waits(
    found: Sequence[Finding], behind: Sequence[Finding], subject: Subject
) -> tuple[list[Finding], list[Finding], int | None]:
    """The findings with what each saves together with the waits for other ranks; and all of them.

    Waits that a slow host hides appear once it is quicker, so the two do not add up.

    Args:
        behind: Those behind waits; only those are kept whose rank waits notably.
    """
    window = subject.window
    if window is None or subject.waits is None or not window.has_gpu:
        return list(found), [], None
    waited = waited_in(window, subject.waits)
    calm = without_waits(window, waited)
    if window.share(int(waited["wait_ns"].sum())) < subject.thresholds.saving_low:
        behind = []
    saved_ns = partial(_saved_by_replay_ns, subject, window)
    every = (*found, *behind)
    replayed = [one.changes for one in every if one.changes is not None]
    with_waits = [
        one
        if one.changes is None
        else replace(one, with_waits_ns=saved_ns(one.changes.and_also(calm)))
        for one in every
    ]
    together_ns = saved_ns(functools.reduce(Changes.and_also, replayed, calm))
    return with_waits[: len(found)], with_waits[len(found) :], together_ns


def _without_collectives_ns(subject: Subject) -> int | None:
    """What the rank's step would be shorter by if its collectives took no time.

    No finding about communication brings it more, whether it has one or not.
    """
    window = subject.window
    if window is None or subject.waits is None or not window.has_gpu:
        return None
    collectives = window.graph.kind == NodeKind.COMMUNICATION
    changes = unchanged(window.graph).scale_work(collectives, 0.0)
    return _saved_by_replay_ns(subject, window, changes)


def _saved_by_replay_ns(subject: Subject, window: WindowView, changes: Changes) -> int:
    """What changes save of the rank's step: the same share as of the window's."""
    step_ns = subject.step_ns or window.step_ns
    return round(replay(changes).saving_share * step_ns)


def _check(rule: str, subject: Subject) -> list[Finding]:
    with working(f"Checking {rule}"):
        return for_purpose(RULES[rule](subject), subject)
