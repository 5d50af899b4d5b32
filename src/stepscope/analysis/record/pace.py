"""The pace of the steps that were not recorded in detail, by a step record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepscope.analysis.record.summary import StepSummary
from stepscope.run.manifest import LoaderRecord

_STARVED = 0.05
"""Share of its steps that a training waits for batches, from which these set its pace."""
RECEIVING_NS = 50_000
"""What it takes at least to receive a batch that a worker has ready."""
_IN_STORE = 2
"""Batches that a worker has in store at most if the loader does not say otherwise."""
_RARE = 0.05
"""Share of the steps up to which slow ones are too rare for a window of a few steps."""


@dataclass(frozen=True)
class RecordedPace:
    """What unrecorded steps take.

    Attributes:
        step_ns: Mean step, without those that are far slower than the others if these are rare, and
            without what the starts of epochs take.
        own_ns: The same without waits for input.
        batch_ns: The time from batch to batch, if the training waits for them; else 0.
        longest_batch_ns: The same if all batches that steps may have had in store were there.
        device_ns: Mean time from one step's end to the next on the device; None: not known.
        epoch_start_ns: What a step takes longer in which an epoch begins.
        iterator_ns: The part of it until the iterator is there; the rest is its first batch.
        between_ns: Mean step between those that are slow every so many steps, without waits for
            input; 0: no steps are slow at one distance, or epochs begin in them.
        ready_ns: What steps take whose batch is ready, if many are; else 0.
    """

    step_ns: int
    own_ns: int
    batch_ns: int
    mean_ns: int
    device_ns: int | None = None
    epoch_start_ns: int = 0
    iterator_ns: int = 0
    between_ns: int = 0
    ready_ns: int = 0
    longest_batch_ns: int = 0

    def of_batches(self, shown_ns: int) -> RecordedPace:
        """The pace where those of a window show how much of it batches in store may hide."""
        return replace(self, batch_ns=max(self.batch_ns, min(shown_ns, self.longest_batch_ns)))

    def with_epochs(self, starts: int, steps: int) -> RecordedPace:
        """The pace of steps in some of which epochs begin."""
        more_ns = round(starts * self.epoch_start_ns / max(1, steps))
        own_ns = self.own_ns + round(starts * self.iterator_ns / max(1, steps))
        return replace(self, step_ns=self.step_ns + more_ns, own_ns=own_ns)


def recorded_pace(record: StepSummary, loader: LoaderRecord | None = None) -> RecordedPace:
    """The pace by a step record. Waits at the start of epochs are kept apart.

    Args:
        loader: Where batches come from; default: unknown, and taken to have one worker.
    """
    starts = record.epoch_starts
    late_ns = starts.excess_wait_ns // len(record.steps)
    times = max(1, len(starts.steps))
    mean_ns, wait_ns = record.mean_ns - late_ns, record.lasting_wait_ns - late_ns
    is_starved = wait_ns >= max(_STARVED * mean_ns, RECEIVING_NS)
    batch_ns = mean_ns if is_starved else 0
    # Batches that were in store after a pause, as for a window, make the first steps shorter than
    # the pace; not those on the device, which had a pause as well.
    behind_ns = (record.mean_device_ns or 0) - record.mean_ns
    # One worker's are taken to have been; of others, a window must show it.
    in_store, longest_ns = _IN_STORE, batch_ns
    if loader is not None and loader.workers:
        in_store = loader.workers * (loader.prefetch_factor or _IN_STORE)
    if batch_ns and 0 < behind_ns * len(record.steps) <= in_store * batch_ns:
        longest_ns += behind_ns
    if behind_ns * len(record.steps) <= _IN_STORE * batch_ns:
        batch_ns = longest_ns
    slow, begun = set(record.slow_steps), set(starts.steps)
    is_rare = len(slow - begun) < _RARE * len(record.steps)
    late_usual_ns = starts.excess_wait_ns * len(begun - slow) // times
    usual_ns = record.usual_ns - late_usual_ns // max(1, len(record.steps) - len(slow))
    in_cycle = set() if record.cycle is None else set(record.cycle.excess_ns)
    is_in_cycle = 2 * len(in_cycle - begun) > len(in_cycle)
    return RecordedPace(
        usual_ns if is_rare else mean_ns,
        record.usual_own_ns if is_rare else record.mean_ns - record.wait_ns,
        batch_ns,
        record.mean_ns,
        record.mean_device_ns,
        starts.excess_wait_ns // times,
        (starts.workers_ns + starts.sampler_ns) // times,
        record.usual_own_ns if is_in_cycle else 0,
        record.ready_ns,
        longest_ns,
    )
