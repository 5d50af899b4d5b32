"""A host that runs ahead and waits for the GPU every few steps, against simulated trainings.

Its steps are short and long in turn, the GPU's are alike: nothing is uneven, and what the GPU's
work takes less is saved in full.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.simulator import Program, fixes, simulate, steady_step_ns, write_run
from tests.support.simulator.program import MS, Kernels, Python, Read, Recording

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run


def program(*, every: int, recorded: int = 8, work_ns: int = 40 * MS) -> Program:
    """FP32 products of 40 ms, launched within 20 ms; every few steps the loss is read."""
    return Program(
        body=(
            Kernels(80, work_ns // 80, "fp32", before_ns=150_000, after_ns=50_000),
            Read(waits=True, in_call=False, every=every, offset=0, dur_ns=1_500),
        ),
        loader=None,
        recording=Recording(
            first=12, steps=recorded, host_factor=1.3, has_record=True, steps_after=30
        ),
    )


def diagnosed(one: Program, folder: Path) -> Diagnosis:
    return diagnose(open_run(str(write_run(simulate(one), folder / "run"))))


@pytest.mark.parametrize("every", [2, 4, 5])
def test_steps_are_not_uneven_where_the_gpu_has_as_much_to_do_in_each(every, tmp_path):
    one = program(every=every)
    found = diagnosed(one, tmp_path)
    [rank] = found.ranks
    assert rank.steps is not None
    assert rank.steps.slow_steps  # on the host
    assert "uneven-steps" not in [finding.id for finding in found.findings]
    assert found.findings[0].id == "full-precision-matmuls"


def test_what_the_gpu_takes_less_is_saved_in_full(tmp_path):
    one = program(every=4)
    now_ns = steady_step_ns(one)
    before, after = fixes(one)["full-precision-matmuls"]
    truth = (steady_step_ns(before) - steady_step_ns(after)) / now_ns
    first = diagnosed(one, tmp_path).findings[0]
    assert first.saving_ns is not None
    assert first.saving_ns / now_ns == pytest.approx(truth, abs=0.05)


@pytest.mark.parametrize("every", [2, 3])
def test_recorded_steps_are_compared_with_their_like(every, tmp_path):
    [rank] = diagnosed(program(every=every), tmp_path).ranks
    assert rank.steps is not None
    assert rank.steps.recording_factor == pytest.approx(1.3, abs=0.05)


def test_steps_in_which_the_gpu_idles_are_uneven(tmp_path):
    one = Program(
        body=(
            Kernels(20, 1 * MS, "gemm", before_ns=50_000, after_ns=50_000),
            Read(waits=True, in_call=False, every=1, offset=0, dur_ns=1_500),
            Python(60 * MS, "train.py(40): rollout", every=4),
        ),
        loader=None,
        recording=Recording(first=12, steps=8, has_record=True, steps_after=30),
    )
    found = diagnosed(one, tmp_path)
    assert "uneven-steps" in [finding.id for finding in found.findings]
