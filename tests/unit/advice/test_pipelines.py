"""Pipelines: the simulated job without the planted cause, and the known bubble, are the judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.one_step import check_diagnosis
from tests.support.pipeline_traces import SEND_RECV, Pipeline, pipeline_traces
from tests.support.planted import GEMM, MM_FLOAT, PLAIN
from tests.support.ranks_that_wait import steady_step_ns, write_ranks
from tests.support.simulator.pipelines import (
    random_pipeline,
    simulate_pipeline,
    write_pipeline,
)
from tests.support.stragglers import find_stragglers

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rules.compute import precision
from stepscope.opening.reader import open_run
from stepscope.run.figures import rank_names

OF_COLLECTIVES = {
    "abnormal-collective", "exposed-communication", "late-rank", "poor-overlap", "rank-waiting",
    "many-small-collectives",
}  # fmt: skip
STEPS = 3


def _judge(folder: Path, **job: Any) -> tuple[Diagnosis, list[GpuTrace]]:
    traces = pipeline_traces(Pipeline(steps=STEPS, **job))
    diagnosis = diagnose(open_run(write_ranks(traces, folder)))
    check_diagnosis(diagnosis)
    return diagnosis, traces


def _of(diagnosis: Diagnosis, rule: str) -> dict[int, Finding]:
    return {one.rank: one for one in diagnosis.findings if one.id == rule}


def _seen(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> tuple[Diagnosis, list[GpuTrace]]:
    """Even stages, and two micro-batches for four of them."""
    return _judge(tmp_path_factory.mktemp("few") / "job", batches=2)


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> tuple[Diagnosis, list[GpuTrace]]:
    """The third of four stages takes half as long again."""
    return _judge(
        tmp_path_factory.mktemp("slow") / "job",
        batches=6,
        forward_ns=lambda stage, batch: ms(3 if stage == 2 else 2),
    )


@pytest.mark.parametrize("job", ["few", "slow"])
def test_waiting_for_other_stages_is_no_matter_of_collectives(job, request):
    diagnosis, _ = request.getfixturevalue(job)
    assert not OF_COLLECTIVES & {one.id for one in diagnosis.findings}
    assert diagnosis.between is None


def test_the_bubble_of_too_few_micro_batches(few):
    diagnosis, traces = few
    bubbles = _of(diagnosis, "pipeline-bubble")
    assert set(bubbles) == {0, 1, 2, 3}
    assert not _of(diagnosis, "uneven-stages")
    # A stage's first step begins when its GPU does, and waits for less.
    lengths = {rank.rank: rank.step_ns or 0 for rank in diagnosis.ranks}
    assert lengths[0] == pytest.approx(steady_step_ns(traces[0], 0, STEPS - 1), rel=0.01)
    for rank, one in bubbles.items():
        seen = _seen(one)
        assert seen["micro-batches per step"] == 2
        assert seen["ranks in the pipeline"] == 4
        assert seen["bubble of an even pipeline"] == pytest.approx(3 / 5)
        # The simulated device says how long it did anything but waiting.
        t = traces[rank]
        busy = sum(w.end_ns - w.start_ns for w in t.work if w.kind == "compute") / STEPS
        moving = sum(w.name == SEND_RECV for w in t.work) / STEPS * Pipeline().transfer_ns
        waiting = seen["waiting in sends and receives, per step"]
        assert waiting == pytest.approx(lengths[rank] - busy - moving, rel=0.02)
        assert one.saving_ns is None


def test_the_slowest_stage_is_named(slow):
    diagnosis, traces = slow
    ((rank, uneven),) = _of(diagnosis, "uneven-stages").items()
    assert rank == 2
    assert "computes 55.0 ms per step, the others 37.0 ms on average" in uneven.title
    seen = _seen(uneven)
    assert seen["beyond the mean of all stages"] == pytest.approx(ms(13.5), rel=0.01)
    # What balance brings is no more than the finding says.
    even = pipeline_traces(
        Pipeline(steps=STEPS, batches=6, forward_ns=lambda stage, batch: ms(2.25))
    )
    gain = steady_step_ns(traces[2], 0, STEPS - 1) - steady_step_ns(even[2], 0, STEPS - 1)
    assert 0 < gain <= seen["beyond the mean of all stages"]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "plant"), [(1, "slow stage"), (5, "slow rank"), (6, "healthy")])
def test_other_ranks_of_its_stage_tell_a_slow_rank_from_a_slow_stage(tmp_path, seed, plant):
    job = replace(random_pipeline(seed, plant), batches=8, active=3)
    times = simulate_pipeline(job)
    true_ns = times.step_ns - simulate_pipeline(job.healed).step_ns
    diagnosis = diagnose(open_run(str(write_pipeline(times, tmp_path / "job"))))
    late, uneven = _of(diagnosis, "late-rank"), _of(diagnosis, "uneven-stages")
    if plant == "healthy":
        assert not late
        assert not uneven
        return
    ((rank, finding),) = (uneven if plant == "slow stage" else late).items()
    assert not (late if plant == "slow stage" else uneven)
    assert rank == job.plant.ranks[0]
    assert finding.saving_ns == pytest.approx(true_ns, rel=0.1)
    if plant == "slow stage":
        assert _seen(finding)["computes longest"] == rank_names(job.plant.ranks)
        assert diagnosis.findings[0] is finding


def test_stragglers_names_a_slow_stage_and_no_even_one(few, slow):
    verdict = find_stragglers([(rank, t.load()) for rank, t in enumerate(few[1])]).verdict
    assert verdict == "no rank makes the others wait for an unusual reason"
    found = find_stragglers([(rank, t.load()) for rank, t in enumerate(slow[1])])
    words = "rank 2 makes the others wait: its stage of the pipeline computes longer than others"
    assert found.verdict.startswith(words)
    fast = pipeline_traces(Pipeline(steps=STEPS, batches=6))
    true_ns = steady_step_ns(slow[1][2], 0, STEPS - 1) - steady_step_ns(fast[2], 0, STEPS - 1)
    gain = found.causes.filter(rank=2)["gain_ns"].max()
    assert gain == pytest.approx(true_ns, rel=0.1)


def test_sends_without_their_other_rank_are_not_matched(few):
    for t in few[1]:
        for event in t.events:
            for key in ("Dst Rank", "Src Rank"):
                event["args"].pop(key, None)
    found = find_stragglers([(rank, t.load()) for rank, t in enumerate(few[1])])
    assert found.sets.is_empty()
    assert any("other rank" in reason for reason in found.scope.excluded)


@pytest.fixture(autouse=True)
def _twice_as_fast(monkeypatch):
    """Products in a faster type take half as long, whatever their shapes say."""
    monkeypatch.setattr(precision, "_REACHED", 1e-9)


def _in_full_precision(t: GpuTrace) -> None:
    """Its products run in FP32, in which they are told to take twice as long as they need."""
    for event in t.events:
        if event["name"] == GEMM:
            event["name"] = PLAIN
        if event["name"] == "aten::mm":
            event["args"]["Input Dims"] = MM_FLOAT["shapes"]
            event["args"]["Input type"] = MM_FLOAT["types"]


def _with_slow_products(
    folder: Path, slow: set[int], batches: int, forward_ms: dict[int, float], stages: int = 4
) -> tuple[dict[int, Finding], Diagnosis, int]:
    """Findings about products in FP32, and what a step is shorter by with half their time."""

    def job(times: dict[int, float]) -> Pipeline:
        return Pipeline(
            stages=stages,
            batches=batches,
            steps=STEPS,
            forward_ns=lambda stage, batch: ms(times.get(stage, 2)),
        )

    traces = pipeline_traces(job(forward_ms))
    fast = pipeline_traces(job({k: v / (2 if k in slow else 1) for k, v in forward_ms.items()}))
    true_ns = steady_step_ns(traces[0], 0, STEPS - 1) - steady_step_ns(fast[0], 0, STEPS - 1)
    for stage in slow:
        _in_full_precision(traces[stage])
    diagnosis = diagnose(open_run(write_ranks(traces, folder)))
    check_diagnosis(diagnosis)
    return _of(diagnosis, "full-precision-matmuls"), diagnosis, true_ns


@pytest.mark.slow
def test_a_fix_of_the_slowest_stage_saves_at_most_its_own_time(tmp_path):
    found, diagnosis, true_ns = _with_slow_products(tmp_path / "job", {2}, 6, {2: 4})
    (finding,) = found.values()
    assert finding.rank == 2
    # Six micro-batches of 4 + 8 ms become half as long.
    assert finding.saving_ns == pytest.approx(ms(36), rel=0.02)
    assert 0.8 * ms(36) < true_ns <= 1.02 * finding.saving_ns
    assert finding.is_upper_bound
    assert "the other stages wait for this one" in finding.assumption
    assert "saves up to" in diagnosis.verdict


@pytest.mark.slow
def test_a_fix_of_another_stage_saves_no_more_than_the_slowest_one_leaves(tmp_path):
    """The first stage takes 5 + 10 ms for each of ten micro-batches, the third 4 + 8 ms."""
    found, diagnosis, true_ns = _with_slow_products(tmp_path / "job", {2}, 10, {0: 5, 2: 4})
    (finding,) = found.values()
    steps_ns = {rank.rank: rank.step_ns or 0 for rank in diagnosis.ranks}
    # Its own: 10 × 6 ms. The first computes 150 ms, and 1 ms of optimizer, in each step.
    assert finding.own_saving_ns == pytest.approx(ms(60), rel=0.02)
    left = 1 - ms(151) / steps_ns[0]
    assert finding.saving_ns == pytest.approx(left * steps_ns[2], rel=0.02)
    assert true_ns <= finding.saving_ns < finding.own_saving_ns
    assert (finding.is_upper_bound, finding.next_rank) == (True, 0)
    assert "rank 2's own step is 60.0 ms shorter without it" in finding.assumption


@pytest.mark.slow
def test_a_fix_that_the_slowest_stage_leaves_nothing_of_is_not_promised(tmp_path):
    """With 20 micro-batches the first of two stages computes nearly all the time."""
    found, _, true_ns = _with_slow_products(tmp_path / "job", {1}, 20, {0: 5, 1: 2}, stages=2)
    (finding,) = found.values()
    assert true_ns < 0.03 * ms(20 * 15)
    assert (finding.saving_ns, finding.predicted_step_ns) == (None, None)
    assert finding.severity is Severity.INFO
    assert finding.saving_reason.startswith("rank 1's own step is 60.0 ms shorter without it")
    assert finding.saving_reason.endswith("the GPU of rank 0 computes nearly all the time")


@pytest.mark.slow
def test_a_fix_of_all_stages_saves_what_each_of_them_has_less_to_do(tmp_path):
    found, _, true_ns = _with_slow_products(
        tmp_path / "job", {0, 1, 2, 3}, 6, dict.fromkeys(range(4), 4)
    )
    assert set(found) == {0, 1, 2, 3}
    for finding in found.values():
        assert finding.saving_ns == pytest.approx(ms(36), rel=0.02)
        assert not finding.is_upper_bound
        assert "stages" not in finding.assumption
    # Waits get shorter as well, which one stage does not tell.
    assert true_ns >= 0.98 * ms(36)


def test_an_all_to_all_is_no_pipeline():
    from stepscope.fleet.pipeline import read_pipeline

    t = GpuTrace(world_size=4)
    for _ in range(2):
        with t.step():
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(2))
            t.wait_collective(t.collective("all_to_all", 1 << 20, ms(1)))
    assert read_pipeline(t.load()) is None
