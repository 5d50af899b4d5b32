"""Pipelines: the simulated job without the planted cause, and the known bubble, are the judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.meeting_ranks import steady_step_ns, write_ranks
from tests.support.one_step import check_diagnosis
from tests.support.pipeline_traces import SEND_RECV, Pipeline, pipeline_traces

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.fleet.stragglers import find_stragglers
from stepscope.run.reader import open_run

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


def test_stragglers_names_a_slow_stage_and_no_even_one(few, slow):
    verdict = find_stragglers([(rank, t.load()) for rank, t in enumerate(few[1])]).verdict
    assert verdict == "no rank makes the others wait for an unusual reason"
    found = find_stragglers([(rank, t.load()) for rank, t in enumerate(slow[1])])
    assert found.verdict.startswith("rank 2 makes the others wait: its computation takes longer")
    fast = pipeline_traces(Pipeline(steps=STEPS, batches=6))
    true_ns = steady_step_ns(slow[1][2], 0, STEPS - 1) - steady_step_ns(fast[2], 0, STEPS - 1)
    gain = found.causes.filter(rank=2)["gain_ns"].max()
    assert 0.5 * true_ns < gain <= 1.05 * true_ns


def test_sends_without_their_other_rank_are_not_matched(few):
    for t in few[1]:
        for event in t.events:
            for key in ("Dst Rank", "Src Rank"):
                event["args"].pop(key, None)
    found = find_stragglers([(rank, t.load()) for rank, t in enumerate(few[1])])
    assert found.sets.is_empty()
    assert any("other rank" in reason for reason in found.scope.excluded)


def test_an_all_to_all_is_no_pipeline():
    from stepscope.fleet.pipeline import read_pipeline

    t = GpuTrace(world_size=4)
    for _ in range(2):
        with t.step():
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(2))
            t.wait_collective(t.collective("all_to_all", 1 << 20, ms(1)))
    assert read_pipeline(t.load()) is None
