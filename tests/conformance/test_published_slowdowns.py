"""The published what-if answers of two real jobs, within 1%."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from tests.support.real_traces import path_of

from stepscope.fleet.what_if.cause import STAGES, WORKERS, Causes, find_causes
from stepscope.fleet.what_if.operations import read_operations
from stepscope.fleet.what_if.slowdown import Explained, Replays, Slowdown, find_slowdown
from stepscope.fleet.what_if.tables import what_if_of_operations

JOBS = ("AR", "ST")
CLOSE = 0.001
"""Ten times closer than what is asked for."""


@functools.cache
def answers(job: str) -> tuple[Slowdown, Causes, Replays]:
    folder = path_of("straggler_analysis")
    operations = read_operations(folder / f"trace-{job}.parquet", folder / f"meta-{job}.yaml")
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
    assert slowdown.delay_slowdown == pytest.approx(truth["launch_slowdown"], rel=CLOSE)
    for ours, theirs in (
        ("slowdown", "blocking_step_slowdown"),
        ("delay_slowdown", "launch_step_slowdown"),
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
    by_step: dict[str, dict[str, float]] = {}
    for step, _, name, value in slowdown.per_step.filter(dimension=dimension).iter_rows():
        by_step.setdefault(str(step), {})[name] = value
    expected = truth[f"blocking_decompose_by_{theirs}_per_step"]
    assert by_step.keys() == expected.keys()
    for step, values in expected.items():
        assert by_step[step] == pytest.approx(values, rel=CLOSE)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("kind", "name"), [("mw", "by_worst_workers"), ("ms", "by_last_stage")])
def test_shares_of_the_worst_workers_and_the_last_stage(job: str, kind: str, name: str) -> None:
    explained: Explained = getattr(answers(job)[0], name)
    truth = published(job, kind)
    assert explained.removed_share == pytest.approx(truth["rem"], rel=CLOSE)
    assert explained.added_share == pytest.approx(truth["add"], rel=CLOSE)
    assert explained.without_ns == pytest.approx(truth["trem"] * 1e9, rel=CLOSE)
    assert explained.only_ns == pytest.approx(truth["tadd"] * 1e9, rel=CLOSE)


def test_the_cause_in_words() -> None:
    slowdown, causes, _ = answers("AR")
    assert slowdown.worst_workers == ((0, 0),)
    assert [cause.name for cause in causes.notable] == [WORKERS]
    assert "rank 0 (data-parallel rank 0, stage 0) 2.36 times" in causes.verdict
    _, causes, _ = answers("ST")
    assert [cause.name for cause in causes.notable] == [STAGES]
    assert "the last stage computes 1.63 times as long" in causes.verdict


@pytest.mark.parametrize("job", JOBS)
def test_with_launch_delays_the_replay_is_the_recording(job: str) -> None:
    slowdown, _, replays = answers(job)
    replayed = replays.step_times(replays.actual_ns, with_delays=True)
    assert replayed.tolist() == pytest.approx(slowdown.steps["recorded_ns"].to_list(), rel=1e-6)


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
