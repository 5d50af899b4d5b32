"""The GPU timeline against a brute-force oracle, and on traces with known answers."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.selection.gpu_work import NO_GPU_WORK, NO_STEPS
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.analysis.timeline import TIMELINE_PARTS, device_sets, timeline
from stepscope.errors import UsageError

KINDS = ["compute", "communication", "memcpy", "memset"]


def _random_work(seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 30))
    start = random.integers(0, 100, count)
    dur = random.integers(0, 20, count)
    return pl.DataFrame(
        {
            "device": random.integers(0, 2, count).astype(np.int32),
            "kind": random.choice(KINDS, count),
            "start_ns": start,
            "end_ns": start + dur,
        }
    ).sort("device", "start_ns")


@pytest.mark.parametrize("seed", range(60))
def test_every_number_is_what_counting_single_moments_gives(seed: int) -> None:
    work = _random_work(seed)
    windows = np.array([[0, 130], [10, 50], [50, 50], [37, 90]])
    for sets in device_sets(work):
        measured = sets.measure(windows[:, 0], windows[:, 1])
        mine = work.filter(pl.col("device") == sets.device).rows(named=True)
        for number, (first, last) in enumerate(windows):
            counts = dict.fromkeys(measured, 0)
            for moment in range(first, last):
                on = {row["kind"] for row in mine if row["start_ns"] <= moment < row["end_ns"]}
                compute = bool(on & {"compute", "memset"})
                comm, memcpy = "communication" in on, "memcpy" in on
                counts["compute_ns"] += compute
                counts["exposed_comm_ns"] += comm and not compute
                counts["exposed_memcpy_ns"] += memcpy and not compute and not comm
                counts["idle_ns"] += not on
                counts["busy_ns"] += bool(on)
                counts["total_ns"] += 1
                counts["total_comm_ns"] += comm
                counts["total_memcpy_ns"] += memcpy
                counts["overlap_ns"] += comm and compute
            assert {name: int(column[number]) for name, column in measured.items()} == counts


def _training(**options: object) -> GpuTrace:
    t = GpuTrace(world_size=2, **options)  # type: ignore[arg-type]
    for _ in range(3):
        with t.step():
            t.copy("HtoD", 1 << 20, us(40))
            t.op("aten::mm").launch("ampere_sgemm", us(300))
            done = t.collective("all_reduce", 1 << 20, us(200))
            t.op("aten::mm").launch("ampere_sgemm", us(150))
            t.wait_collective(done)
            t.op("aten::add_").launch("vectorized_elementwise_kernel", us(20))
            t.sync()
            t.python(us(100))
    return t


def test_steps_have_the_numbers_that_were_planted() -> None:
    t = _training()
    answer = timeline(t.load())
    assert answer.steps["step"].to_list() == [0, 1, 2]
    for row in answer.steps.rows(named=True):
        assert row["compute_ns"] == us(300 + 150 + 20)
        assert row["total_comm_ns"] == us(200)
        # The second product hides 150 µs of the collective, less the time that its launch took.
        second = [w for w in t.work if w.step == row["step"] and w.name == "ampere_sgemm"][1]
        comm = next(w for w in t.work if w.step == row["step"] and w.kind == "communication")
        hidden = min(second.end_ns, comm.end_ns) - max(second.start_ns, comm.start_ns)
        assert row["overlap_ns"] == hidden
        assert row["exposed_comm_ns"] == us(200) - hidden
        assert row["exposed_memcpy_ns"] == us(40)
        assert row["work_ns"] == us(40 + 300 + 200 + 150 + 20)
        assert row["events"] == 5
    first = min(w.start_ns for w in t.work)
    assert answer.total_ns == max(w.end_ns for w in t.work) - first
    assert sum(getattr(answer, part) for part in TIMELINE_PARTS) == answer.total_ns
    # Device steps divide the time from the first step's start to the end of the last work.
    assert answer.steps["total_ns"].sum() == max(w.end_ns for w in t.work) - t.start_ns


def test_a_scope_of_steps_is_their_sum() -> None:
    trace = _training().load()
    whole = timeline(trace)
    two = timeline(trace, Scope(steps=(1, 2)))
    rows = whole.steps.filter(pl.col("step") > 0)
    for name in (*TIMELINE_PARTS, "total_ns", "busy_ns"):
        assert getattr(two, name) == rows[name].sum()
    assert two.scope.steps == (1, 2)
    assert two.scope.events == 10
    assert two.scope.excluded == {"GPU events of other steps or of none": 5}


def test_linked_events_alone() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("a", us(10))
        t.launch("b", us(30), linked=False)
    trace = t.load()
    linked = timeline(trace, Scope(events=EventChoice.LINKED))
    assert linked.compute_ns == us(10)
    assert linked.scope.excluded == {"GPU events without a known launch": 1}
    assert timeline(trace).compute_ns == us(40)


def test_without_steps_the_whole_file_is_answered_and_says_so() -> None:
    trace = _training(annotate_steps=False).load()
    answer = timeline(trace)
    assert NO_STEPS in answer.notes
    assert answer.steps.is_empty()
    assert answer.compute_ns == 3 * us(470)


def test_without_gpu_work_everything_is_zero_and_says_so() -> None:
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").python(us(5))
    answer = timeline(t.load())
    assert answer.total_ns == 0
    assert NO_GPU_WORK in answer.notes
    assert answer.devices.is_empty()


def test_steps_and_devices_that_are_not_there() -> None:
    trace = _training().load()
    with pytest.raises(UsageError, match=r"no step 7: it has steps 0 to 2"):
        timeline(trace, Scope(steps=(1, 7)))
    with pytest.raises(UsageError, match=r"device 3: it has 0"):
        timeline(trace, Scope(devices=(3,)))


def test_a_step_that_launched_nothing_is_named() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("a", us(10))
    with t.step():
        t.op("aten::mm").python(us(5))
    answer = timeline(t.load())
    assert answer.steps["total_ns"].to_list()[1] == 0
    assert any("steps 1 launched no GPU work" in note for note in answer.notes)
