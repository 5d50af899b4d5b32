"""A rank whose host comes late while it is recorded, against simulated jobs without the recording.

Recording slows its Python and its launches, so the others wait longer than they usually do: the
saving is that of an unrecorded step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.simulator import (
    Program,
    on_time,
    random_program,
    simulate,
    steady_step_ns,
    write_run,
)
from tests.support.simulator.program import (
    MS,
    Collective,
    Free,
    Kernels,
    Late,
    Malloc,
    Python,
    Recording,
    Synchronize,
)

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run


def program(world_size: int) -> Program:
    """Rank 1 computes for 10 ms as the others do, after 8 ms of Python that they do not have."""
    return Program(
        body=(Kernels(20, MS // 2, "gemm"), Collective(64 << 20, 200_000, after_compute=True)),
        loader=None,
        world_size=world_size,
        late=Late(rank=1, before=(Synchronize(True), Python(8 * MS, "train.py(20): bookkeeping"))),
        recording=Recording(
            first=12, steps=8, host_factor=1.5, has_record=True, has_stacks=True, steps_after=24
        ),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("frees", [False, True])
def test_a_late_host_is_worth_what_it_costs_unrecorded(world_size, frees, tmp_path):
    """Also where each rank frees memory in each step, for which its host waits for the device."""
    one = program(world_size)
    if frees:
        one = replace(one, body=(*one.body, Free(MS // 10), Malloc(MS // 10)))
    now_ns = steady_step_ns(one)
    truth = (now_ns - steady_step_ns(on_time(one))) / now_ns
    found = diagnose(open_run(str(write_run(simulate(one), tmp_path / "run")))).findings
    about = [one for one in found if one.id in ("late-rank", "rank-waiting") and one.saving_ns]
    assert about
    assert max(one.saving_ns for one in about) / now_ns == pytest.approx(truth, abs=0.05)


@pytest.mark.parametrize("seed", [11002288, 11005986])
def test_of_two_ranks_a_slow_loader_is_as_late_without_the_recording(seed, tmp_path):
    """Of two nobody is accused, but recording slows no loader: as much is saved without it."""
    one = random_program(seed)
    assert one.world_size == 2
    now_ns = steady_step_ns(one)
    truth = (now_ns - steady_step_ns(on_time(one))) / now_ns
    found = diagnose(open_run(str(write_run(simulate(one), tmp_path / "run")))).findings
    (waiting,) = (one for one in found if one.id == "rank-waiting")
    assert waiting.saving_ns / now_ns == pytest.approx(truth, abs=0.05)
