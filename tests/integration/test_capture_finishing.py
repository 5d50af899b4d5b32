"""Files made beside the training: both ways of handing events over, and what can go wrong."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.support.runs import manifest_of, rank_directory, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run
from stepscope.capture.windows import finishing
from stepscope.capture.windows.finishing import WindowFinisher, choose_mode, fork_is_unsafe
from stepscope.run.manifest import read_rank

QUICK = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "activities": "cpu"}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def train(output, steps=10, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**QUICK, **options}) as profiler:
        for batch in batches(steps):
            training.step(batch)
            profiler.step()
    return training.losses


def children():
    """Direct children of this process that have not been collected."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            if int(status.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(entry.name))
    return found


@pytest.mark.parametrize("mode", ["fork", "inline"])
def test_both_ways_give_the_same_files(tmp_path, mode):
    before = children()
    assert train(tmp_path, export_mode=mode) == bare_losses(10)
    windows = open_run(tmp_path).windows
    assert [steps_in_trace(window.trace_path) for window in windows] == [[2, 3], [6, 7]]
    for window in windows:
        assert window.record.state == "complete"
        assert window.record.events > 0
        assert window.record.raw_bytes > 0
        assert window.record.pause_ns >= window.record.stop_ns + window.record.export_ns
        assert not (window.trace_path.parent / ".raw").exists()
    assert windows[0].record.export_mode == mode
    assert children() <= before, "a finishing process was left behind"


