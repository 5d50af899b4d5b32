"""What the starts of epochs cost, as a step record shows it.

Where an iterator over a DataLoader begins, the training waits for the sampler, for workers that are
started, and for a batch that nobody has prepared. Such waits say nothing about the others, and more
workers shorten none of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.run.step_record import StepRecord, input_wait


@dataclass(frozen=True)
class EpochStarts:
    """Steps in which a DataLoader's iterator began, or its workers ended or started.

    Attributes:
        wait_ns: What these steps wait for their input, in total.
        excess_wait_ns: The part of it beyond the others' median.
        workers_ns: The part of it in which workers were ended and started.
        sampler_ns: The part of it in which the sampler made the first indices.
        others_ns: Mean duration of the other steps; 0 without such steps.
        longest_ns: The longest excess.
    """

    steps: tuple[int, ...] = ()
    wait_ns: int = 0
    excess_wait_ns: int = 0
    workers_ns: int = 0
    sampler_ns: int = 0
    others_ns: int = 0
    longest_ns: int = 0

    @property
    def first_batches_ns(self) -> int:
        """The rest of the excess: the first batches took longer than others."""
        return self.excess_wait_ns - self.workers_ns - self.sampler_ns

    @property
    def shortest(self) -> int:
        """Steps of the shortest epoch; 0 where fewer than two begin."""
        return min((later - step for step, later in pairwise(self.steps)), default=0)

    def kept_workers_save(self, workers: int, batch_ns: int | None = None) -> int:
        """What all these steps would save if the workers were kept.

        Ending and starting workers, and what the first batch took longer than a worker needs for
        one. Where that was not measured, it is what they save at least: workers that keep up make a
        batch within as many steps as there are workers. Whether they keep up, only epochs show that
        are longer than the workers' first batches.

        Args:
            batch_ns: What a worker was seen to need for a batch; None if that was not measured.
        """
        if batch_ns is not None:
            return self.workers_ns + max(0, self.first_batches_ns - len(self.steps) * batch_ns)
        if 0 < self.shortest <= workers:
            return self.workers_ns
        made_ns = len(self.steps) * workers * self.others_ns
        return self.workers_ns + max(0, self.first_batches_ns - made_ns)


def begins_epoch(record: StepRecord) -> bool:
    """Whether an epoch starts in a step. The training's first step is none of them."""
    return bool(record.step and (record.loader_workers_ns or record.epoch_start_ns))


def epoch_starts(steady: Sequence[StepRecord]) -> EpochStarts:
    """Sum up the steps in which an epoch starts.

    If epochs start in most steps, the usual wait of a step is unknown, and only the parts that were
    measured count.
    """
    starts = [record for record in steady if begins_epoch(record)]
    if not starts:
        return EpochStarts()
    there = {record.step for record in starts}
    others = [record for record in steady if record.step not in there]
    usual_ns = None
    if len(others) >= len(starts):
        usual_ns = round(statistics.median(map(input_wait, others)))
    excess, workers_ns, sampler_ns = [], 0, 0
    for record in starts:
        measured_ns = record.loader_workers_ns + record.sampler_ns
        more_ns = measured_ns if usual_ns is None else max(0, input_wait(record) - usual_ns)
        excess.append(min(more_ns, input_wait(record)))
        sampler_ns += min(record.sampler_ns, excess[-1])
        workers_ns += min(record.loader_workers_ns, excess[-1] - min(record.sampler_ns, excess[-1]))
    return EpochStarts(
        steps=tuple(record.step for record in starts),
        wait_ns=sum(map(input_wait, starts)),
        excess_wait_ns=sum(excess),
        workers_ns=workers_ns,
        sampler_ns=sampler_ns,
        others_ns=round(statistics.fmean(record.dur_ns for record in others)) if others else 0,
        longest_ns=max(excess),
    )
