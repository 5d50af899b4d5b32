"""What-ifs over ranks, against the simulated jobs without what is asked about, at random.

What is said to be saved must not be more than the job takes less in the long run: not because the
recording begins with idle GPUs, or ends before a rank has used up what it was ahead; nor because a
host that waits for its GPU would launch sooner than it can.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.planted_jobs import PlantedJob, chosen

from stepscope.fleet.job import Job, read_job
from stepscope.fleet.stragglers import stragglers_of_job
from stepscope.fleet.what_if.ranks import what_if_over_ranks
from stepscope.trace.paths import resolve_traces

TOO_LARGE, TOO_SMALL = 0.05, 0.1
"""Of a step: what a saving may differ from the truth by."""
TRANSFERS = {"in no time": 1e-6, "in half the time": 0.5}
OF_A_KIND = {"input": "input", "garbage collection": "collector"}
SOONER = (24, 30, 68, 72, 81, 92, 99, 111)
"""Jobs that were recorded while hosts got ahead of their GPUs, or used up what they were ahead."""
WAITING = (0, 94, 120)
"""Jobs whose hosts wait for their GPUs within steps, or launch just before work begins."""
SLOW = {9: 0, 101: 1, 230: 3}
"""Jobs of which a step is a fifth shorter or more without what is wrong with a rank."""


def recorded(seed: int, folder: Path) -> tuple[PlantedJob, Job]:
    job = chosen(seed)
    return job, read_job(resolve_traces((str(job.write(folder / "job")),)))


def gain_ns(job: PlantedJob, rank: int, kind: str = "") -> float:
    """What a step is shorter by if a rank is free of a kind of fault, or of all."""
    return job.step_ns() - job.step_ns(lambda fault, of: of == rank and kind in ("", fault.kind))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [*SOONER, *WAITING])
def test_no_what_if_promises_more_than_comes_true(tmp_path: Path, seed: int) -> None:
    job, ranks = recorded(seed, tmp_path)
    step_ns = job.step_ns()
    for row in what_if_over_ranks(ranks).changes.iter_rows(named=True):
        if row["subject"] == "all transfers" and row["change"] in TRANSFERS:
            gained_ns = step_ns - job.step_ns(transfers=TRANSFERS[row["change"]])
            assert row["saving_ns"] - gained_ns <= TOO_LARGE * step_ns, row
            assert gained_ns - row["saving_ns"] <= TOO_SMALL * step_ns, row
        elif row["subject"].startswith("rank "):
            gained_ns = gain_ns(job, int(row["subject"].removeprefix("rank ")))
            assert row["saving_ns"] - gained_ns <= TOO_LARGE * step_ns, row
    for row in stragglers_of_job(ranks).causes.iter_rows(named=True):
        if row["cause"] in OF_A_KIND:
            gained_ns = gain_ns(job, row["rank"], OF_A_KIND[row["cause"]])
            assert row["gain_ns"] - gained_ns <= TOO_LARGE * step_ns, row


@pytest.mark.parametrize("seed", SLOW)
def test_a_rank_as_usual_saves_what_its_fault_costs(tmp_path: Path, seed: int) -> None:
    job, ranks = recorded(seed, tmp_path)
    changes = what_if_over_ranks(ranks).changes
    saving_ns = changes.filter(subject=f"rank {SLOW[seed]}")["saving_ns"].item()
    gained_ns = gain_ns(job, SLOW[seed])
    assert gained_ns >= 0.2 * job.step_ns()
    assert abs(saving_ns - gained_ns) <= TOO_LARGE * job.step_ns()
