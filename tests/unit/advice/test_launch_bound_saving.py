"""The saving of launch-bound is not larger than the host time that it is taken from."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import GEMM, MM, SCENARIOS, dump

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run


@pytest.mark.parametrize("name", ["launch-bound", "starved GPU"])
def test_it_is_taken_from_dispatch_and_launches(tmp_path, name):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(next(one for one in SCENARIOS if one.name == name).build()))
    diagnosis = diagnose(open_run(str(path)))
    (finding,) = (one for one in diagnosis.findings if one.id == "launch-bound")
    seen = {item.label: item.value for item in finding.evidence}
    spent_ns = seen["host time in dispatch and launches, per step"]
    assert finding.saving_ns is not None
    assert seen["idle for late launches, per step"] <= spent_ns
    assert finding.saving_ns <= spent_ns


@pytest.mark.parametrize(("python_ms", "is_host_bound"), [(5, True), (0.2, False)])
def test_faster_launches_help_a_host_that_python_makes_late(tmp_path, python_ms, is_host_bound):
    """40 launches of 84 µs and kernels of 100 µs: alone they never leave the GPU idle."""
    t = GpuTrace()
    for _ in range(8):
        with t.step():
            t.python(ms(python_ms))
            for _ in range(40):
                t.op("aten::mm", **MM, before=us(60), after=us(20)).launch(GEMM, us(100))
    t.sync()
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(t))
    found = {one.id: one for one in diagnose(open_run(str(path))).findings}
    assert ("launch-bound" in found) is is_host_bound
    if is_host_bound:
        # All 40 launches run beside the GPU's work of the step before.
        assert found["launch-bound"].saving_ns == pytest.approx(40 * us(84), rel=0.1)
        assert "the host limits the step, and 4" in found["launch-bound"].title
        assert next(iter(found)) == "cpu-bound-python"
