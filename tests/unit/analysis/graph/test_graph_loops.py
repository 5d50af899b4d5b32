"""The graph of the steps, walked on with compiled loops and in Python: the same."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from tests.support.planted import SCENARIOS

from stepscope.analysis import critical_path
from stepscope.analysis.critical_path import path_of
from stepscope.analysis.graph import steady_state
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.replay import replay, unchanged


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scenario", SCENARIOS[::4], ids=lambda scenario: scenario.name)
def test_compiled_loops_walk_as_python_does(scenario, monkeypatch):
    trace = scenario.build().load()
    graph = build_step_graph(trace)
    path = path_of(graph, trace)
    changed = unchanged(graph).drop_edges(graph.edge_kind > 3).scale_work(graph.is_gpu, 0.5)
    again = replay(changed)
    for module in (critical_path, steady_state):
        monkeypatch.setattr(module, "jit", lambda loop: loop)
    other = path_of(graph, trace)
    for field in fields(path):
        mine, in_python = getattr(path, field.name), getattr(other, field.name)
        same = mine.equals(in_python) if hasattr(mine, "equals") else mine == in_python
        assert same, field.name
    in_python = replay(changed)
    assert np.array_equal((in_python.start_ns, in_python.end_ns), (again.start_ns, again.end_ns))
    in_python = replay(unchanged(graph))
    assert np.array_equal((in_python.start_ns, in_python.end_ns), (graph.start_ns, graph.end_ns))
