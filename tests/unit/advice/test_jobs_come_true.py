"""Savings of jobs of several ranks, against the same jobs without the cause, at random.

What a finding states must not be more than the job takes less if its cause goes away on all ranks
that have the finding: ranks wait for each other, so that another may set the pace then. And no rank
is called late that has nothing planted.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from tests.support.planted_jobs import PlantedJob, chosen

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.opening.reader import open_run

PLANTED = {
    "cpu-bound-python": "python",
    "garbage-collector": "collector",
    "input-bound": "input",
    "synchronisation": "item",
}
TOLERATED = 0.05
"""Of a step: what a saving may be too large by, as ranks with less of a cause have no finding."""


class _Truth:
    """What a job takes less without the causes of findings."""

    def __init__(self, job: PlantedJob, diagnosis: Diagnosis) -> None:
        self._job = job
        self._steps: dict[tuple[str, frozenset[int], float], float] = {}
        self._having: dict[str, set[int]] = {}
        for one in diagnosis.findings:
            self._having.setdefault(one.id, set()).add(one.rank)
        self.late: frozenset[int] = frozenset()
        if "late-rank" in self._having:
            assert diagnosis.between is not None
            self.late = frozenset(diagnosis.between.late)

    def step_ns(self, kind: str = "", ranks: Collection[int] = (), transfers: float = 1.0) -> float:
        """A step with some ranks free of a kind of fault, or of all."""
        key = (kind, frozenset(ranks), transfers)
        if key not in self._steps:
            self._steps[key] = self._job.step_ns(
                lambda fault, rank: rank in ranks and kind in ("", fault.kind), transfers
            )
        return self._steps[key]

    def gain_ns(self, one: Finding) -> float | None:
        """What a step is shorter by without a finding's cause; None: that is not simulated."""
        if one.id in PLANTED:
            return self.step_ns() - self.step_ns(PLANTED[one.id], self._having[one.id])
        if one.id == "late-rank" or (one.id == "rank-waiting" and one.waits_for in self.late):
            return self.step_ns() - self.step_ns(ranks=self.late)
        if one.id == "exposed-communication" and one.rank not in self.late:
            # Late ranks are fixed first, as the finding says.
            return self.step_ns(ranks=self.late) - self.step_ns(ranks=self.late, transfers=1e-6)
        return None


@pytest.mark.parametrize(
    "seed",
    [*range(29, 32), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(32, 39))],
)
def test_no_finding_states_more_than_the_job_gains(tmp_path: Path, seed: int) -> None:
    job = chosen(seed)
    diagnosis = diagnose(open_run(str(job.write(tmp_path / "job"))))
    assert not diagnosis.notes
    truth = _Truth(job, diagnosis)
    guilty = {rank for fault in job.faults for rank in fault.ranks}
    for one in diagnosis.findings:
        if one.id == "late-rank":
            assert one.rank in guilty
        gain_ns = truth.gain_ns(one)
        if one.saving_ns is not None and gain_ns is not None:
            assert one.saving_ns - gain_ns <= TOLERATED * truth.step_ns(), one
