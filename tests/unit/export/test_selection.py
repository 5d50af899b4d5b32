"""What a selection keeps."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.commands.main import cli
from stepscope.errors import UsageError
from stepscope.export.selection import cut, lag_notes
from stepscope.trace.load import load


def test_everything_is_the_trace_itself(trace):
    part = cut(trace, None)
    assert part.trace is trace


def test_steps_keep_their_own_events_and_what_is_around_them():
    t = GpuTrace()
    with t.annotate("epoch"):
        for _ in range(3):
            with t.step():
                t.op("aten::mm").launch("sgemm", ms(1))
    trace = t.load()
    part = cut(trace, (1,))
    whole = trace.events.join(trace.names, on="name_id").join(trace.derived, on="event")
    mine = set(whole.filter(step=1).select("name", "start_ns").collect().rows())
    named = part.trace.events.join(part.trace.names, on="name_id")
    kept = set(named.select("name", "start_ns").collect().rows())
    assert mine <= kept
    assert {name for name, _ in kept - mine} == {"epoch"}


def test_a_cut_step_answers_as_the_whole_trace_does(trace):
    part = cut(trace, (1,)).trace
    names = ["name", "kind"]

    def kernels(one):
        named = one.names.collect().select("name_id", "name")
        table = one.events.collect().with_columns(one.derived.select("step", "kind").collect())
        joined = table.join(named, on="name_id").filter(step=1)
        return joined.select(*names, "start_ns", "dur_ns").sort("start_ns", "name", "dur_ns")

    assert_frame_equal(kernels(part), kernels(trace))
    assert part.steps["step"].to_list() == [1]


def test_arrows_stay_only_with_both_ends(tmp_path):
    where = [{"pid": 1, "tid": 1, "ts": at} for at in (10, 110)]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 5, **place} for place in where
    ]
    events += [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
         "ts": 100 * step, "dur": 90}
        for step in (0, 1)
    ]  # fmt: skip
    events += [
        {"ph": phase, "id": 1, "cat": "fwdbwd", "name": "fwdbwd", **place}
        for phase, place in zip("sf", where, strict=True)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = load(path)
    assert len(cut(trace, (0, 1)).trace.flows.collect()) == 2
    assert not len(cut(trace, (1,)).trace.flows.collect())


def test_a_step_that_is_not_there_is_named(trace):
    with pytest.raises(UsageError, match="has no step 9; it has steps 0 to 2"):
        cut(trace, (9,))


def test_a_cut_step_whose_gpu_work_waits_for_earlier_steps_is_told():
    ahead = GpuTrace()
    for _ in range(4):
        with ahead.step():
            ahead.op("aten::mm").launch("sgemm", ms(30))
    told = notes_of(ahead.load(), (2,))
    assert told.startswith("step 2 begins on the GPU")
    assert "export step 1, too" in told
    together = GpuTrace()
    for _ in range(4):
        with together.step():
            together.op("aten::mm").launch("sgemm", ms(30))
            together.sync()
    assert notes_of(together.load(), (2,)) == ""
    assert notes_of(ahead.load(), None) == ""
    (of_rank,) = lag_notes(cut(ahead.load(), (2,)), (2,), rank=7)
    assert of_rank == f"rank 7: {told}"


def notes_of(trace, selection):
    return " ".join(lag_notes(cut(trace, selection), selection))


@pytest.mark.parametrize("target", ["perfetto", "chrome"])
def test_every_format_says_what_a_cut_lacks(tmp_path, target):
    ahead = GpuTrace()
    for _ in range(4):
        with ahead.step():
            ahead.op("aten::mm").launch("sgemm", ms(30))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(ahead.document()))
    words = ["export", str(path), "--to", target, "--steps", "2", "-o", str(tmp_path / "out.gz")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "step 2 begins on the GPU" in result.output
