"""Who is accused in simulated jobs of a few ranks: the benchmark's smallest, with its measures."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from tests.support.project import ROOT


@pytest.fixture(scope="module")
def accusations() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "accusations", ROOT / "benchmarks" / "accusations.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_healthy_jobs_are_not_accused(accusations, seed):
    found = accusations.judge(seed, "healthy", 4)
    assert found.stragglers == found.blamed == ()


@pytest.mark.parametrize(("seed", "plant"), [(9, "input"), (42, "compute"), (7, "nth")])
def test_a_planted_rank_is_named_alone_and_with_its_cause(accusations, seed, plant):
    found = accusations.judge(seed, plant, 4)
    assert found.stragglers == found.planted
    assert found.has_cause
    assert found.is_same


def test_a_slow_link_is_that_of_its_group_with_what_it_costs(accusations):
    found = accusations.judge(14, "link", 8)
    assert found.stragglers == found.blamed == found.planted == (0, 1, 2, 3)
    assert found.is_same
    assert found.is_close


def test_a_late_start_is_noted_and_costs_no_step_anything(accusations, tmp_path):
    times = accusations.simulated(7, "late start", 4)
    notes = accusations.diagnosed(times, tmp_path / "job").notes
    (late,) = times.job.plant.ranks
    assert any(note.startswith(f"rank {late} began late: the others waited") for note in notes)


def test_unequal_work_accuses_nobody(accusations):
    found = accusations.judge(12, "imbalance", 4)
    assert found.stragglers == ()
    assert found.found[0] == "imbalance"


def test_of_two_ranks_with_unequal_work_neither_is_accused(accusations):
    found = accusations.judge(108, "imbalance", 4)
    assert found.ranks == 2
    assert found.stragglers == found.blamed == ()


def test_report_and_stragglers_say_the_same_of_waits_that_hosts_compute_beside(accusations):
    """The next bucket's backward runs while the first one is reduced."""
    found = accusations.judge(105, "input", 4)
    assert found.stragglers == found.blamed == found.planted
    assert found.is_same
    assert found.is_close


def test_what_ranks_of_a_healthy_job_wait_for_each_other_is_nobodys_to_save(accusations, tmp_path):
    """On CPUs that other programs use, a rank waits a third of the step, mostly for the others."""
    times = accusations.simulated(630024, "healthy", 6)
    assert not times.job.on_gpu
    found = accusations.diagnosed(times, tmp_path / "job").findings
    exposed = [one for one in found if one.id == "exposed-communication"]
    assert len({one.rank for one in exposed}) == len(exposed) > 1
    shares = [one.saving_ns / (one.saving_ns + one.predicted_step_ns) for one in exposed]
    assert max(shares) - min(shares) < 0.01  # no rank's step is shorter than another's
    assert max(shares) < 0.2
    assert "the rest is for other ranks" in exposed[0].assumption


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "plant"),
    [
        pytest.param(710003, "collector", id="another rank is held up in one recorded step"),
        pytest.param(710006, "link", id="likewise, in the step that follows the first"),
    ],
)
def test_chance_in_one_recorded_step_does_not_change_a_gain(accusations, seed, plant):
    found = accusations.judge(seed, plant, 16)
    assert found.is_right
    assert found.is_close


def test_transfers_beside_backward_on_cpus_save_nothing(accusations):
    found = accusations.judge(700010, "healthy", 4)
    assert not found.symptom_leads
    assert found.led_by is None or found.led_by < 0.04


@pytest.mark.slow
def test_a_few_steps_of_a_slow_pace_accuse_nobody(accusations):
    found = accusations.judge(720010, "healthy", 16)
    assert found.stragglers == found.blamed == ()


@pytest.mark.slow
def test_a_rank_that_waits_in_forward_is_not_taken_for_the_one_it_waits_for(accusations):
    """Its forward is longer, as it waits in it for the other rank of its group."""
    found = accusations.judge(610005, "nth")
    assert found.is_right
    assert found.is_same
