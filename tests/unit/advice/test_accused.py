"""Step records and windows together: who is late, and who only waited for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.advice.accused import Accused, with_accused, without_inherited
from stepscope.run.rank_skew import BACKWARD, RankSkew

MS = 1_000_000
RECORDED = RankSkew(
    basis=BACKWARD,
    is_device=True,
    steps=40,
    step_ns=50 * MS,
    late=(76, 77, 78, 79),
    wait_ns=6 * MS,
    saving_ns=5 * MS,
    last_share=0.9,
    error_ns=0,
    ranks=(),
)


def test_members_of_its_group_only_waited_for_a_late_rank():
    excess = {77: {"input": 7.0 * MS, "compute": 0.2 * MS}, 79: {"compute": 0.3 * MS}}
    found = without_inherited(RECORDED, excess)
    assert found.late == (77,)
    assert found.cause == "it waits for its input"
    assert found.accusation() == (
        "rank 77 makes the others wait: it waits for its input. Without that a step would take "
        "5.00 ms less, 10% of it"
    )


def test_ranks_that_have_as_much_to_do_as_each_other_stay_together():
    excess = {rank: {"compute": (6.0 + rank % 2) * MS} for rank in RECORDED.late}
    found = without_inherited(RECORDED, excess)
    assert found.late == RECORDED.late
    assert found.cause == "their computation takes longer"


@pytest.mark.parametrize("excess", [{}, {77: {"input": 1.0 * MS}}])
def test_windows_that_do_not_show_the_lateness_change_nothing(excess):
    assert without_inherited(RECORDED, excess) == RECORDED


@pytest.mark.parametrize(("steps", "late"), [(2, RECORDED.late), (3, (5,))])
def test_fewer_than_three_recorded_steps_do_not_contradict_the_records(steps, late):
    accused = Accused((5,), "input", 8 * MS, 7 * MS, steps, 50 * MS, is_of_host=False)
    found = with_accused(RECORDED, None, accused, {})
    assert found is not None
    assert found.late == late


def test_on_cpus_few_recorded_steps_accuse_nobody_whom_the_records_do_not():
    accused = Accused((5,), "input", 8 * MS, 7 * MS, 3, 50 * MS, is_of_host=True)
    assert with_accused(None, None, accused, {}) is None
    found = with_accused(replace(RECORDED, late=(5,)), None, accused, {})
    assert found is not None
    assert (found.late, found.saving_ns) == ((5,), RECORDED.saving_ns)
