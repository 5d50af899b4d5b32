"""What a selection keeps."""

from __future__ import annotations

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.errors import UsageError
from stepscope.export.selection import Selection, begins_behind, cut
from stepscope.trace.load import load


def test_everything_is_the_trace_itself(trace):
    part = cut(trace, Selection())
    assert part.trace is trace
    assert part.left_out == 0


def test_steps_keep_their_own_events_and_what_is_around_them(trace):
    part = cut(trace, Selection(steps=(1,)))
    of = trace.derived.select("event", "step").collect()
    mine = of.filter(step=1)["event"].to_list()
    kept = part.event.to_list()
    assert set(mine) <= set(kept)
    step = trace.steps.filter(step=1).row(0, named=True)
    for event in set(kept) - set(mine):
        row = trace.events.filter(event=event).collect().row(0, named=True)
        assert row["start_ns"] <= step["start_ns"]
        assert row["start_ns"] + row["dur_ns"] >= step["end_ns"]
    assert len(kept) + part.left_out == len(of)


def test_a_cut_step_answers_as_the_whole_trace_does(trace):
    part = cut(trace, Selection(steps=(1,))).trace
    names = ["name", "kind"]

    def kernels(one):
        named = one.names.collect().select("name_id", "name")
        table = one.events.collect().with_columns(one.derived.select("step", "kind").collect())
        joined = table.join(named, on="name_id").filter(step=1)
        return joined.select(*names, "start_ns", "dur_ns").sort("start_ns", "name", "dur_ns")

    assert_frame_equal(kernels(part), kernels(trace))
    assert part.steps["step"].to_list() == [1]


def test_a_range_keeps_what_is_open_in_it(trace):
    events = trace.events.collect()
    origin = events["start_ns"].min()
    part = cut(trace, Selection(start_ns=200_000, end_ns=900_000))
    expected = events.filter(
        pl.col("start_ns") <= origin + 900_000,
        pl.col("start_ns") + pl.col("dur_ns") >= origin + 200_000,
    )
    assert part.event.to_list() == expected["event"].to_list()
    assert (part.start_ns, part.end_ns) == (origin + 200_000, origin + 900_000)


def test_arrows_stay_only_with_both_ends(tmp_path):
    where = [{"pid": 1, "tid": 1, "ts": 0}, {"pid": 0, "tid": 7, "ts": 20}]
    events = [
        {"ph": "X", "cat": category, "name": name, "dur": 5, "args": args, **place}
        for category, name, args, place in (
            ("cuda_runtime", "cudaLaunchKernel", {"correlation": 1}, where[0]),
            ("kernel", "k", {"correlation": 1, "device": 0, "stream": 7}, where[1]),
        )
    ]
    events += [
        {"ph": phase, "id": 1, "cat": "ac2g", "name": "ac2g", **place}
        for phase, place in zip("sf", where, strict=True)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = load(path)
    assert len(cut(trace, Selection(end_ns=30_000)).trace.flows.collect()) == 2
    part = cut(trace, Selection(lanes=("gpu",))).trace
    assert part.events.collect()["device"].to_list() == [0]
    assert not len(part.flows.collect())


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(steps=(9,)), "has no step 9; it has steps 0 to 2"),
        (Selection(lanes=("nowhere",)), "has no lane 'nowhere'; choose host, gpu, main"),
        (Selection(start_ns=10**15), "the selection holds no events"),
    ],
)
def test_what_is_not_there_is_named(trace, selection, message):
    with pytest.raises(UsageError, match=message):
        cut(trace, selection)


def test_a_cut_step_whose_gpu_work_waits_for_earlier_steps_is_told():
    ahead = GpuTrace()
    for _ in range(4):
        with ahead.step():
            ahead.op("aten::mm").launch("sgemm", ms(30))
    told = begins_behind(cut(ahead.load(), Selection(steps=(2,))), (2,))
    assert told.startswith("step 2 begins on the GPU")
    assert "export step 1, too" in told
    together = GpuTrace()
    for _ in range(4):
        with together.step():
            together.op("aten::mm").launch("sgemm", ms(30))
            together.sync()
    assert begins_behind(cut(together.load(), Selection(steps=(2,))), (2,)) == ""
    assert begins_behind(cut(ahead.load(), Selection()), None) == ""
