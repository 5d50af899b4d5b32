"""What a selection keeps."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.commands.main import cli
from stepscope.errors import UsageError
from stepscope.export.lag import lag_notes
from stepscope.export.selection import Selection, cut
from stepscope.export.targets import TARGETS
from stepscope.trace.load import load


def test_everything_is_the_trace_itself(trace):
    part = cut(trace, Selection())
    assert part.trace is trace
    assert part.left_out == 0


def test_steps_keep_their_own_events_and_what_is_around_them():
    t = GpuTrace()
    with t.annotate("epoch"):
        for _ in range(3):
            with t.step():
                t.op("aten::mm").launch("sgemm", ms(1))
    trace = t.load()
    part = cut(trace, Selection(steps=(1,)))
    of = trace.derived.select("event", "step").collect()
    mine = of.filter(step=1)["event"].to_list()
    kept = part.event.to_list()
    assert set(mine) <= set(kept)
    names = trace.name_rows["name"][trace.columns("name_id")["name_id"]]
    assert names[sorted(set(kept) - set(mine))].to_list() == ["epoch"]
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
    told = notes_of(ahead.load(), Selection(steps=(2,)))
    assert told.startswith("step 2 begins on the GPU")
    assert "export step 1, too" in told
    together = GpuTrace()
    for _ in range(4):
        with together.step():
            together.op("aten::mm").launch("sgemm", ms(30))
            together.sync()
    assert notes_of(together.load(), Selection(steps=(2,))) == ""
    assert notes_of(ahead.load(), Selection()) == ""
    (of_rank,) = lag_notes(cut(ahead.load(), Selection(steps=(2,))), Selection(steps=(2,)), rank=7)
    assert of_rank == f"rank 7: {told}"


def notes_of(trace, selection):
    return " ".join(lag_notes(cut(trace, selection), selection))


def late_work():
    """Six launches at the start, whose work runs one after the other for 180 ms."""
    trace = GpuTrace()
    with trace.step():
        for _ in range(6):
            trace.op("aten::mm").launch("sgemm", ms(30))
        trace.sync()
    return trace.load()


def test_a_range_that_separates_launches_from_their_work_names_one_that_does_not():
    trace = late_work()
    told = notes_of(trace, Selection(end_ns=ms(50)))
    assert "launched in this range that run after it: 4." in told
    assert "launched before it" not in told
    told = notes_of(trace, Selection(start_ns=ms(50), end_ns=ms(100)))
    assert "of this range that were launched before it: 3." in told
    begin, end = re.search(r"--range ([\d.]+)-([\d.]+) has both", told).groups()
    wider = Selection(start_ns=ms(float(begin)), end_ns=ms(float(end)))
    kept = cut(trace, wider).event.to_list()
    launch = trace.derived.select("launch").collect()["launch"].to_list()
    of_range = cut(trace, Selection(start_ns=ms(50), end_ns=ms(100))).event.to_list()
    launches = {launch[event] for event in of_range if launch[event] is not None}
    assert len(launches) == 3
    assert launches <= set(kept)


def test_lanes_that_were_not_chosen_lack_nothing():
    trace = late_work()
    for lanes in (("host",), ("gpu",)):
        assert notes_of(trace, Selection(end_ns=ms(50), lanes=lanes)) == ""


@pytest.mark.parametrize("target", [one.name for one in TARGETS if one.name != "xlsx"])
def test_every_format_says_what_a_cut_lacks(tmp_path, target):
    ahead = GpuTrace()
    for _ in range(4):
        with ahead.step():
            ahead.op("aten::mm").launch("sgemm", ms(30))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(ahead.document()))
    words = ["export", str(path), "--to", target, "--steps", "2", "-o", str(tmp_path / "out.gz")]
    if target in {"csv", "parquet"}:
        words += ["--tables", "trace"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "step 2 begins on the GPU" in result.output
