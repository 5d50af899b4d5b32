"""Findings whose saving comes from a replay of the steps."""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.advice.window_view import WindowView
from stepscope.analysis.graph.replay import Changes, replay
from stepscope.analysis.graph.step_graph import NodeKind


def severity_of(share: float, limits: Thresholds) -> Severity:
    """Severity by the share of the step that is at stake."""
    if share >= limits.saving_high:
        return Severity.HIGH
    return Severity.MEDIUM if share >= limits.saving_medium else Severity.LOW


def replayed_finding(
    subject: Subject,
    window: WindowView,
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
) -> list[Finding]:
    """The finding, if the replay with the changes is shorter by a notable share.

    Where recording made the steps much longer (`profiler_factor`), what it added is in the saving
    too: then the finding is of low severity, and its assumption says so.

    Args:
        subject: What is looked at.
        window: Its window.
        changes: The cause taken away.
        rule: Id of the rule.
        title: What is wrong.
        assumption: What the saving takes for granted.
        evidence: What the finding rests on; the mean step of the window is added.
        advice: What to do.
        steps: Steps in which it shows best.
        least: Share of the step that the saving must reach; default: `saving_low`.
        before: What is taken to be mended already; default: nothing. The saving is what is gained
            beyond it.
        about_collectives: Whether what is changed are collectives. In other replays they keep their
            length, waiting for other ranks included, and the assumption says so.
    """
    again = replay(changes)
    limits = subject.thresholds
    saving_ns = again.saving_ns
    if before is not None:
        saving_ns -= replay(before).saving_ns
    share = saving_ns / max(1, window.step_ns)
    if share < (limits.saving_low if least is None else least):
        return []
    graph = window.graph
    if not about_collectives and (graph.kind == NodeKind.COMMUNICATION).any():
        assumption += "; collectives last as long as now"
    severity = severity_of(share, limits)
    factor = subject.recording_factor
    if factor >= limits.profiler_factor:
        severity = Severity.LOW
        assumption += f"; of steps that recording made {factor:.1f}× as long"
    return [
        Finding(
            id=rule,
            title=title,
            severity=severity,
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason="",
            assumption=assumption,
            predicted_step_ns=again.mean_step_ns,
            evidence=(*evidence, Evidence("mean step of the window", window.step_ns, "ns")),
            steps=steps,
            advice=advice,
        )
    ]


def finding_without_saving(
    subject: Subject,
    *,
    rule: str,
    title: str,
    severity: Severity,
    reason: str,
    evidence: tuple[Evidence, ...],
    advice: str,
    steps: tuple[int, ...] = (),
) -> list[Finding]:
    """A finding that promises nothing per step, with the reason why not."""
    return [
        Finding(
            id=rule,
            title=title,
            severity=severity,
            rank=subject.rank,
            saving_ns=None,
            saving_reason=reason,
            assumption="",
            predicted_step_ns=None,
            evidence=evidence,
            steps=steps,
            advice=advice,
        )
    ]
