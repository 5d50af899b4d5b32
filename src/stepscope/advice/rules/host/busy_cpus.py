"""Busy CPUs: the training thread is ready to run, and others have its CPUs.

Measured from the step record (Linux): the time per step that the training thread spent in the
scheduler's queue. Whatever the thread does then takes longer, so a trace shows it as slow operators
and as Python between them, at changing places. The saving assumes that the thread never waits for a
CPU; where a GPU limits the step, nobody knows what that saves. Threads that help with single
operators wait in queues of their own, which the record does not show: the real loss may be greater.
"""

from __future__ import annotations

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.severities import severity_of
from stepscope.run.figures import percent

ID = "busy-cpus"
ON_DEVICE = "the record does not show how much of it the device waited for"


def find(subject: Subject) -> list[Finding]:
    """The finding, if the training thread waits for a CPU for a notable share of the step."""
    summary = subject.steps
    if summary is None or not summary.host.queued_ns:
        return []
    host, queued_ns = summary.host, summary.host.queued_ns or 0
    share = queued_ns / max(1, summary.mean_ns)
    if share < subject.thresholds.busy_cpus:
        return []
    evidence = [
        Evidence("waiting for a CPU per step", queued_ns, "ns"),
        Evidence("share of the step", share, "share"),
    ]
    if host.cpu_ns is not None:
        evidence.append(Evidence("running on a CPU per step", host.cpu_ns, "ns"))
    cpus = ""
    if subject.loader is not None:
        evidence.append(Evidence("CPUs that the process may use", subject.loader.cpus, "count"))
        evidence.append(Evidence("ranks that share them", subject.loader.local_ranks, "count"))
        evidence.append(Evidence("loader workers", subject.loader.workers, "count"))
        cpus = f" ({subject.loader.cpus} here)"
    evidence.append(Evidence("mean step", summary.mean_ns, "ns"))
    saves = not host.is_on_device
    return [
        Finding(
            id=ID,
            title=(
                f"the CPUs are busy: for {percent(share)} of the step the training thread "
                "waits for a free one"
            ),
            severity=severity_of(share, subject.thresholds),
            rank=subject.rank,
            saving_ns=queued_ns if saves else None,
            saving_reason="" if saves else ON_DEVICE,
            assumption="a CPU is free whenever the training thread can run" if saves else "",
            predicted_step_ns=summary.mean_ns - queued_ns if saves else None,
            evidence=tuple(evidence),
            steps=(),
            advice=(
                "Find out what uses the CPUs (top, `stepscope monitor`). Stop other programs, or "
                "reserve CPUs for this one (taskset, --cpus-per-task). If its own threads use "
                "them, keep torch.set_num_threads, times the ranks on this machine, plus the "
                f"loaders' workers at or below the number of CPUs{cpus}."
            ),
            slows_everything=True,
        )
    ]
