"""The advice against what recording costs names what the recording really had."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.step_records import step_records

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.rank.diagnose_rank import summarise_rank
from stepscope.advice.rank.summary import Request
from stepscope.advice.rules.recording import find_profiler_overhead
from stepscope.analysis.record.summary import summarise_steps
from stepscope.opening.reader import RankRun
from stepscope.run.manifest import ArtifactRecord, RankManifest, WindowRecord

RECORDS = tuple(step_records([20.0] * 20 + [40.0] * 8, recorded=range(20, 28)))
"""Of 28 steps, eight were recorded and took twice as long."""


def advice(header=None, frames=False, gpu=True):
    t = GpuTrace(header=header or {})
    for _ in range(3):
        with t.step():
            if frames:
                with t.frame("train.py(3): step"):
                    t.op("aten::mm").launch("gemm", ms(1))
            elif gpu:
                t.op("aten::mm").launch("gemm", ms(1))
            else:
                t.op("aten::mm").python(ms(1))
    view = WindowView(t.load())
    (finding,) = find_profiler_overhead(Subject(0, summarise_steps(RECORDS), window=view))
    return finding.advice


def test_only_what_was_recorded_can_be_left_out():
    assert "record less: without stacks and shapes, or" in advice(
        {"with_stack": 1, "record_shapes": 1}
    )
    assert "record less: without memory, or" in advice({"profile_memory": True, "with_stack": 0})
    many = advice({"record_shapes": 1, "with_flops": 1, "profile_memory": 1})
    assert "without shapes, FLOPs and memory, or" in many


def test_functions_of_python_show_stacks_where_the_file_does_not_say_so():
    assert "record less: without stacks, or" in advice(frames=True)


def test_no_detail_is_named_where_there_was_none():
    words = advice()
    assert "without" not in words
    assert "record fewer steps at a time: no detail" in words


def test_gpu_times_are_not_praised_without_a_gpu():
    assert advice().startswith("Trust GPU times")
    assert "GPU" not in advice(gpu=False)


@pytest.mark.parametrize(
    ("kinds", "named"), [(("python_memory",), True), (("trace",), False), ((), False)]
)
def test_windows_of_tracemalloc_have_advice_of_their_own(tmp_path, monkeypatch, kinds, named):
    files = tuple(ArtifactRecord(kind, f"window-0000/{kind}") for kind in kinds)
    manifest = RankManifest(0, windows=(WindowRecord(0, "complete", artifacts=files),))
    monkeypatch.setattr(RankRun, "steps", RECORDS)  # as if they lay in the folder
    found = summarise_rank(RankRun(0, tmp_path, manifest, ()), Request()).findings
    (finding,) = (one for one in found if one.id == "profiler-overhead")
    assert ("tracemalloc" in finding.advice) == named
    assert "stacks" not in finding.advice
