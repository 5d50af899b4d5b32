"""Slow collectives that are the same ones in each step are told apart from accidents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import dump, job, products

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.opening.reader import open_run

STEPS = 5
LAYERS = 6
ACCIDENTS = "single collectives take far longer than others of their kind and size"


def _judged(path: Path, slow: Callable[[int, int], bool]) -> Diagnosis:
    """A job whose slow collectives are those of some steps and layers."""

    def body(t: GpuTrace, step: int) -> None:
        for layer in range(LAYERS):
            products(t, 2)
            t.wait_collective(t.collective("all_gather", 64 << 20, us(500)))
            length = ms(9) if slow(step, layer) else us(600)
            t.wait_collective(t.collective("reduce_scatter", 64 << 20, length))

    path.write_bytes(dump(job(body, steps=STEPS, world_size=8)))
    judged = diagnose(open_run(str(path)))
    check_diagnosis(judged)
    return judged


def _found(folder: Path, is_slow: Callable[[int, int], bool]) -> Finding:
    findings = _judged(folder / "slow.pt.trace.json", is_slow).findings
    (finding,) = (one for one in findings if one.id == "abnormal-collective")
    return finding


def _place(finding: Finding) -> object:
    return {one.label: one.value for one in finding.evidence}.get("its place in a step")


def test_one_of_each_step(tmp_path):
    finding = _found(tmp_path, lambda _, layer: layer == 2)
    healthy = _judged(tmp_path / "healthy.pt.trace.json", lambda *_: False)
    assert "abnormal-collective" not in {one.id for one in healthy.findings}
    assert finding.title == (
        "one reduce_scatter in each step, always the same, takes far longer than others of its "
        "kind and size"
    )
    assert _place(finding) == "3rd reduce_scatter of 6, in 5 of 5 steps"
    assert "not chance" in finding.advice
    assert finding.predicted_step_ns == pytest.approx(healthy.shown.step_ns, rel=0.01)


def test_two_of_each_step(tmp_path):
    finding = _found(tmp_path, lambda _, layer: layer in {1, 4})
    assert finding.title.startswith("the same 2 reduce_scatter in each step take far longer")
    assert _place(finding) == "2nd reduce_scatter of 6, 5th reduce_scatter of 6, in 5 of 5 steps"


def test_one_of_nearly_each_step(tmp_path):
    finding = _found(tmp_path, lambda step, layer: layer == 0 and step != 3)
    assert finding.title.startswith("one reduce_scatter in nearly each step, always the same,")
    assert _place(finding) == "1st reduce_scatter of 6, in 4 of 5 steps"


@pytest.mark.parametrize(
    "is_slow",
    [
        pytest.param(lambda step, layer: (step, layer) in {(1, 2), (3, 4)}, id="two accidents"),
        pytest.param(lambda step, layer: layer == 2 * step % LAYERS, id="one a step, anywhere"),
        pytest.param(lambda step, layer: layer == 2 and step < 2, id="in two steps"),
    ],
)
def test_accidents(tmp_path, is_slow):
    finding = _found(tmp_path, is_slow)
    assert finding.title == ACCIDENTS
    assert _place(finding) is None
