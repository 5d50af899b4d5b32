"""The graph of the steps, built and walked on with compiled loops and without: the same."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from tests.support.planted import SCENARIOS

from stepscope.analysis import critical_path
from stepscope.analysis.critical_path import path_of
from stepscope.analysis.graph import steady_state
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.replay import replayed_times, unchanged
from stepscope.trace.machine.jit import WorkSoFar, jit

ARRAYS = ("start_ns", "end_ns", "first_edge", "source", "delay_ns", "edge_kind", "call")


@pytest.fixture
def always_compiled(monkeypatch):
    monkeypatch.setattr(steady_state, "SWEEPS_PAY_FROM", np.inf)  # not before it is switched on

    def switch():
        monkeypatch.setattr(critical_path, "COMPILED_PAYS_FROM", 1)
        monkeypatch.setattr(steady_state, "SWEEPS_PAY_FROM", 1)

    return switch


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scenario", SCENARIOS[::4], ids=lambda scenario: scenario.name)
def test_compiled_loops_give_the_graph_that_vectors_give(scenario, always_compiled):
    trace = scenario.build().load()
    graph = build_step_graph(trace)
    path = path_of(graph, trace)
    changed = unchanged(graph).drop_edges(graph.edge_kind > 3).scale_work(graph.is_gpu, 0.5)
    starts, ends = replayed_times(changed)
    always_compiled()
    compiled = build_step_graph(trace)
    for name in ARRAYS:
        assert np.array_equal(getattr(compiled, name), getattr(graph, name)), name
    found = path_of(compiled, trace)
    for field in fields(path):
        mine, other = getattr(found, field.name), getattr(path, field.name)
        same = mine.equals(other) if hasattr(mine, "equals") else mine == other
        assert same, field.name
    changed = unchanged(compiled).drop_edges(compiled.edge_kind > 3)
    changed = changed.scale_work(compiled.is_gpu, 0.5)
    assert np.array_equal(replayed_times(changed), (starts, ends))
    assert np.array_equal(replayed_times(unchanged(compiled)), (graph.start_ns, graph.end_ns))


def test_sweeps_are_compiled_once_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_step_graph(SCENARIOS[0].build().load())
    compiled = []

    def noted(loop):
        compiled.append(loop.__name__)
        return jit(loop)

    monkeypatch.setattr(steady_state, "jit", noted)
    monkeypatch.setattr(steady_state, "_SWEPT", WorkSoFar())
    monkeypatch.setattr(steady_state, "SWEEPS_PAY_FROM", 9 * len(graph))
    ends, counts = [], []
    for _ in range(6):
        ends.append(replayed_times(unchanged(graph))[1])
        counts.append(len(compiled))
    assert counts[0] == 0
    assert counts[-1] > counts[-2] > 0
    assert set(compiled) == {"sweep"}
    assert all(np.array_equal(end, graph.end_ns) for end in ends)
