"""Graphs, critical paths and findings of real traces."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.support.real_traces import EACH, diagnosis_of, real_trace

from stepscope.advice.finding import Severity
from stepscope.analysis.comparison.compare import compare
from stepscope.analysis.comparison.side import make_side
from stepscope.analysis.critical_path import path_of as critical_path_of
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals

each_trace = pytest.mark.parametrize("name", EACH)
CONTRAST = "v100_dataloader_contrast/num_workers_{}_worker0.{}.pt.trace.json.gz"


@each_trace
def test_the_unchanged_graph_replays_every_measured_time(name):
    graph = build_step_graph(real_trace(name))
    again = replay(unchanged(graph))
    again = replay(unchanged(graph))
    start, end = again.start_ns, again.end_ns
    assert again.saving_ns == 0
    if graph.one_off_ns.any():  # what comes once is no part of a replay
        assert (end <= graph.end_ns).all()
    else:
        # Waits that other nodes end begin whenever the thread comes to them.
        fixed = ~graph.is_elastic
        assert np.array_equal(start[fixed], graph.start_ns[fixed])
        assert np.array_equal(end, graph.end_ns)
        assert (again.step_ends_ns == graph.step_ends_ns).all()
    assert (graph.source < np.repeat(np.arange(len(graph)), np.diff(graph.first_edge))).all()


@each_trace
def test_every_step_is_at_least_as_short_without_a_cause(name):
    graph = build_step_graph(real_trace(name))
    start = unchanged(graph)
    whole = intervals.merge([graph.origin_ns], [int(graph.end_ns.max())])
    everything = start.scale_work(graph.is_gpu, 0.0).scale_host(whole, 0.0)
    for changes in (
        start.scale_work(graph.kind == NodeKind.COMMUNICATION, 0.0),
        start.scale_work(graph.is_gpu, 0.5),
        start.scale_host(whole, 0.5),
        start.drop_edges(graph.edge_kind == EdgeKind.SYNC),
        everything,
    ):
        after = replay(changes)
        assert (replay(changes).end_ns <= graph.end_ns).all()
        assert 0 <= after.total_ns <= graph.total_ns


@each_trace
def test_the_critical_path_divides_every_step(name):
    trace = real_trace(name)
    graph = build_step_graph(trace)
    path = critical_path_of(graph, trace)
    assert path.partition.total_ns == graph.total_ns
    per_step = path.steps.group_by("step", maintain_order=True).agg(pl.col("total_ns").sum())
    assert per_step["total_ns"].to_list() == (graph.step_ends_ns - graph.step_starts_ns).tolist()
    segments = path.segments
    assert (segments["start_ns"][1:] == segments["end_ns"][:-1]).all()


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        ("1623143089861", "1623212756351"),
        pytest.param("1623143566756", "1623213129365", marks=pytest.mark.slow),
    ],
)
def test_the_step_without_input_wait_is_what_workers_make_of_it(slow, fast):
    """The same training with no workers, then with four: predicted from the first, seen in the
    second. Medians, for the recording of the second has two steps with stalls of its own."""
    before = build_step_graph(real_trace(CONTRAST.format(0, slow)))
    after = build_step_graph(real_trace(CONTRAST.format(4, fast)))
    waits = before.host.of(HostCause.INPUT)
    without = replay(unchanged(before).scale_host(waits))
    measured = float(np.median(after.step_ends_ns - after.step_starts_ns))
    assert without.mean_step_ns == pytest.approx(measured, rel=0.1)


EXPECTED = {
    "a100_nccl_train/trace.json.gz": "launch-bound",
    "amd_resnet_ddp_4rank/rank3.pt.trace.json.gz": "launch-bound",
    "h100_timesformer_inference/trace.json.gz": "cpu-bound-python",
    "mi300x_resnet_train/trace.json.gz": "exposed-communication",
    CONTRAST.format(0, "1623143089861"): "input-bound",
    CONTRAST.format(0, "1623143566756"): "input-bound",
    # One reduction after the other takes a third of the host's time, which launches too late.
    "v100_train_5steps/trace.json.gz": "many-small-collectives",
}
"""What costs most, as the tables of idle time and of the timeline show too."""


@each_trace
def test_the_report_has_a_verdict_a_partition_and_ordered_findings(name):
    diagnosis = diagnosis_of(name)
    (rank,) = diagnosis.ranks
    assert rank.partition is not None
    assert rank.device is rank.partition
    assert diagnosis.verdict
    # A cause may stand above the finding about its effect, launches that come late.
    others = [finding for finding in diagnosis.findings if finding.id != "launch-bound"]
    late = [finding.saving_ns or 0 for finding in diagnosis.findings if finding not in others]
    place = [finding.id == "launch-bound" for finding in diagnosis.findings]
    above = [one.saving_ns or 0 for one in diagnosis.findings[: place.index(True)]] if late else []
    assert all(saving >= late[0] / 2 for saving in above)
    severities = [list(Severity).index(finding.severity) for finding in diagnosis.findings]
    assert severities == sorted(severities)
    promised = [finding.saving_ns for finding in others if finding.saving_ns is not None]
    for severity in Severity:
        alike = [one.saving_ns for one in others if one.severity is severity]
        known = [saving for saving in alike if saving is not None]
        assert alike[: len(known)] == sorted(known, reverse=True)
    assert rank.step_ns is not None
    assert all(0 < saving < rank.step_ns for saving in [*promised, *late])
    if name in EXPECTED:
        assert diagnosis.findings[0].id == EXPECTED[name]


def test_only_the_ranks_that_wait_are_told_so():
    """Rank 3 arrives last in every collective of this job: the others wait for it, it does not."""
    waiting = {}
    for rank in range(4):
        name = f"amd_resnet_ddp_4rank/rank{rank}.pt.trace.json.gz"
        graph = build_step_graph(real_trace(name))
        quick = replay(unchanged(graph).scale_work(graph.kind == NodeKind.COMMUNICATION, 0.0))
        waiting[rank] = quick.saving_ns
    assert waiting[3] == min(waiting.values())
    findings = {f.id for f in diagnosis_of(name).findings}
    assert not findings & {"rank-waiting", "exposed-communication"}


@each_trace
def test_a_trace_against_itself_has_not_changed(name):
    side = make_side(name, real_trace(name))
    comparison = compare(side, side)
    assert comparison.step.delta_ns == 0
    assert set(comparison.changes["status"]) <= {"same"}
    parts = comparison.changes.filter(pl.col("table") == "part")
    assert abs(parts["a_ns"].sum() - side.step_ns.mean()) <= len(parts) + 1


def test_the_contrast_of_loaders_is_seen_as_input():
    slow = make_side("0", real_trace(CONTRAST.format(0, "1623143089861")))
    fast = make_side("4", real_trace(CONTRAST.format(4, "1623212756351")))
    comparison = compare(fast, slow)
    assert comparison.step.is_beyond_noise
    parts = comparison.changes.filter(pl.col("table") == "part", pl.col("status") == "grew")
    assert parts.sort("delta_ns", descending=True)["name"][0] == "idle: input"
