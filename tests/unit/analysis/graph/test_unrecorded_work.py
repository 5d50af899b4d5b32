"""Calls that wait for work of earlier steps, in the file or not, wait for it in each step.

The oracle is the same training with the change, simulated.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.gpu_trace import ms, us
from tests.support.simulator import simulate, steady_step_ns, write_trace
from tests.support.simulator.program import COPY, Copy, Free, Kernels, Malloc, Program, Recording

import stepscope
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import NodeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.host.causes import HostCause

COPIES = Copy(100 << 20, ms(4), stream=COPY)
KERNELS = Kernels(20, us(500), before_ns=us(15))
FREEING = Program((COPIES, Free(ms(2)), Malloc(ms(1)), KERNELS))
"""The copy of each step runs beside the kernels of the one before, for which cudaFree waits."""


def graph_of(program: Program, start: str, tmp_path) -> StepGraph:
    recording = Recording(first=8, steps=4, start=start)
    timeline = simulate(replace(program, recording=recording))
    return build_step_graph(stepscope.load(write_trace(timeline, tmp_path / "trace.json")))


@pytest.mark.parametrize("start", ["unseen", "running", "drained"])
def test_memory_is_freed_when_earlier_steps_are_done_and_not_the_copy_beside_them(start, tmp_path):
    graph = graph_of(FREEING, start, tmp_path)
    steady_ns = steady_step_ns(FREEING)
    if start != "drained":
        assert graph.mean_step_ns == pytest.approx(steady_ns, rel=0.01)
    without_copies = replay(unchanged(graph).scale_work(graph.kind == NodeKind.MEMCPY, 0.0))
    assert without_copies.saving_ns < 0.01 * steady_ns
    calls = graph.host.of(HostCause.ALLOCATION)
    without_calls = replay(unchanged(graph).scale_host(calls))
    true_ns = steady_ns - steady_step_ns(replace(FREEING, body=(COPIES, KERNELS)))
    assert without_calls.saving_ns == pytest.approx(true_ns, abs=0.02 * steady_ns)


def test_a_first_call_that_itself_takes_long_waits_for_nothing_unrecorded(tmp_path):
    """Each cudaFree takes 2 ms on an idle device: nothing says that the first one waited."""
    idle = Program((Free(ms(2)), Kernels(20, us(10), before_ns=us(50))))
    graph = graph_of(idle, "unseen", tmp_path)
    assert graph.mean_step_ns == pytest.approx(steady_step_ns(idle), rel=0.01)
