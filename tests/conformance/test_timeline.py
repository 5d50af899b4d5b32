"""The timeline against other tools' numbers on real traces, and its conservation on all of them."""

from __future__ import annotations

import csv

import numpy as np
import polars as pl
import pytest
from tests.support.real_traces import EACH, real_trace
from tests.support.traces import trace_path

from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
from stepscope.analysis.idle import idle_causes
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.analysis.timeline import TIMELINE_PARTS, device_sets, timeline

_ROWS = {
    "computation_time": "compute_ns",
    "exposed_comm_time": "exposed_comm_ns",
    "exposed_memcpy_time": "exposed_memcpy_ns",
    "busy_time": "busy_ns",
    "idle_time": "idle_ns",
    "total_time": "total_ns",
    "total_comm_time": "total_comm_ns",
    "total_memcpy_time": "total_memcpy_ns",
}
LINKED = Scope(events=EventChoice.LINKED)


def _expected(folder: str) -> list[dict[str, str]]:
    with trace_path(f"{folder}/expected_gpu_timeline.csv").open() as file:
        return list(csv.DictReader(file))


def _measure(work: pl.DataFrame) -> dict[str, int]:
    """The numbers of rows of one device, from their first start to their last end."""
    (sets,) = device_sets(work)
    first, last = work["start_ns"].min(), work["end_ns"].max()
    return {k: int(v[0]) for k, v in sets.measure(np.array([first]), np.array([last])).items()}


@pytest.mark.parametrize("folder", ["h100_qwen_inference", "h100_timesformer_inference"])
def test_tracelens_timeline_with_its_scope(folder: str) -> None:
    answer = timeline(real_trace(f"{folder}/trace.json.gz"), LINKED)
    for row in _expected(folder):
        ours = getattr(answer, _ROWS[row["type"]])
        assert ours == pytest.approx(float(row["time ms"]) * 1e6, rel=1e-4, abs=1), row["type"]


def test_tracelens_timeline_of_a_recomputed_model() -> None:
    """TraceLens splits this table in two: work of recomputation, and all the rest.

    Each half takes its own span for its total and knows nothing of the other half, so the halves
    cannot be added up, except for work that never overlaps. On this trace it also leaves fills
    out (0.328 ms), which it counts as computation on the others. With both, we agree to 1e-4.
    """
    trace = real_trace("mi300x_resnet_train/trace.json.gz")
    work = gpu_work(trace, LINKED).table
    expected = {
        (r["is_recompute"], r["type"]): float(r["time ms"]) * 1e6
        for r in _expected("mi300x_resnet_train")
    }
    is_fill = pl.col("kind").cast(pl.String) == "memset"
    fills_ns = work.filter(is_fill)["dur_ns"].sum()
    assert fills_ns == 327_837
    halves = work.filter(~is_fill).with_columns(
        again=_is_recomputed(trace, work.filter(~is_fill)["op"])
    )
    for again in (False, True):
        ours = _measure(halves.filter(pl.col("again") == again))
        for word, name in _ROWS.items():
            assert ours[name] == pytest.approx(expected[str(again), word], rel=1e-4, abs=1), (
                again,
                word,
            )
    whole = timeline(trace, LINKED)
    compute = expected["False", "computation_time"] + expected["True", "computation_time"]
    assert whole.compute_ns - fills_ns == pytest.approx(compute, rel=1e-4)
    # The recomputed half hides communication that the other half, alone, calls exposed.
    assert whole.exposed_comm_ns < expected["False", "exposed_comm_time"]
    for word in ("total_time", "total_comm_time", "total_memcpy_time"):
        assert getattr(whole, _ROWS[word]) == pytest.approx(expected["False", word], rel=1e-4)


def _is_recomputed(trace, ops: pl.Series) -> pl.Series:
    """Whether an operator runs inside the frame that torch recomputes a checkpointed part in."""
    marks = trace.names.filter(
        pl.col("name").str.contains(
            r"torch/utils/checkpoint\.py\(\d+\): (unpack_hook|recompute_fn)"
        )
    ).collect()["name_id"]
    events = trace.events.select("event", "name_id", "lane_id", "start_ns", "dur_ns").collect()
    frames = events.filter(pl.col("name_id").is_in(marks.implode()))
    assert len(frames)
    # Autograd's threads may have no frames of their own: the time of the frame decides.
    rows = events[ops.fill_null(0)]
    inside = np.zeros(len(rows), bool)
    for lane, start, dur in frames.select("lane_id", "start_ns", "dur_ns").iter_rows():
        inside |= (
            (rows["lane_id"] == lane)
            & (rows["start_ns"] >= start)
            & (rows["start_ns"] < start + dur)
        ).to_numpy()
    return pl.Series(inside)


