"""The graph of a step: exact replay, and predictions held against a simulated device."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.support.gpu_trace import GpuTrace, ms, seconds, us

from stepscope.analysis import critical_path as critical_path_module
from stepscope.analysis.critical_path import critical_path, path_of, path_partition
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.loops import sweep
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.what_if import what_if_table
from stepscope.errors import UsageError
from stepscope.trace.arrays import intervals
from stepscope.trace.machine.jit import jit


@dataclasses.dataclass(frozen=True)
class Scale:
    """What the simulated programme is run with."""

    compute: float = 1.0
    communication: float = 1.0
    copies: float = 1.0
    input: float = 1.0
    python: float = 1.0


def run(programme, scale=Scale(), steps=2, **options):
    """Run a list of (what, microseconds) in every step of a simulated job."""
    t = GpuTrace(world_size=2, wake_ns=0, **options)
    for _ in range(steps):
        with t.step():
            moment = None
            for what, microseconds in programme:
                length = us(microseconds)
                if what == "kernel":
                    t.op("aten::mm").launch("ampere_sgemm", round(length * scale.compute))
                elif what == "python":
                    t.python(round(length * scale.python))
                elif what == "input":
                    t.data_wait(round(length * scale.input))
                elif what == "item":
                    with t.op("aten::item"):
                        t.copy("DtoH", 4, round(length * scale.copies), pinned=False)
                elif what == "sync":
                    t.sync()
                elif what == "collective":
                    dur = round(length * scale.communication)
                    moment = t.collective("all_reduce", 1 << 20, dur)
                elif what == "join" and moment is not None:
                    t.wait_collective(moment)
                elif what == "backward":
                    with t.thread():
                        t.op("autograd::engine::evaluate_function: MmBackward0").launch(
                            "ampere_sgemm_nt", round(length * scale.compute)
                        )
            t.op("Optimizer.step#SGD.step", category="user_annotation").launch(
                "multi_tensor_apply_kernel", us(20)
            )
    return t


def end_of(t):
    """When the simulated steps are over: on the device, or on the host if that is later."""
    return max(t.now, *(work.end_ns for work in t.work))


lengths = st.integers(1, 900)
instructions = st.tuples(
    st.sampled_from(
        ["kernel", "python", "input", "item", "sync", "collective", "join", "backward", "kernel"]
    ),
    lengths,
)
programmes = st.lists(instructions, min_size=1, max_size=12)
# With these in a step it is clear what a launch takes to arrive, and what follows on a stream.
CLEAR = [("sync", 0), ("python", 100), ("kernel", 200), ("kernel", 50)]
factors = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@settings(max_examples=25, deadline=None)
@given(programmes)
def test_the_unchanged_graph_replays_every_measured_time(programme):
    graph = build_step_graph(run(programme).load())
    again = replay(unchanged(graph))
    again = replay(unchanged(graph))
    assert np.array_equal((again.start_ns, again.end_ns), (graph.start_ns, graph.end_ns))
    assert (again.step_ends_ns == graph.step_ends_ns).all()
    assert again.saving_ns == 0
    assert len(graph.step_ends_ns) == 2


@settings(max_examples=25, deadline=None)
@given(programmes, factors, factors, factors, st.booleans())
def test_shrunk_work_and_input_take_what_the_simulated_device_takes(
    programme, compute, communication, waiting, sync_records
):
    scale = Scale(compute, communication, input=waiting)
    before = run(CLEAR + programme, sync_records=sync_records)
    after = run(CLEAR + programme, scale, sync_records=sync_records)
    trace = before.load()
    graph = build_step_graph(trace)
    optimizer = _optimizer_nodes(trace, graph)
    changes = (
        unchanged(graph)
        .scale_work((graph.kind == NodeKind.COMPUTE) & ~optimizer, compute)
        .scale_work(graph.kind == NodeKind.COMMUNICATION, communication)
        .scale_host(graph.host.of(HostCause.INPUT), waiting)
    )
    predicted = int(replay(changes).end_ns.max())
    assert predicted == end_of(after)


def test_a_wait_that_took_no_time_may_take_some():
    """The GPU was done when the host asked; with less input before, the host asks too early."""
    programme = [("input", 243), ("sync", 0), ("backward", 1)]
    scale = Scale(compute=0.25, input=0.0)
    trace = run(CLEAR + programme).load()
    graph = build_step_graph(trace)
    optimizer = _optimizer_nodes(trace, graph)
    changes = (
        unchanged(graph)
        .scale_work((graph.kind == NodeKind.COMPUTE) & ~optimizer, 0.25)
        .scale_host(graph.host.of(HostCause.INPUT), 0.0)
    )
    predicted = int(replay(changes).end_ns.max())
    assert predicted == end_of(run(CLEAR + programme, scale))


def _optimizer_nodes(trace, graph):
    names = trace.events.collect().join(trace.names.collect(), on="name_id", maintain_order="left")
    is_optimizer = (names["name"] == "multi_tensor_apply_kernel").to_numpy()
    return np.where(graph.event >= 0, is_optimizer[graph.event], False)


@settings(max_examples=20, deadline=None)
@given(programmes, st.lists(factors, min_size=4, max_size=4), st.randoms())
def test_shrinking_never_slows_and_less_is_never_slower(programme, chosen, random):
    graph = build_step_graph(run(programme).load())
    nodes = np.array([random.random() < 0.5 for _ in range(len(graph))])
    edges = np.array([random.random() < 0.3 for _ in range(len(graph.source))])
    whole = intervals.merge([graph.origin_ns], [int(graph.end_ns.max())])
    changes = unchanged(graph)
    total = graph.total_ns
    for change in (
        lambda c: c.scale_work(nodes, chosen[0]),
        lambda c: c.scale_host(whole, chosen[1]),
        lambda c: c.drop_edges(edges),
        lambda c: c.scale_work(~nodes, chosen[2]),
    ):
        changes = change(changes)
        now = replay(changes)
        assert now.total_ns <= total
        assert now.saving_ns >= 0
        assert (np.diff(now.step_ends_ns) >= 0).all()
        total = now.total_ns


@settings(max_examples=20, deadline=None)
@given(programmes)
def test_the_critical_path_divides_every_step(programme):
    trace = run(programme).load()
    graph = build_step_graph(trace)
    path = path_of(graph, trace)
    assert path.partition.total_ns == graph.total_ns
    assert path_partition(graph) == path.partition
    assert sum(part.total_ns for part in path.partition.parts) == path.causes["total_ns"].sum()
    per_step = path.steps.group_by("step", maintain_order=True).agg(pl.col("total_ns").sum())
    lengths = dict(zip(graph.steps, graph.step_ends_ns - graph.step_starts_ns, strict=True))
    assert dict(per_step.iter_rows()) == {step: ns for step, ns in lengths.items() if ns}
    segments = path.segments
    assert segments["start_ns"][0] == graph.begin_ns
    assert segments["end_ns"][-1] == graph.step_ends_ns[-1]
    assert (segments["start_ns"][1:] == segments["end_ns"][:-1]).all()
    with mock.patch.object(critical_path_module, "_NODES_AT_ONCE", 1):
        in_small_pieces = path_of(graph, trace)
    assert_frame_equal(in_small_pieces.steps, path.steps)
    assert_frame_equal(in_small_pieces.segments, path.segments)


@settings(max_examples=10, deadline=None)
@given(programmes)
def test_times_before_zero_are_times_like_others(programme):
    t = run([("item", 90), *programme, ("sync", 0)])
    for annotated in (True, False):
        if not annotated:
            t.events = [one for one in t.events if "ProfilerStep" not in one["name"]]
        later = t.load()
        for event in t.events:
            event["ts"] -= seconds(1_000)
        earlier = t.load()
        assert_frame_equal(what_if_table(earlier).causes, what_if_table(later).causes)
        assert_frame_equal(critical_path(earlier).steps, critical_path(later).steps)


def test_no_blocking_call_means_no_waiting_for_the_device():
    programme = [("kernel", 500), ("item", 2), ("python", 300)]
    t = run(programme)
    graph = build_step_graph(t.load())
    free = replay(unchanged(graph).drop_edges(graph.edge_kind == EdgeKind.SYNC))
    # Without waiting, host and device run side by side; the host is the longer of the two.
    assert free.saving_ns > us(250)
    assert free.mean_step_ns < graph.mean_step_ns - us(250)


def test_a_stream_without_its_work_leaves_the_others_alone():
    programme = [("kernel", 100), ("collective", 800), ("kernel", 100), ("join", 0), ("kernel", 50)]
    t = run(programme)
    graph = build_step_graph(t.load())
    gone = unchanged(graph).scale_work(graph.kind == NodeKind.COMMUNICATION, 0.0)
    assert replay(gone).end_ns.max() == end_of(run(programme, Scale(communication=0.0)))


def test_the_host_hands_over_to_the_backward_thread_and_waits_for_it():
    programme = [("kernel", 10), ("backward", 10), ("python", 50), ("item", 1)]
    graph = build_step_graph(run(programme).load())
    assert (graph.edge_kind == EdgeKind.HANDOVER).sum() == 4
    lanes = np.unique(graph.lane[~graph.is_gpu])
    assert len(lanes) == 2
    other = int(lanes[lanes != graph.main_lane][0])
    whole = intervals.merge([graph.origin_ns], [int(graph.end_ns.max())])
    faster = replay(unchanged(graph).scale_host(whole, 0.0, lanes=(other,)))
    on_other = graph.dur_ns[graph.lane == other].sum()
    assert graph.total_ns - faster.total_ns == on_other


def test_one_step_of_several_can_be_replayed_alone():
    trace = run([("kernel", 100), ("item", 1)], steps=4).load()
    graph = build_step_graph(trace, steps=(1, 2))
    assert graph.steps == (1, 2)
    assert replay(unchanged(graph)).total_ns == graph.total_ns
    with pytest.raises(UsageError, match="no step 9"):
        build_step_graph(trace, steps=(9,))
    with pytest.raises(UsageError, match="follow one another"):
        build_step_graph(trace, steps=(0, 2))


def test_what_is_done_between_two_steps_is_not_replayed():
    t = GpuTrace()
    for number in range(4):
        with t.step(), t.op("aten::mm"):
            t.launch("ampere_sgemm", us(100))
        if number == 0:
            with t.annotate("stepscope.no_step#1"):
                t.python(us(50_000))
    graph = build_step_graph(t.load())
    assert graph.steps == (1, 2, 3)
    assert graph.total_ns < us(2000)
    assert replay(unchanged(graph)).total_ns == graph.total_ns


def test_a_trace_without_steps_is_one_stretch():
    trace = run([("kernel", 100), ("item", 1)], steps=1, annotate_steps=False).load()
    graph = build_step_graph(trace)
    assert graph.steps == ()
    assert len(graph.step_ends_ns) == 1
    assert replay(unchanged(graph)).total_ns == graph.total_ns


def test_work_without_a_launch_stays_behind_what_the_host_did():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("kernel", us(50))
        t.python(us(500))
        t.launch("orphan", us(50), linked=False)
        t.op("aten::mm").launch("kernel", us(50))
    graph = build_step_graph(t.load())
    assert graph.notes
    half = intervals.merge([graph.origin_ns], [int(graph.end_ns.max())])
    assert replay(unchanged(graph)).total_ns == graph.total_ns
    assert replay(unchanged(graph).scale_host(half, 0.0)).total_ns <= graph.total_ns


def test_growing_is_refused():
    graph = build_step_graph(run([("kernel", 100)]).load())
    with pytest.raises(UsageError, match="only shrink"):
        unchanged(graph).scale_work(graph.is_gpu, 1.5)


def test_the_compiled_sweep_and_the_plain_one_agree():
    graph = build_step_graph(run([("kernel", 90), ("collective", 70), ("item", 3)]).load())
    keep = graph.source >= 0
    columns = (graph.first_edge, graph.source, graph.delay_ns, keep, graph.dur_ns // 2)
    start = np.full(len(graph), graph.origin_ns)
    start[len(graph) // 2] += us(40)
    plain, end = start.tolist(), np.empty(len(graph), np.int64)
    jit(sweep)(*columns, start, end)
    plain_end = end.tolist()
    sweep(*(column.tolist() for column in columns), plain, plain_end)
    assert start.tolist() == plain
    assert end.tolist() == plain_end


def test_without_a_gpu_operators_are_work_and_no_dispatch():
    t = GpuTrace()
    for _ in range(2):
        with t.step():
            t.op("aten::mm").python(us(300))
            t.python(us(50))
    trace = t.load()
    path = critical_path(trace)
    assert set(path.causes["cause"]) == {"operators", "host, cause not recorded"}
    assert set(path.steps["cause"]) == set(path.segments["cause"]) | {"host, cause not recorded"}
    table = what_if_table(trace)
    assert set(table.causes["without"]) == {"operators", "host, cause not recorded"}
    launched = run([("kernel", 100)]).load()
    assert "dispatch" in set(critical_path(launched).causes["cause"])


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize(("tail", "left_out"), [(us(50), 0), (ms(80), ms(80) - us(50))])
def test_what_comes_after_the_loop_is_no_part_of_the_last_step(tail, left_out, has_gpu):
    t = GpuTrace(wake_ns=0)
    for number in range(4):
        with t.step():
            if has_gpu:
                t.op("aten::mm").launch("kernel", us(200))
                t.sync()
            else:
                t.op("aten::mm").python(us(200))
            t.python(tail if number == 3 else us(50))
    trace = t.load()
    graph = build_step_graph(trace)
    assert graph.host_window[1] == t.now - left_out
    assert replay(unchanged(graph)).total_ns == graph.total_ns
    steady = steady_steps(trace)
    assert steady.step_ns == graph.mean_step_ns < us(400)
    # A device step ends with its work, whatever the host does after it.
    assert steady.tail_ns == (0 if has_gpu else left_out)
    assert any("end of the loop" in note for note in steady.notes) == bool(steady.tail_ns)
    # Steps within the file end where the next begins, whatever they do.
    assert steady_steps(trace, Scope(steps=(1, 2))).notes == ()
