"""Files made beside the training, and what can go wrong."""

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
from stepscope.capture.windows import saving
from stepscope.capture.windows.torch_window import release_events
from stepscope.run.manifest import read_rank

QUICK = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "activities": "cpu"}


def train(output, steps=10, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**QUICK, **options}) as profiler:
        for batch in batches(steps):
            training.step(batch)
            profiler.step()
    return training.losses


def wait_for(path):
    deadline = time.monotonic() + 200
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


def test_windows_are_finished_beside_the_training(tmp_path):
    before = children()
    assert train(tmp_path) == bare_losses(10)
    windows = open_run(tmp_path).windows
    assert [steps_in_trace(window.trace_path) for window in windows] == [[2, 3], [6, 7]]
    for window in windows:
        assert window.record.state == "complete"
        assert window.record.events > 0
        assert window.record.raw_bytes > 0
        assert window.record.pause_ns >= window.record.stop_ns + window.record.export_ns
        assert not (window.trace_path.parent / ".raw").exists()
    assert children() <= before, "a finishing process was left behind"


def test_no_recorded_step_holds_what_became_of_the_window_before(tmp_path):
    training = SmallTraining()
    options = {**QUICK, "wait": 0, "warmup": 0, "active": 4}
    with stepscope.Profiler(output_dir=tmp_path, **options) as profiler:
        path = rank_directory(tmp_path) / "manifest.json"
        for number, batch in enumerate(batches(9)):
            training.step(batch)
            profiler.step()
            if number == 4:  # the second window is being recorded
                wait_for(path.parent / "window-0000" / "window.json")
                time.sleep(1)  # its process ends after that file
            if number in {5, 6}:
                assert read_rank(path).windows[0].state == "saving"
    assert [one.state for one in read_rank(path).windows] == ["complete", "complete"]


def test_the_manifest_says_saving_meanwhile_and_the_reader_completes_it(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for batch in batches(4):
            training.step(batch)
            profiler.step()
        path = rank_directory(tmp_path) / "manifest.json"
        assert read_rank(path).windows[0].state == "saving"
        wait_for(path.parent / "window-0000" / "window.json")
        # As if the training were killed now: the manifest will say no more.
        assert read_rank(path).windows[0].state == "saving"
        (window,) = open_run(tmp_path).windows
        assert window.record.state == "complete"
        assert steps_in_trace(window.trace_path) == [2, 3]
    assert read_rank(path).windows[0].state == "complete"


def test_a_stuck_finishing_is_ended_and_the_trace_kept(tmp_path, monkeypatch):
    def sleeping(*_):
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    monkeypatch.setattr(saving, "command_of", sleeping)
    before = children()
    training = SmallTraining()
    options = {**QUICK, "repeat": 1, "active": 1}
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
    real_command = saving.command_of
    monkeypatch.setattr(
        saving,
        "command_of",
        lambda *words: [sys.executable, "-c", never_ends, *real_command(*words)],
    )
    before = children()
    training = SmallTraining()
    options = {**QUICK, "repeat": 1, "export_timeout_s": 0.01}
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
    def broken(*_):
        return [sys.executable, "-c", "import sys; sys.exit('out of luck')"]

    monkeypatch.setattr(saving, "command_of", broken)
    assert train(tmp_path) == bare_losses(10)
    for window in open_run(tmp_path).windows:
        assert window.record.state == "partial"
        assert "code 1: out of luck; the trace was kept" in window.record.reason
        assert window.trace_path.name == "trace.json"
        events = json.loads(window.trace_path.read_bytes())["traceEvents"]
        steps = range(window.record.first_step, window.record.last_step + 1)
        assert {f"ProfilerStep#{step}" for step in steps} <= {event["name"] for event in events}


def test_a_finishing_that_is_killed_is_told(tmp_path, monkeypatch):
    def sleeping(*_):
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    monkeypatch.setattr(saving, "command_of", sleeping)
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        before = children()
        for batch in batches(4):
            training.step(batch)
            profiler.step()
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
    assert manifest_of(tmp_path).windows[0].state == "partial"
    assert "code -9" in manifest_of(tmp_path).windows[0].reason


def test_the_working_directory_cannot_lend_modules_to_the_finishing(tmp_path, monkeypatch):
    (tmp_path / "orjson.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "out")
    if sys.version_info >= (3, 11):
        assert manifest_of(tmp_path / "out").windows[0].state == "complete"


@pytest.mark.gpu
def test_a_gpu_window_has_kernels_and_device_stacks(tmp_path):
    device = torch.device("cuda")
    layer = torch.nn.Linear(256, 256, device=device)
    with stepscope.Profiler(
        output_dir=tmp_path, wait=1, warmup=2, active=2, with_stack=True
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
    # The process and its GPU still work.
    assert layer(torch.ones(1, 256, device=device)).sum().item() == pytest.approx(
        layer(torch.ones(1, 256, device=device)).sum().item()
    )


def test_events_are_freed_without_the_garbage_collector(tmp_path, monkeypatch):
    import gc
    import weakref

    made = []

    def watched(profiler, *, keep_events):
        made.append(weakref.ref(profiler))
        release_events(profiler, keep_events=keep_events)

    monkeypatch.setattr("stepscope.capture.windows.torch_window.release_events", watched)
    gc.disable()
    try:
        train(tmp_path)
        assert len(made) == 2
        assert [reference() for reference in made] == [None, None]
    finally:
        gc.enable()
