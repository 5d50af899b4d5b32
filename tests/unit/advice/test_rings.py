"""Ranks that pass data around a ring are not taken for the stages of a pipeline."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.pipeline_traces import SEND_RECV
from tests.support.planted import products
from tests.support.ranks_that_wait import PATIENCE_S, write_ranks

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run

RANKS, STEPS, ROUNDS = 4, 4, 3
SLOW = 2
STREAM = 20


def _ring(folder: Path, more_ns: int, about: dict[str, object]) -> Diagnosis:
    """Each exchange ends for a rank once both of its neighbours have come."""
    starts = [0] * RANKS
    all_came, all_read = (threading.Barrier(RANKS, timeout=PATIENCE_S) for _ in range(2))

    def run(rank: int) -> GpuTrace:
        def length(start_ns: int) -> int:
            starts[rank] = start_ns
            all_came.wait()
            last_ns = max(starts[(rank + away) % RANKS] for away in (-1, 0, 1))
            all_read.wait()
            return last_ns + us(400) - start_ns

        t = GpuTrace(rank=rank, world_size=RANKS, device=rank)
        for _ in range(STEPS):
            with t.step():
                for _ in range(ROUNDS):
                    products(t, 2)
                    if rank == SLOW and more_ns:
                        products(t, 1, more_ns)
                    with t.op("record_param_comms", **about):
                        t.wait_event(t.record_event(), STREAM)
                        t.launch(
                            SEND_RECV, length, stream=STREAM, category="communication", **about
                        )
                    t.wait_event(t.record_event(STREAM))
                t.sync()
        return t

    with ThreadPoolExecutor(RANKS) as pool:
        traces = list(pool.map(run, range(RANKS)))
    diagnosis = diagnose(open_run(str(write_ranks(traces, folder / "job"))))
    check_diagnosis(diagnosis)
    return diagnosis


@pytest.mark.parametrize("about", [{}, {"Collective name": "send"}])
def test_a_rank_that_computes_longer_is_named_as_a_rank(tmp_path, about):
    diagnosis = _ring(tmp_path, ms(4), about)
    found = {one.id: one for one in diagnosis.findings}
    uneven = found["uneven-stages"]
    assert uneven.rank == SLOW
    assert uneven.title.startswith("rank 2 computes 17.4 ms per step, the ranks that it exchanges")
    assert "ring" in uneven.advice
    assert "other ranks in sends and receives" in found["pipeline-bubble"].title
    assert "stage" not in diagnosis.verdict.replace("uneven-stages", "")
    assert "late-rank" not in found
    (exposed,) = (
        one for one in diagnosis.findings if (one.id, one.rank) == ("exposed-communication", SLOW)
    )
    assert exposed.saving_ns == pytest.approx(ROUNDS * us(400), rel=0.01)
    assert "which may include waiting" in exposed.assumption


@pytest.mark.parametrize("about", [{}, {"Collective name": "send"}])
def test_an_even_ring_has_only_its_transfers(tmp_path, about):
    diagnosis = _ring(tmp_path, 0, about)
    found = {one.id: one for one in diagnosis.findings}
    assert not found.keys() & {"uneven-stages", "pipeline-bubble", "late-rank"}
    # Nothing computes beside the exchanges: three of 400 µs in a step, as the job says.
    exposed = found["exposed-communication"]
    assert exposed.saving_ns == pytest.approx(ROUNDS * us(400), rel=0.01)
    said = {one.label: one.value for one in exposed.evidence}
    assert said["exposed per step"] == pytest.approx(ROUNDS * us(400), rel=0.01)
    assert said["sends and receives per step"] == ROUNDS
    assert "collectives per step" not in said
    assert diagnosis.verdict.startswith("exposed-communication: 18% of the device's time")
