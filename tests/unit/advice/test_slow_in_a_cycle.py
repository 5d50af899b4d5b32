"""Steps that are slow at a distance, with one of them and others in the window."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import dump
from tests.support.step_records import step_records

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import RankRun, open_run

STEPS, EVERY, SLOW = 40, 8, 16


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        pytest.param(4000, True, id="a rollout, one state at a time"),
        pytest.param(10, False, id="a few long operators"),
    ],
)
def test_a_slow_step_of_very_many_operators_says_so(tmp_path: Path, monkeypatch, calls, says):
    t = GpuTrace(device_name=None, first_step=SLOW - 1)
    for step in range(SLOW - 1, SLOW + 3):
        with t.step():
            for _ in range(calls if step == SLOW else 0):
                t.op("aten::addmm", before=0, after=0).python(ms(80) // calls)
            for _ in range(20):
                t.op("aten::linear", before=0, after=0).python(us(450))
            with t.annotate("Optimizer.step#SGD.step"):
                t.op("aten::_foreach_add_", before=0, after=0).python(ms(1))
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(t))
    records = step_records([90.0 if step % EVERY == 0 else 10.0 for step in range(STEPS)])
    monkeypatch.setattr(RankRun, "steps", tuple(records))  # as if beside the trace
    diagnosis = diagnose(open_run(str(path)))
    check_diagnosis(diagnosis)
    (finding,) = (one for one in diagnosis.findings if one.id == "uneven-steps")
    title = "1 step in 8 takes 9 times as long as the others"
    if says:
        title += ", and calls 4,021 operators where they call 21"
    assert finding.title == title
    assert ("all environments of a rollout" in finding.advice) is says
    assert finding.saving_ns == pytest.approx(ms(80) * 4 / (STEPS - 1), rel=0.2)
