"""Reserved memory without a bound: `max_split_size_mb` together with expandable segments.

Read from the settings in the rank's memory snapshot. With both, blocks above the limit are neither
split nor reused for smaller requests, and expandable segments grow for each instead
(https://github.com/pytorch/pytorch/issues/193400).
"""

from __future__ import annotations

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.memory.allocator.settings import MIB, settings_of

ID = "reserved-without-bound"
_NOTABLE_GROWTH = 0.01


def find(subject: Subject) -> list[Finding]:
    """One finding if both settings are on; graver where reserved memory did grow."""
    view = subject.memory
    if view is None or not view.devices:
        return []
    settings = settings_of(view.snapshot.settings)
    if not settings.expandable_segments or settings.max_split_bytes is None:
        return []
    device = view.device()
    curve = view.curve(device)
    # What the second half of the recording added to the most that the first had reserved: the
    # program was warm by then.
    reserved, middle = curve["reserved_bytes"].to_numpy(), len(curve) // 2
    before, after = (int(part.max()) if len(part) else 0 for part in
                     (reserved[:middle], reserved[middle:]))  # fmt: skip
    grown = max(0, after - before)
    is_growing = before > 0 and grown >= _NOTABLE_GROWTH * before
    return finding_without_saving(
        subject,
        rule=ID,
        title="max_split_size_mb with expandable segments lets reserved memory grow",
        severity=Severity.MEDIUM if is_growing else Severity.LOW,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence("max_split_size_mb", settings.max_split_bytes // MIB, "count"),
            Evidence("reserved at the peak", max(before, after), "bytes"),
            Evidence("grown in the second half of the recording", grown, "bytes"),
        ),
        advice=(
            "Leave max_split_size_mb out of PYTORCH_CUDA_ALLOC_CONF: expandable segments do not "
            "need it."
        ),
    )
