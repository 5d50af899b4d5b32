"""Python's memory leaks: objects that each step makes are still held at the end of the window.

Measured from what tracemalloc recorded of a window (`window_recorder="tracemalloc"`). It counts
Python's objects, not the memory of tensors.
"""

from __future__ import annotations

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity, short

ID = "python-memory-leak"
_LEAST_BYTES = 64 * 1024
_LARGE_BYTES = 1024 * 1024
_NOTABLE = 0.1
_MOST_PLACES = 3


def find(subject: Subject) -> list[Finding]:
    """One finding, if memory grows in each step."""
    memory = subject.python_memory
    if memory is None or memory.growth_per_step < _LEAST_BYTES:
        return []
    growth = memory.growth_per_step
    places = [(size, short(place)) for size, place in memory.places if size >= _NOTABLE * growth]
    worst = places[0][1] if places else "many places"
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"every step leaves Python objects behind at {worst}",
        severity=Severity.HIGH if growth >= _LARGE_BYTES else Severity.MEDIUM,
        reason="freeing memory does not shorten the step, but the run ends early otherwise",
        evidence=(
            Evidence("left behind by each step", growth, "bytes"),
            *(
                Evidence(f"of it at {place}", size, "bytes")
                for size, place in places[:_MOST_PLACES]
            ),
            Evidence("held at the end of the window", memory.ends[-1][1], "bytes"),
        ),
        advice=(
            "Look for what keeps these objects: a list or a dictionary that only grows, a cache "
            "without a limit, a closure or a callback that is registered in each step."
        ),
        steps=tuple(step for step, _ in memory.ends),
    )
