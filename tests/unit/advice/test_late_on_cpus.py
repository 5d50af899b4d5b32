"""Late ranks of trainings without a GPU, by how long each waits in the recorded steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.ranks_that_wait import write_ranks

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.sentences import between_ranks
from stepscope.skew.rank_skew import RECORDED_WAITS

TRANSFER_MS = 2
GLOO_THREAD = 2000


def _judged(
    folder: Path,
    forward_ms: list[list[float]],
    *,
    call: str = "all_reduce",
) -> Diagnosis:
    """Ranks that compute for given times, by step and rank, and meet in a collective of gloo."""
    traces = [
        GpuTrace(device_name=None, world_size=len(forward_ms[0]), rank=rank)
        for rank in range(len(forward_ms[0]))
    ]
    for of_step in forward_ms:
        last = max(of_step)
        for t, own in zip(traces, of_step, strict=True):
            with t.step():
                t.op("aten::linear").python(ms(own))
                t.op(f"c10d::{call}_").python(us(50))
                waiting = ms(last - own + TRANSFER_MS)
                with (
                    t.beside(GLOO_THREAD, "pt_gloo_runloop"),
                    t.op(f"gloo:{call}", category="user_annotation", before=0, after=0),
                ):
                    t.python(waiting)
                t.python(waiting)
                with t.annotate("Optimizer.step#SGD.step"):
                    t.op("aten::_foreach_add_").python(ms(1))
    diagnosis = diagnose(open_run(str(write_ranks(traces, folder / "job"))))
    check_diagnosis(diagnosis)
    return diagnosis


def test_a_rank_with_more_to_compute_is_late_and_others_waits_are_no_lack_of_overlap(tmp_path):
    diagnosis = _judged(tmp_path, [[10, 80, 10]] * 4)
    assert diagnosis.skew is not None
    assert (diagnosis.skew.basis, diagnosis.skew.late) == (RECORDED_WAITS, (1,))
    assert diagnosis.verdict.startswith("late-rank: rank 1 comes last")
    assert "'forward' takes 70.0 ms longer on it" in diagnosis.verdict
    first = diagnosis.findings[0]
    assert (first.id, first.rank) == ("late-rank", 1)
    assert first.saving_ns == pytest.approx(ms(70), rel=0.01)
    exposed = [one for one in diagnosis.findings if one.id == "exposed-communication"]
    assert {one.rank for one in exposed} == {0, 2}
    assert all(one.saving_ns is None for one in exposed)
    assert "the rest is for other ranks" in exposed[0].saving_reason
    assert (
        "rank 1 makes the others wait: its computation takes longer. Without that a step would "
        "take 70.0 ms less" in between_ranks(diagnosis)
    )


@pytest.mark.parametrize(
    "forward_ms",
    [
        pytest.param([[10, 80], [80, 10], [10, 80], [10, 80]], id="not in every step"),
        pytest.param([[40, 44], [41, 42], [40, 47], [42, 43]], id="too little for so few steps"),
        pytest.param([[10, 80]] * 2, id="two steps"),
    ],
)
def test_few_steps_accuse_nobody_by_chance(tmp_path, forward_ms):
    diagnosis = _judged(tmp_path, forward_ms)
    assert diagnosis.skew is None
    assert "late-rank" not in {one.id for one in diagnosis.findings}


def test_ranks_that_send_to_single_ranks_wait_by_design(tmp_path):
    assert _judged(tmp_path, [[10, 80]] * 4, call="recv").skew is None
