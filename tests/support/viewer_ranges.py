"""Totals of ranges, compared with what `stepscope show` answers about the same steps."""

from __future__ import annotations

from stepscope.analysis.host.idle_gaps import idle_segments
from stepscope.analysis.idle import idle_causes
from stepscope.analysis.kernels import kernels
from stepscope.analysis.operators import analyse_operators
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import timeline
from stepscope.trace.model import Trace
from stepscope.viewer.flame import FlameBy, Forest, flame
from stepscope.viewer.ranges import RangeBasis, range_basis, range_totals
from tests.support.viewer import build_index


def measured(trace: Trace) -> tuple[RangeBasis, Forest]:
    """What ranges of a trace are measured on."""
    return range_basis(trace, idle_segments(trace)), Forest.of(trace)


def check_ranges(trace: Trace) -> None:
    """For the range of every device step the totals are those of `stepscope show … --steps N`."""
    basis, forest = measured(trace)
    for row in trace.device_steps.iter_rows(named=True):
        scope = Scope(steps=(row["step"],), devices=(row["device"],))
        found = range_totals(basis, forest, row["start_ns"], row["end_ns"])
        mine = next(one for one in found["devices"] if one["device"] == row["device"])
        line, idle = timeline(trace, scope), idle_causes(trace, scope)
        for part in ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns", "busy_ns"):
            assert mine[part] == getattr(line, part), (row["step"], part)
        assert mine["idle"] == {cause: idle.of(cause) for cause in mine["idle"]}
        assert sum(mine["idle"].values()) == mine["idle_ns"]
        assert mine["outside_ns"] == 0


def check_whole(trace: Trace) -> None:
    """For the range of the whole file the totals are those of `stepscope show`."""
    basis, forest = measured(trace)
    index = build_index(trace)
    start, end = index.origin_ns, index.origin_ns + index.end_ns + 1
    found = range_totals(basis, forest, start, end)
    table = kernels(trace).kernels
    assert found["kernels"]["total_ns"] == table["total_ns"].sum()
    assert found["kernels"]["count"] == table["count"].sum()
    mine = {}
    for row in found["operators"]["rows"]:
        old = mine.get(row["name"], (0, 0, 0))
        new = (row["kernels"], row["device_ns"], row["host_self_ns"])
        mine[row["name"]] = tuple(a + b for a, b in zip(old, new, strict=True))
    for row in analyse_operators(trace).table.head(200).iter_rows(named=True):
        expected = (row["kernels"], row["device_self_ns"], row["host_self_ns"])
        assert mine.get(row["name"], (0, 0, 0)) == expected, row["name"]
    work = int(gpu_work(trace).table["dur_ns"].sum())
    for by in (FlameBy.OPERATOR, FlameBy.MODULE, FlameBy.PYTHON):
        tree = flame(trace, forest, start, end, by)
        assert tree.whole_ns == work
        if not tree.left_out:
            assert int(tree.self_ns.sum()) == work
