"""The step of a run on GPUs: compute, exposed communication, exposed copies, and idle by cause.

The parts are those of `timeline.py` and `idle.py`, over all devices of the trace, and add up to the
device steps.
"""

from __future__ import annotations

from stepscope.analysis.idle import IdleCauses
from stepscope.analysis.selection.partition import Part, Partition
from stepscope.analysis.timeline import Timeline

IDLE_WORDS: dict[str, str] = {
    "device_wait": "idle: queued work waits",
    "input": "idle: input",
    "synchronisation": "idle: synchronisation",
    "allocation": "idle: allocation",
    "pageable_copy": "idle: pageable copies",
    "annotated_phase": "idle: annotated phase",
    "op_dispatch": "idle: launches and dispatch",
    "compilation": "idle: compilation",
    "garbage_collection": "idle: garbage collection",
    "waiting_for_communication": "idle: waiting for communication",
    "profiler": "idle: profiler",
    "python": "idle: Python",
    "unknown": "idle: launch not recorded",
}
"""How a person reads the causes of idle time."""


def partition_device(line: Timeline, idle: IdleCauses, steps: int) -> Partition:
    """Put the timeline and the causes of idle time together.

    Args:
        line: The timeline of a scope with GPU work.
        idle: Its idle time by cause.
        steps: Number of steps; 0: the trace has none, and counts as one.
    """
    parts = [
        Part("compute", line.compute_ns),
        Part("exposed communication", line.exposed_comm_ns),
        Part("exposed copies", line.exposed_memcpy_ns),
        *(Part(words, idle.of(cause)) for cause, words in IDLE_WORDS.items()),
    ]
    devices = len(line.scope.devices)
    whose = "the GPU's time" if devices == 1 else f"the time of {devices} GPUs together"
    what = f"trace: {whose}"
    if not steps:
        what += ", the whole file as one step"
    return Partition(tuple(parts), line.total_ns, max(1, steps), what)
