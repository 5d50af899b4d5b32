"""Throttled GPU: this rank's GPU runs at a lower clock than the other ranks' GPUs.

Measured from the sampled metrics of all ranks (`analysis.record.gpu_clocks` has the definition). If
the others wait for this rank, the saving is what its kernels would take less at its peers' clock,
and no more than the step gains until the next rank is the last. Kernels that memory limits gain
less from a higher clock, so this is the most that can be saved.
"""

from __future__ import annotations

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.run.figures import percent, ranks_in_words

ID = "throttled-gpu"
_NOBODY_WAITS = "no other rank is known to wait for this one"


def find(subject: Subject) -> list[Finding]:
    """The finding, if the GPU's clock is lower than its peers'."""
    slow = subject.slow_clock
    if slow is None:
        return []
    saving_ns = _saving_ns(subject)
    step_ns = subject.step_ns
    is_known = saving_ns is not None and step_ns is not None
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
    return [
        Finding(
            id=ID,
            title=f"the GPU of rank {subject.rank} is throttled: {own.clock_mhz:.0f} MHz, "
            f"{percent(slow.share)} of its peers' {slow.peers_mhz:.0f} MHz",
            severity=_severity(subject, is_late=saving_ns is not None),
            rank=subject.rank,
            saving_ns=saving_ns if is_known else None,
            saving_reason="" if is_known else _NOBODY_WAITS,
            assumption=_assumption(subject) if is_known else "",
            predicted_step_ns=(step_ns or 0) - (saving_ns or 0) if is_known else None,
            evidence=tuple(evidence),
            steps=(),
            advice=_advice(dict(own.reasons)),
            slows_everything=True,
        )
    ]


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
    words = "its kernels take less time in proportion to the clock, and "
    skew = subject.skew
    if skew is not None and (also := [rank for rank in skew.late if rank != subject.rank]):
        words += f"{ranks_in_words(also)}, late as well, come{'' if also[1:] else 's'} earlier, too"
        return f"{words}; the others stay as they are"
    return f"{words}the others stay as they are"


def _severity(subject: Subject, *, is_late: bool) -> Severity:
    if not is_late or subject.skew is None:
        return Severity.LOW
    is_high = subject.skew.share >= subject.thresholds.late_rank_high
    return Severity.HIGH if is_high else Severity.MEDIUM


def _advice(reasons: dict[str, float]) -> str:
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
