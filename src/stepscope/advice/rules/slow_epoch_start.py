"""Slow epoch start: the step waits where a DataLoader's iterator begins.

Measured from the step record: what the steps in which an iterator begins wait for their input
beyond the others' median (`analysis.record.epoch_starts`), divided into the sampler's time, that of
ending and starting workers, and the rest, which is the first batch. These waits are no part of
`input-bound`, since more workers shorten none of them: the sampler runs in the training process,
and the first batch of an epoch has nobody who could have prepared it.

The saving is what was measured of parts that can be avoided: the sampler's time, and what keeping
the workers saves at least. Nobody knows what the first batch does beyond the others, so it promises
nothing.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.loader_advice import KEEP_WORKERS, LoaderFacts, facts_of
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.record.epoch_starts import EpochStarts
from stepscope.run.figures import duration

ID = "slow-epoch-start"
KEPT_LABEL = "saved by keeping the workers, per step"
_KEPT = (
    "the workers live on from epoch to epoch (it saves more if they have an epoch's first batch "
    "sooner than is known here)"
)
_MOSTLY = 0.5
_SAMPLER = (
    "Make the sampler cheaper where an epoch begins: draw indices with torch.randperm or NumPy "
    "instead of a Python loop, keep what does not change between epochs, or compute the next "
    "epoch's indices in a thread. More workers do not help: the sampler runs in the training "
    "process"
)
_FIRST_BATCH = (
    "See what the dataset does for the first batch of an epoch (listing and opening files, "
    "filling a shuffle buffer), and do that once. Longer epochs have fewer of these waits. "
    "More workers do not help: nobody can prepare this batch before its epoch begins"
)


def find(subject: Subject) -> list[Finding]:
    """The finding, if the starts of epochs take a notable share of the time."""
    summary = subject.steps
    if summary is None or not summary.epoch_starts.excess_wait_ns:
        return []
    starts, count = summary.epoch_starts, len(summary.steps)
    cost_ns = round(starts.excess_wait_ns / count)
    share = cost_ns / max(1, summary.mean_ns)
    if share < subject.thresholds.input_bound_low:
        return []
    facts = facts_of(subject)
    kept_ns = starts.kept_workers_save(facts.workers or 0) if _restarts(facts) else 0
    avoidable_ns = min(starts.excess_wait_ns, kept_ns + starts.sampler_ns)
    saving_ns = round(avoidable_ns / count) or None
    why, advice = _cause(starts, kept_ns)
    assumption = " and ".join(
        words
        for words, is_there in (
            ("the sampler returns its first indices at once", starts.sampler_ns > 0),
            (_KEPT, kept_ns > 0),
        )
        if is_there
    )
    times = len(starts.steps)
    each_ns = starts.excess_wait_ns // times
    return [
        Finding(
            id=ID,
            title=f"each epoch begins with a wait of {duration(each_ns)}{why}",
            severity=_severity(share, subject.thresholds),
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason="" if saving_ns else "what the first batch does was not recorded",
            assumption=assumption if saving_ns else "",
            predicted_step_ns=summary.mean_ns - saving_ns if saving_ns else None,
            evidence=(
                Evidence("steps in which an epoch begins", times, "count"),
                Evidence("steps measured", count, "count"),
                Evidence(
                    "wait beyond other steps', each time", starts.excess_wait_ns // times, "ns"
                ),
                Evidence("until the sampler's first indices", starts.sampler_ns // times, "ns"),
                Evidence("ending and starting workers", starts.workers_ns // times, "ns"),
                Evidence("until the first batch", starts.first_batches_ns // times, "ns"),
                Evidence("longest", starts.longest_ns, "ns"),
                Evidence("over all steps, per step", cost_ns, "ns"),
                Evidence("share of the time", share, "share"),
                *([Evidence(KEPT_LABEL, round(kept_ns / count), "ns")] if kept_ns else ()),
                Evidence("measured by", "step record", "text"),
            ),
            steps=starts.steps,
            advice=advice,
        )
    ]


def _restarts(facts: LoaderFacts) -> bool:
    """Whether workers end with each epoch."""
    return facts.keeps_workers is False


def _cause(starts: EpochStarts, kept_ns: int) -> tuple[str, str]:
    """What most of the time goes into, for the title, and the advice about each notable part."""
    parts = sorted(
        (
            (starts.sampler_ns, ", in the sampler", _SAMPLER),
            (kept_ns, ", because the loader starts its workers anew", KEEP_WORKERS),
            (max(0, starts.first_batches_ns - kept_ns), ", for the first batch", _FIRST_BATCH),
        ),
        key=lambda part: -part[0],
    )
    if not kept_ns and starts.workers_ns > parts[0][0]:
        return ", while workers start", f"{_FIRST_BATCH}."
    advice = " ".join(
        f"{words}." for part_ns, _, words in parts if 5 * part_ns >= starts.excess_wait_ns
    )
    mostly = parts[0][1] if parts[0][0] >= _MOSTLY * starts.excess_wait_ns else ""
    return mostly, advice or f"{parts[0][2]}."


def _severity(share: float, limits: Thresholds) -> Severity:
    if share >= limits.input_bound_high:
        return Severity.HIGH
    return Severity.MEDIUM if share >= limits.input_bound_medium else Severity.LOW