@pytest.mark.parametrize("mode", ["fork", "inline"])
def test_the_manifest_says_saving_meanwhile_and_the_reader_completes_it(tmp_path, mode):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK, export_mode=mode) as profiler:
        for batch in batches(4):
            training.step(batch)
            profiler.step()
        path = rank_directory(tmp_path) / "manifest.json"
        assert read_rank(path).windows[0].state == "saving"
        deadline = time.monotonic() + 200
        while not (path.parent / "window-0000" / "window.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        # As if the training were killed now: the manifest will say no more.
        assert read_rank(path).windows[0].state == "saving"
        (window,) = open_run(tmp_path).windows
        assert window.record.state == "complete"
        assert steps_in_trace(window.trace_path) == [2, 3]
    assert read_rank(path).windows[0].state == "complete"


def test_a_second_window_does_not_fork_while_the_first_is_written(tmp_path, monkeypatch):
    forks = []
    real_fork = os.fork

    def counting_fork():
        process_id = real_fork()
        if process_id:
            forks.append(process_id)
        return process_id

    # The first finishing process begins when the steps are over, however fast or slow they are.
    gate = tmp_path / "gate"
    wait_at_the_gate = (
        "import os, pathlib, sys, time\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    real_command = finishing._command
    monkeypatch.setattr(
        finishing,
        "_command",
        lambda job: [sys.executable, "-c", wait_at_the_gate, *real_command(job)],
    )
    monkeypatch.setattr(os, "fork", counting_fork)
    training = SmallTraining()
    options = {**QUICK, "wait": 0, "warmup": 0, "active": 1, "repeat": 5, "export_mode": "fork"}
    with stepscope.Profiler(output_dir=tmp_path / "out", **options) as profiler:
        for batch in batches(6):
            training.step(batch)
            profiler.step()
        gate.touch()
    records = manifest_of(tmp_path / "out").windows
    assert [record.export_mode for record in records] == ["fork", *["inline"] * 4]
    assert len(forks) == 1
    assert {record.state for record in records} == {"complete"}


def test_what_a_fork_cannot_write_is_written_inline(tmp_path, monkeypatch):
    def failing_fork(profiler, job, scratch):
        process_id = os.fork()
        if process_id == 0:
            os._exit(91)
        return finishing.FinishingProcess(process_id)

    monkeypatch.setattr(finishing, "fork", failing_fork)
    train(tmp_path, export_mode="fork")
    for window in open_run(tmp_path).windows:
        assert window.record.state == "complete"
        assert window.record.export_mode == "inline"
        assert window.trace_path is not None
    assert "code 91" in open_run(tmp_path).windows[0].record.note


def test_a_stuck_fork_is_ended_and_done_without(tmp_path, monkeypatch):
    def stuck_fork(profiler, job, scratch):
        process_id = os.fork()
        if process_id == 0:
            time.sleep(600)
            os._exit(0)
        return finishing.FinishingProcess(process_id)

    monkeypatch.setattr(finishing, "fork", stuck_fork)
    losses = train(tmp_path, steps=5, repeat=1, export_mode="fork", export_timeout_s=0.3)
    assert losses == bare_losses(5)
    (record,) = manifest_of(tmp_path).windows
    assert record.export_mode == "inline"
    assert "0.3 s" in record.export_reason
    # The process beside is left to itself after 0.3 s, or ended with the trace kept.
    deadline = time.monotonic() + 120
    while open_run(tmp_path).windows[0].trace_path is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stuck_finishing_is_ended_and_the_trace_kept(tmp_path, monkeypatch):
    def sleeping(job):
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    monkeypatch.setattr(finishing, "_command", sleeping)
    before = children()
    training = SmallTraining()
    options = {**QUICK, "repeat": 1, "active": 1, "export_mode": "inline"}
    with stepscope.Profiler(output_dir=tmp_path, **options, export_timeout_s=0.2) as profiler:
        losses = []
        for batch in batches(4):
            losses.append(training.step(batch))
            profiler.step()
        time.sleep(0.3)  # longer than the process may take
    assert losses == bare_losses(4)
    (record,) = manifest_of(tmp_path).windows
    assert record.state == "partial"
    assert "0.2 s; the trace was kept" in record.reason
    assert [item.path for item in record.artifacts] == ["window-0000/trace.json"]
    assert children() <= before


def test_files_that_are_there_when_their_process_is_given_up_are_kept(tmp_path, monkeypatch):
    never_ends = "import subprocess, sys, time; subprocess.run(sys.argv[1:]); time.sleep(600)"
    real_command = finishing._command
    monkeypatch.setattr(
        finishing,
        "_command",
        lambda job: [sys.executable, "-c", never_ends, *real_command(job)],
    )
    before = children()
    training = SmallTraining()
    options = {**QUICK, "repeat": 1, "export_mode": "inline", "export_timeout_s": 0.01}
    with stepscope.Profiler(output_dir=tmp_path, **options) as profiler:
        for batch in batches(4):
            training.step(batch)
            profiler.step()
        while not (profiler.session.rank_path / "window-0000" / "window.json").exists():
            time.sleep(0.02)
    (window,) = open_run(tmp_path).windows
    assert window.record.state == manifest_of(tmp_path).windows[0].state == "complete"
    assert steps_in_trace(window.trace_path) == [2, 3]
    assert children() <= before


def test_a_finishing_that_fails_is_told_with_its_last_words(tmp_path, monkeypatch):
    def broken(job):
        return [sys.executable, "-c", "import sys; sys.exit('out of luck')"]

    monkeypatch.setattr(finishing, "_command", broken)
    assert train(tmp_path, export_mode="inline") == bare_losses(10)
    for window in open_run(tmp_path).windows:
        assert window.record.state == "partial"
        assert "code 1: out of luck; the trace was kept" in window.record.reason
        assert window.trace_path.name == "trace.json"
        events = json.loads(window.trace_path.read_bytes())["traceEvents"]
        steps = range(window.record.first_step, window.record.last_step + 1)
        assert {f"ProfilerStep#{step}" for step in steps} <= {event["name"] for event in events}


def test_a_finishing_that_is_killed_is_told(tmp_path, monkeypatch):
    def sleeping(job):
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    monkeypatch.setattr(finishing, "_command", sleeping)
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK, export_mode="inline") as profiler:
        before = children()
        for batch in batches(4):
            training.step(batch)
            profiler.step()
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
    assert manifest_of(tmp_path).windows[0].state == "partial"
    assert "code -9" in manifest_of(tmp_path).windows[0].reason


def test_auto_never_forks_a_process_that_uses_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "cuda" in fork_is_unsafe()
    assert choose_mode("auto", 10**12, is_busy=False)[0] == "inline"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", sys)
    assert choose_mode("auto", 10**12, is_busy=False) == (
        "inline",
        "mpi4py.MPI is loaded, which may hold memory for RDMA",
    )
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert choose_mode("auto", 10**12, is_busy=False) == (
        "fork",
        "a fork takes less time than writing",
    )
    assert choose_mode("auto", 1000, is_busy=False) == (
        "inline",
        "writing takes less time than a fork",
    )
    assert choose_mode("fork", 10**12, is_busy=True)[0] == "inline"


def test_the_working_directory_cannot_lend_modules_to_the_finishing(tmp_path, monkeypatch):
    (tmp_path / "orjson.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "out", export_mode="inline")
    if sys.version_info >= (3, 11):
        assert manifest_of(tmp_path / "out").windows[0].state == "complete"


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["auto", "fork"])
def test_a_gpu_window_has_kernels_and_device_stacks(tmp_path, mode):
    device = torch.device("cuda")
    layer = torch.nn.Linear(256, 256, device=device)
    with stepscope.Profiler(
        output_dir=tmp_path, wait=1, warmup=2, active=2, export_mode=mode, with_stack=True
    ) as profiler:
        for _ in range(8):
            layer(torch.randn(64, 256, device=device)).sum().backward()
            profiler.step()
    torch.cuda.synchronize()
    (window,) = open_run(tmp_path).windows
    assert window.record.state == "complete", window.record.reason
    assert "stacks_device" in {item.kind for item in window.record.artifacts}
    steps = open_run(tmp_path).ranks[0].steps
    assert any(step.device_ns for step in steps)
    assert any(step.peak_allocated_bytes for step in steps)
    # The process and its GPU still work after the fork.
    assert layer(torch.ones(1, 256, device=device)).sum().item() == pytest.approx(
        layer(torch.ones(1, 256, device=device)).sum().item()
    )


@pytest.mark.parametrize("mode", ["fork", "inline"])
def test_events_are_freed_without_the_garbage_collector(tmp_path, monkeypatch, mode):
    import gc
    import weakref

    made = []
    real = WindowFinisher.submit

    def watched(self, profiler, job, record, *, is_raw_there):
        made.append(weakref.ref(profiler))
        return real(self, profiler, job, record, is_raw_there=is_raw_there)

    monkeypatch.setattr(WindowFinisher, "submit", watched)
    gc.disable()
    try:
        train(tmp_path, export_mode=mode)
        assert len(made) == 2
        assert [reference() for reference in made] == [None, None]
    finally:
        gc.enable()
