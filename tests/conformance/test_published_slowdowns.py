"""The published what-if answers of two real jobs, within 1%."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from tests.support.real_traces import path_of

from stepscope.fleet.what_if.cause import STAGES, WORKERS, Causes, find_causes
from stepscope.fleet.what_if.operations import read_operations
from stepscope.fleet.what_if.slowdown import Replays, Slowdown, find_slowdown
from stepscope.fleet.what_if.tables import what_if_of_operations

JOBS = ("AR", "ST")
CLOSE = 0.001
"""Ten times closer than what is asked for."""


@functools.cache
def answers(job: str) -> tuple[Slowdown, Causes, Replays]:
    folder = path_of("straggler_analysis")
    operations = read_operations(folder / f"trace-{job}.parquet")
    replays = Replays(operations, job)
    slowdown = find_slowdown(replays)
    return slowdown, find_causes(replays, slowdown), replays


def published(job: str, kind: str = "result") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (path_of("straggler_analysis") / f"{kind}-{job}.json").read_text()
    )
    return found


@pytest.mark.parametrize("job", JOBS)
def test_slowdown_in_all_and_by_step(job: str) -> None:
    slowdown, truth = answers(job)[0], published(job)
    assert slowdown.slowdown == pytest.approx(truth["blocking_slowdown"], rel=CLOSE)
    recorded, actual = (slowdown.steps[name].sum() for name in ("recorded_ns", "actual_ns"))
    assert recorded / actual == pytest.approx(truth["launch_slowdown"], rel=CLOSE)
    for ours, theirs in (
        ("slowdown", "blocking_step_slowdown"),
        ("recorded_ns", "step_t_base"),
        ("actual_ns", "step_t_nodelay"),
        ("ideal_ns", "step_t_noblk"),
    ):
        unit = 1e9 if ours.endswith("_ns") else 1
        found = {str(step): value / unit for step, value in slowdown.steps["step", ours].rows()}
        assert found == pytest.approx(truth[theirs], rel=CLOSE)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    ("dimension", "theirs"), [("replica", "dp_rank"), ("stage", "stage"), ("kind", "optype")]
)
def test_slowdown_by_dimension(job: str, dimension: str, theirs: str) -> None:
    slowdown, truth = answers(job)[0], published(job)
    table = getattr(slowdown, f"by_{dimension}")
    found = {str(name): value for name, value in table.iter_rows()}
    assert found == pytest.approx(truth[f"blocking_decompose_by_{theirs}"], rel=CLOSE)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", ["mw", "ms"])
def test_shares_of_the_worst_workers_and_the_last_stage(job: str, kind: str) -> None:
    slowdown, _, replays = answers(job)
    operations, truth = replays.operations, published(job, kind)
    replicas, stages = replays.groups["replica"], replays.groups["stage"]
    group = stages[operations.stages - 1]
    if kind == "mw":
        workers = [replicas[one] & stages[stage] for one, stage in slowdown.worst_workers]
        group = np.any(workers, axis=0)
    without, only = (
        replays.mean_step_ns(group, inside, outside)
        for inside, outside in (
            (replays.ideal_ns, replays.actual_ns),
            (replays.actual_ns, replays.ideal_ns),
        )
    )
    lost = slowdown.actual_ns - slowdown.ideal_ns
    assert (slowdown.actual_ns - without) / lost == pytest.approx(truth["rem"], rel=CLOSE)
    assert (only - slowdown.ideal_ns) / lost == pytest.approx(truth["add"], rel=CLOSE)
    assert without == pytest.approx(truth["trem"] * 1e9, rel=CLOSE)
    assert only == pytest.approx(truth["tadd"] * 1e9, rel=CLOSE)


def test_the_cause_in_words() -> None:
    slowdown, causes, _ = answers("AR")
    assert slowdown.worst_workers == ((0, 0),)
    assert [cause.name for cause in causes.all if cause.share >= 0.25] == [WORKERS]
    assert "rank 0 (data-parallel rank 0, stage 0) 2.36 times" in causes.verdict
    _, causes, _ = answers("ST")
    assert [cause.name for cause in causes.all if cause.share >= 0.25] == [STAGES]
    assert "the last stage computes 1.63 times as long" in causes.verdict


@pytest.mark.parametrize("job", JOBS)
def test_the_answer_to_what_if_ranks_has_the_published_figures(job: str) -> None:
    found = what_if_of_operations(path_of("straggler_analysis") / f"trace-{job}.parquet")
    truth = published(job)
    assert 1 + found.slower_share == pytest.approx(truth["blocking_slowdown"], rel=CLOSE)
    for name, theirs in (("stage", "stage"), ("replica", "dp_rank"), ("kind", "optype")):
        table = getattr(found, f"{name}s")
        ours = {str(one): 1 + share for one, share in table.iter_rows()}
        assert ours == pytest.approx(truth[f"blocking_decompose_by_{theirs}"], rel=CLOSE)
    # M_S: the step without what the last stage is slower by.
    last = f"stage {found.stages['stage'].max()}"
    row = found.changes.filter(subject=last, change="as usual").row(0, named=True)
    assert row["step_ns"] == pytest.approx(published(job, "ms")["trem"] * 1e9, rel=CLOSE)
