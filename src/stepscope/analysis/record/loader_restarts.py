"""What it costs that a loader starts its workers anew, as a step record shows it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.run.step_record import StepRecord, input_wait


@dataclass(frozen=True)
class LoaderRestarts:
    """Steps in which a DataLoader ended its workers or started others, as at the end of its data.

    Attributes:
        steps: Numbers of these steps.
        workers_ns: Time in which workers were ended and started, in total.
        excess_wait_ns: What these steps wait for their input beyond the others' median, in total:
            the above, and the first batch of new workers.
        others_ns: Mean duration of the other steps; 0 without such steps.
    """

    steps: tuple[int, ...] = ()
    workers_ns: int = 0
    excess_wait_ns: int = 0
    others_ns: int = 0

    def kept_workers_save(self, workers: int) -> int:
        """What all these steps would save, at least, if the workers were kept.

        Ending and starting workers, and what the first batch took longer than a worker needs for
        one: workers that keep up make a batch within as many steps as there are workers.

        Args:
            workers: How many workers there are.
        """
        first_batches_ns = self.excess_wait_ns - self.workers_ns
        made_ns = len(self.steps) * workers * self.others_ns
        return max(
            0, min(self.excess_wait_ns, self.workers_ns + max(0, first_batches_ns - made_ns))
        )


def loader_restarts(steady: Sequence[StepRecord]) -> LoaderRestarts:
    """Sum up the steps that restarted a loader. The training's first step is none of them."""
    restarts = [record for record in steady if record.loader_workers_ns and record.step]
    if not restarts:
        return LoaderRestarts()
    others = [record for record in steady if not record.loader_workers_ns]
    usual_ns = round(statistics.median(map(input_wait, others))) if others else 0
    return LoaderRestarts(
        steps=tuple(record.step for record in restarts),
        workers_ns=sum(record.loader_workers_ns for record in restarts),
        excess_wait_ns=sum(max(0, input_wait(record) - usual_ns) for record in restarts),
        others_ns=round(statistics.fmean(record.dur_ns for record in others)) if others else 0,
    )
