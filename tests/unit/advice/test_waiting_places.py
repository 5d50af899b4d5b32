"""Whose synchronisation it is: operator, module and line; and never the profiling harness's."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM, MM, dump, job, products

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.calls.runtime_calls import harness_synchronisations
from stepscope.opening.reader import open_run


def finding_of(t: GpuTrace, tmp_path, rule: str):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(t))
    found = diagnose(open_run(str(path))).findings
    return next((finding for finding in found if finding.id == rule), None)


def several_products(t: GpuTrace):
    for _ in range(4):
        t.op("aten::mm", **MM, before=us(45), after=us(5)).launch(GEMM, us(150))


def sampling(t: GpuTrace, _step: int) -> None:
    for _ in range(6):
        several_products(t)
        with t.frame("nn.Module: NegativeSampler_4"), t.frame("models/sampler.py(88): draw"):
            t.item()
    several_products(t)
    with t.frame("train.py(31): log_loss"):
        t.item()


def test_a_blocking_call_has_its_operator_module_and_line(tmp_path):
    finding = finding_of(job(sampling), tmp_path, "synchronisation")
    places = [item.value for item in finding.evidence if item.label == "at"]
    assert places[0].startswith(
        "aten::item in NegativeSampler, draw (sampler.py:88) (6× per step, "
    )
    assert places[1].startswith("aten::item in log_loss (train.py:31) (1× per step, ")


def test_threads_that_wait_at_the_same_time_wait_no_longer_than_the_step(tmp_path):
    """As with two devices in one process: both threads wait for the same long kernel."""
    ends = {}

    def body(t: GpuTrace, step: int) -> None:
        several_products(t)
        t.op("aten::mm", **MM, before=us(45), after=us(5)).launch(GEMM, us(4000))
        began = t.now
        with t.beside(9, "second"):
            t.launch(GEMM, us(10))
            t.now = began + us(20)
            t.sync()
        t.sync()
        ends[step] = t.now - began
        t.python(us(400))

    finding = finding_of(job(body), tmp_path, "synchronisation")
    said = {item.label: item.value for item in finding.evidence}
    assert said["blocking calls per step"] == 2
    assert said["time in them per step"] < said["mean step of the window"]
    assert said["time in them per step"] <= max(ends.values())


def test_a_place_with_hardly_any_of_the_waiting_is_not_named(tmp_path):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(6):
            several_products(t)
            t.item()
        with t.frame("train.py(31): log_loss"):
            t.item()

    finding = finding_of(job(body), tmp_path, "synchronisation")
    (place,) = (item.value for item in finding.evidence if item.label == "at")
    assert "log_loss" not in place


def test_a_blocking_copy_to_the_device_has_its_place_too(tmp_path):
    def body(t: GpuTrace, _step: int) -> None:
        with t.frame("nn.Module: SparseArch_1"), t.frame("data/sparse.py(12): to_device"):
            t.op("aten::to").copy("HtoD", 64 << 20, us(2000), pinned=False)
        for _ in range(25):
            t.op("aten::view", before=us(40)).python(0)
        products(t)

    finding = finding_of(job(body), tmp_path, "pageable-copies")
    (place,) = (item.value for item in finding.evidence if item.label == "at")
    assert place.startswith("aten::to in SparseArch, to_device (sparse.py:12) (")


def harness() -> GpuTrace:
    """A script that synchronises before and after the step that it records."""
    t = GpuTrace()
    t.sync()
    with t.step():
        products(t, 6)
        with t.frame("profile.py(34): run_profiler"):
            t.sync()
    return t


def test_the_harness_at_the_edges_of_the_recording_is_no_finding(tmp_path):
    trace = harness().load()
    assert len(harness_synchronisations(trace)) == 2
    assert finding_of(harness(), tmp_path, "synchronisation") is None


def every_step(*, at_start: bool) -> GpuTrace:
    """A training that synchronises in each step, before or after all its work."""
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            if at_start:
                t.sync()
            products(t, 6)
            if not at_start:
                t.sync()
    t.sync()
    return t


@pytest.mark.parametrize("at_start", [True, False])
def test_what_comes_in_each_step_is_the_trainings_own_at_the_edges_too(at_start):
    """In all four steps the training waits; after the last the harness does."""
    trace = every_step(at_start=at_start).load()
    (last,) = harness_synchronisations(trace)
    starts = trace.events.select("start_ns").collect()["start_ns"]
    assert starts[last] >= trace.steps["end_ns"][-1]


def test_an_operators_wait_at_the_end_and_a_synchronisation_within_are_not_the_harness():
    t = GpuTrace()
    with t.step():
        products(t, 3)
        t.sync()
        products(t, 3)
        t.item()
    assert harness_synchronisations(t.load()).is_empty()
