"""Causes that all ranks have, which those that wait for a late one do not show.

What such a rank does takes nobody's time as long as it waits for the late one anyway. The oracle is
the same job, simulated without the cause on all ranks.
"""

from __future__ import annotations

import pytest
from tests.support.simulator import simulate, steady_step_ns, write_job
from tests.support.simulator.fixes import fixes
from tests.support.simulator.program import (
    MS,
    US,
    Collective,
    Kernels,
    Late,
    Loader,
    OnThread,
    Program,
    Python,
    Recording,
    Synchronize,
    WaitForCollectives,
)

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run


def job(before_ns: int, python_ns: int) -> Program:
    """Two ranks that do the same, one of which comes later by 1 ms."""
    kernels = Kernels(40, 25 * US, "gemm", before_ns, 10 * US)
    return Program(
        (
            kernels,
            Python(python_ns),
            OnThread((kernels, Collective(1 << 26, MS // 5))),
            WaitForCollectives(),
            Kernels(1, 200 * US, "optimizer", 60 * US),
        ),
        Loader(cpu_ns=200 * US, start_ns=5 * MS, worker_start_ns=30 * MS),
        recording=Recording(first=8, steps=6),
        world_size=2,
        late=Late(0, before=(Synchronize(), Python(1 * MS, "train.py(30): log"))),
    )


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (job(60 * US, 0), "launch-bound"),
        (job(5 * US, 6 * MS), "cpu-bound-python"),
    ],
)
def test_a_cause_that_waits_hide_on_the_others_saves_what_it_saves_on_all(tmp_path, program, cause):
    diagnosis = diagnose(open_run(str(write_job(simulate(program), tmp_path / "job"))))
    now_ns = steady_step_ns(program, is_recorded=True)
    true = 1 - steady_step_ns(fixes(program)[cause][1], is_recorded=True) / now_ns
    promised = {
        one.rank: (one.saving_ns or 0) / now_ns for one in diagnosis.findings if one.id == cause
    }
    assert max(promised.values(), default=0.0) == pytest.approx(true, abs=0.04)
    assert true > 0.2
    if len(promised) == 1:
        (one,) = (finding for finding in diagnosis.findings if finding.id == cause)
        assert "too, where waits for other ranks hide it" in one.assumption