def test_hta_temporal_breakdown() -> None:
    """HTA drops the last step and takes what is left for the whole; it counts fills as memory.

    With both we have its numbers, to the microsecond that its file is written in. Ours for the
    whole file cover five steps and count fills (0.2 ms a step) as computation.
    """
    trace = real_trace("v100_train_5steps/trace.json.gz")
    work = gpu_work(trace).table
    kept = work.filter(pl.col("step") < 6)
    is_fill = pl.col("kind").cast(pl.String) == "memset"
    fills_ns = int(kept.filter(is_fill)["dur_ns"].sum())
    ours = _measure(kept)
    assert ours["idle_ns"] == 643_612_000
    assert ours["compute_ns"] - fills_ns == 496_485_000
    assert ours["busy_ns"] - ours["compute_ns"] + fills_ns == 256_572_000
    assert fills_ns == 709_000
    assert timeline(trace).compute_ns == 621_408_000


def test_hta_overlap() -> None:
    """HTA's 47.03% is without the last step and without fills; with the fills it is 47.44%.

    Over all six steps, fills and all, ours is 46.64%.
    """
    trace = real_trace("hta_trace_diff/control.json.gz")
    work = gpu_work(trace).table.filter(pl.col("step") < 1014)
    is_fill = pl.col("kind").cast(pl.String) == "memset"

    def overlap(rows: pl.DataFrame) -> float:
        found = _measure(rows)
        return found["overlap_ns"] / found["total_comm_ns"]

    assert round(overlap(work.filter(~is_fill)), 4) == 0.4703
    assert round(overlap(work), 4) == 0.4744
    whole = timeline(trace)
    assert whole.overlap_share is not None
    assert round(whole.overlap_share, 4) == 0.4664


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("events", list(EventChoice))
def test_parts_add_up_and_steps_divide_the_time(name: str, events: EventChoice) -> None:
    trace = real_trace(name)
    answer = timeline(trace, Scope(events=events))
    for table in (answer.devices, answer.steps):
        assert (table.select(TIMELINE_PARTS).sum_horizontal() == table["total_ns"]).all()
        assert (table["busy_ns"] + table["idle_ns"] == table["total_ns"]).all()
        assert table.select(pl.all().exclude("overlap_share") >= 0).to_numpy().all()
    steps = trace.device_steps
    for device, rows in steps.group_by("device"):
        mine = answer.steps.filter(pl.col("device") == device[0])
        assert mine["total_ns"].sum() == rows["end_ns"].max() - rows["start_ns"].min()
    scoped = timeline(trace, Scope(steps=tuple(steps["step"].unique()), events=events))
    assert scoped.total_ns == answer.steps["total_ns"].sum()
    assert scoped.compute_ns == answer.steps["compute_ns"].sum()


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("events", list(EventChoice))
def test_idle_causes_add_up_to_the_idle_time(name: str, events: EventChoice) -> None:
    trace = real_trace(name)
    whole = timeline(trace, Scope(events=events))
    causes = idle_causes(trace, Scope(events=events))
    assert causes.idle_ns == causes.causes["idle_ns"].sum() == whole.idle_ns
    both = causes.steps.join(whole.steps, on=["device", "step"], suffix="_timeline")
    assert len(both) == len(causes.steps) == len(whole.steps)
    assert (both["idle_ns"] == both["idle_ns_timeline"]).all()
    parts = both.select(f"{cause}_ns" for cause in IDLE_CAUSES).sum_horizontal()
    assert (parts == both["idle_ns"]).all()
    if events is EventChoice.LINKED:
        assert causes.gaps["ended_by"].null_count() == 0
        assert causes.of("unknown") == 0


def test_the_loader_without_workers_is_what_the_gpu_waits_for() -> None:
    """The same model twice: only without worker processes is the input the main cause."""
    folder = "v100_dataloader_contrast"
    alone = idle_causes(
        real_trace(f"{folder}/num_workers_0_worker0.1623143089861.pt.trace.json.gz")
    )
    four = idle_causes(real_trace(f"{folder}/num_workers_4_worker0.1623212756351.pt.trace.json.gz"))
    assert alone.causes["cause"][0] == "input"
    assert alone.of("input") > 20 * four.of("input")
