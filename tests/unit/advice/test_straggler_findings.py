"""Step records and windows together: who is late, and who only waited for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from stepscope.advice.job.stragglers import InWindows, find_late, without_inherited
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.blame.usual import Usual
from stepscope.skew.rank_skew import BACKWARD, RankSkew, RankWait

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
        "5.00 ms less, 10% of 50.0 ms"
    )


def test_ranks_that_have_as_much_to_do_as_each_other_stay_together():
    excess = {rank: {"compute": (6.0 + rank % 2) * MS} for rank in RECORDED.late}
    found = without_inherited(RECORDED, excess)
    assert found.late == RECORDED.late
    assert found.cause == "their computation takes longer"


@pytest.mark.parametrize("excess", [{}, {77: {"input": 1.0 * MS}}])
def test_windows_that_do_not_show_the_lateness_change_nothing(excess):
    assert without_inherited(RECORDED, excess) == RECORDED


def _windows(
    *, steps: int = 3, of_host: bool = False, gain_ns: int = 7 * MS, excess_ns: float = 10.0 * MS
) -> InWindows:
    """Eighty ranks of which rank 5 waits for its input, and the others for it."""
    row = {"rank": 5, "cause": "input", "caused_wait_ns": 8 * MS * 79 * steps, "gain_ns": gain_ns}
    ranks = pl.DataFrame(
        {
            "rank": range(80),
            "waited_ns": [0 if rank == 5 else 8 * MS * steps for rank in range(80)],
            "last_arrivals": 0,
        },
        schema_overrides={"rank": pl.Int64},
    )
    blame = SimpleNamespace(
        stragglers=pl.DataFrame([{**row, "peers": None}]),
        together=None,
        whole={},
        steps=steps,
        step_ns=50 * MS,
        by_step=pl.DataFrame({"rank": [5], "step": [0], "caused_wait_ns": [8 * MS]}),
        ranks=ranks,
        excess_ns={5: {"input": excess_ns}},
        usual=Usual(np.full((steps, 1), excess_ns), np.zeros(0), np.zeros(0)),
        gains=SimpleNamespace(by_step_ns=lambda _: np.full(steps, gain_ns), on_time=lambda _: None),
    )
    compared = SimpleNamespace(
        of_host=of_host,
        has_exchanges=False,
        read=(),
        fits=True,
        ranks=ranks,
        matched=SimpleNamespace(
            causes=("input",),
            ranks=np.array([5]),
            rank=np.zeros(steps, np.int64),
            step=np.arange(steps),
            rows_of=lambda _: np.ones(steps, np.bool_),
            by_step=lambda values: values[:, None],
        ),
    )
    windows = InWindows(compared, blame)  # type: ignore[arg-type]
    windows.__dict__["stages"] = ()
    return windows


@pytest.mark.parametrize(("steps", "late"), [(2, RECORDED.late), (3, (5,))])
def test_fewer_than_three_recorded_steps_do_not_contradict_the_records(steps, late):
    found = find_late(_windows(steps=steps), RECORDED, Thresholds())
    assert found is not None
    assert found.late == late


def test_windows_that_bring_less_than_a_finding_asks_for_accuse_nobody():
    assert find_late(_windows(gain_ns=MS), None, Thresholds()) is None
    found = find_late(_windows(gain_ns=MS), RECORDED, Thresholds())
    assert found is not None
    assert found.late == RECORDED.late


def test_records_say_how_late_a_rank_is_and_windows_what_that_brings():
    found = find_late(_windows(), replace(RECORDED, late=(5,)), Thresholds())
    assert found is not None
    assert found.cause == "it waits for its input"
    assert found.saving_ns == round(0.7 * RECORDED.wait_ns)


def test_on_cpus_few_recorded_steps_accuse_nobody_whom_the_records_do_not():
    windows = _windows(of_host=True)
    unsure = replace(RECORDED, chance=0.5)
    assert find_late(windows, unsure, Thresholds()) is None
    found = find_late(windows, replace(RECORDED, late=(5,)), Thresholds())
    assert found is not None
    assert (found.late, found.saving_ns) == ((5,), RECORDED.saving_ns)


def test_of_two_ranks_neither_is_accused():
    two = replace(RECORDED, ranks=(RankWait(0, 0, 40), RankWait(1, 6 * MS, 0)), late=(0,))
    assert two.is_notable
    assert not two.accuses
    assert replace(two, ranks=(*two.ranks, RankWait(2, 6 * MS, 0))).accuses
