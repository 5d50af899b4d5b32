"""numpy 2.5 refuses to choose between unsigned numbers and -1: so do these tests, on any numpy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.questions import QUESTIONS
from stepscope.opening.reader import open_run


def _training() -> GpuTrace:
    trace = GpuTrace()
    for _ in range(4):
        with trace.step():
            trace.data_wait(us(300))
            with trace.op("aten::copy_"):
                trace.copy("HtoD", 1 << 20, us(40), pinned=False)
            with trace.op("aten::mm", shapes=[[64, 64], [64, 64]]):
                trace.launch("ampere_sgemm_128x64_nn", us(200))
            done = trace.collective("all_reduce", 1 << 20, us(100))
            trace.wait_collective(done)
            trace.item()
    return trace


@pytest.fixture
def strict_choices(monkeypatch):
    choose = np.where

    def where(condition, *choices):
        unsigned = [one for one in choices if getattr(one, "dtype", np.dtype(int)).kind == "u"]
        if unsigned and any(isinstance(one, int) and one < 0 for one in choices):
            raise OverflowError(f"a negative number among {unsigned[0].dtype}")
        return choose(condition, *choices)

    monkeypatch.setattr(np, "where", where)


def test_the_check_itself_sees_what_numpy_refuses(strict_choices):
    with pytest.raises(OverflowError, match="uint32"):
        np.where(np.array([True]), np.array([1], np.uint32), -1)


def test_no_question_puts_a_negative_number_among_unsigned_ones(strict_choices):
    trace = _training().load()
    for asked in QUESTIONS:
        if not asked.over_ranks:
            asked.ask(trace)


def test_nor_does_the_report(tmp_path, strict_choices):
    file = tmp_path / "trace.json"
    file.write_bytes(_training().json())
    assert diagnose(open_run(file)).verdict
