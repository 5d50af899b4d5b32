"""One story of a late rank in six places: report, stragglers, ranks, what-if-ranks, viewer, page.

Each is asked about the same planted jobs, and must name the same ranks, with the same saving, for
the same reason in the same words; and of a healthy job all say that nobody is late.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from tests.support.rendered import rendered
from tests.support.simulator.many_ranks import ManyRanks, Plant, simulate_job
from tests.support.simulator.many_ranks_files import write_job_run
from tests.support.simulator.pipelines import random_pipeline, simulate_pipeline, write_pipeline

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.finding import Finding
from stepscope.fleet.job import Job, read_job
from stepscope.fleet.rank_map import rank_map
from stepscope.fleet.stragglers import NOBODY_LATE, stragglers_of_job
from stepscope.fleet.what_if.ranks import ON_TIME, what_if_over_ranks
from stepscope.opening.reader import open_run
from stepscope.report.outputs import Layout
from stepscope.run.figures import duration, rank_names
from stepscope.trace.paths import resolve_path
from stepscope.viewer.ranks import JobRanks

JOBS = {
    "computes longer": (
        ManyRanks(4, plant=Plant("compute", (2,), 0.3), wander=0.005, has_record=False, seed=1),
        "its computation takes longer",
    ),
    "computes longer, with step records": (
        ManyRanks(4, plant=Plant("compute", (2,), 0.3), wander=0.005, seed=2),
        "its computation takes longer",
    ),
    "late input, with step records": (
        ManyRanks(4, plant=Plant("input", (1,), 0.3), wander=0.005, seed=3),
        "it waits for its input",
    ),
    "slow link, with step records": (
        ManyRanks(
            8, plant=Plant("link", (4, 5, 6, 7), 19.0), pieces=3, group=4, wander=0.005, seed=540016
        ),
        "their transfers are slow",
    ),
    "collector on CPUs": (
        ManyRanks(
            4, on_gpu=False, plant=Plant("collector", (3,), 0.3), wander=0.005, active=5, seed=5
        ),
        "Python's garbage collector stops it",
    ),
    "late in every fourth step": (
        ManyRanks(4, plant=Plant("nth", (0,), 1.2, every=4), wander=0.005, seed=6),
        "in every 4th step",
    ),
}


class _Places:
    """What the six places say of a job."""

    def __init__(self, path: Path) -> None:
        self.diagnosis = diagnose(open_run(str(path)))
        job: Job = read_job(resolve_path(str(path)).last_traces())
        self.stragglers = stragglers_of_job(job)
        self.ranks = rank_map(job)
        self.what_if = what_if_over_ranks(job)
        self.viewer = JobRanks.of(job).about({})
        page = rendered("diagnosis", "html", self.diagnosis, Layout(True))
        text = html.unescape(re.sub(r"<[^>]+>", "", page))
        self.page = " ".join(text.replace("\u2011", "-").split())

    @property
    def accusing(self) -> list[Finding]:
        """The findings that say who is late, and promise something for it."""
        return [
            one
            for one in self.diagnosis.findings
            if one.id == "late-rank" or (one.id == "uneven-stages" and one.saving_ns)
        ]

    def say(self, who: tuple[int, ...], why: str) -> None:
        """All of them name these ranks for this reason, with one number."""
        (finding,) = self.accusing
        named = rank_names(who)
        seen = {item.label: str(item.value) for item in finding.evidence}
        assert named in (seen.get("who comes late"), seen.get("computes longest"))
        assert why in " ".join((finding.title, *seen.values()))
        saving_ns = finding.saving_ns
        assert saving_ns
        words = f"{named} {'make' if len(who) > 1 else 'makes'} the others wait"
        for verdict in (
            self.stragglers.verdict,
            self.ranks.verdict,
            self.what_if.verdict,
            self.viewer["verdict"],
        ):
            assert verdict.startswith(words)
            assert why in verdict
            assert f"Without that a step would take {duration(saving_ns)} less" in verdict
        if "stage" not in why:  # whose ranks have their own causes in the table, each alone
            first = self.stragglers.causes.filter("is_notable").row(0, named=True)
            assert {first["rank"], *(first["indistinguishable_from"] or ())} == set(who)
            assert first["gain_ns"] == saving_ns
            (of_rank,) = self.stragglers.ranks.filter(rank=first["rank"])["cause"]
            assert of_rank == first["cause"]
            assert self.viewer["causes"][0]["gain_ns"] == saving_ns
        (change,) = self.what_if.changes.filter(change=ON_TIME).iter_rows(named=True)
        assert (change["subject"], change["saving_ns"]) == (named, saving_ns)
        assert finding.title[1:] in self.page  # which begins with a capital letter
        assert duration(saving_ns) in self.page


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", JOBS)
def test_six_places_say_the_same_of_a_late_rank(tmp_path: Path, name: str) -> None:
    job, why = JOBS[name]
    _Places(write_job_run(simulate_job(job), tmp_path / "job")).say(job.plant.ranks, why)


@pytest.mark.slow
def test_six_places_say_the_same_of_a_slow_stage(tmp_path: Path) -> None:
    job = random_pipeline(1, "slow stage")
    places = _Places(write_pipeline(simulate_pipeline(job), tmp_path / "job"))
    places.say(job.plant.ranks, "stage of the pipeline computes longer than others")


def test_six_places_accuse_nobody_of_a_healthy_job(tmp_path: Path) -> None:
    job = ManyRanks(4, wander=0.005, seed=7)
    places = _Places(write_job_run(simulate_job(job), tmp_path / "job"))
    assert not places.accusing
    assert not places.viewer["causes"]
    assert places.what_if.changes.filter(change=ON_TIME).is_empty()
    for verdict in (places.stragglers.verdict, places.ranks.verdict, places.what_if.verdict):
        assert "make" not in verdict.replace(NOBODY_LATE, "")
    assert "late-rank" not in places.page
