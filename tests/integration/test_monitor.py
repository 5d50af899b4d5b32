"""The monitor beside real trainings and commands: whole lines, and an end with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from tests.support.nvml import FIRST, SECOND, compile_stub, environment, stepscope
from tests.support.ranks import torchrun
from tests.support.training import SmallTraining, batches
from tests.support.warm_python import VARIABLES, warm_python

from stepscope import Profiler, open_run
from stepscope.analysis.record.metrics import read_metrics, summarise_metrics
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record.monitoring import RankMonitor
from stepscope.monitor.recorder import Recorder, RecordingJob
from stepscope.monitor.sampler import Watched
from stepscope.run.layout import RankLayout
from stepscope.run.metrics import read_metrics_record, record_path

TRAINING = """
import os, sys, time
print(os.getpid(), flush=True)
import torch, stepscope
torch.set_num_threads(1)
weights = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
with stepscope.Profiler(output_dir=sys.argv[1], run_name="run", monitor=True,
                        monitor_interval_s=0.05, wait=10**6, grace_s=200) as profiler:
    while True:
        with profiler.phase("forward"):
            loss = weights.sum()
        loss.backward()
        optimizer.step()
        profiler.step()
        time.sleep(0.01)
"""
WAIT_UNTIL_SEEN = """
import glob, time
ballast = bytearray(60 << 20)
deadline = time.monotonic() + 200
while time.monotonic() < deadline:
    files = glob.glob({pattern!r})
    lines = open(files[0]).read().split("\\n")[1:-1] if files else []
    if any({seen} for row in (line.split(", ") for line in lines)):
        break
    time.sleep(0.05)
print("out")
raise SystemExit(7)
"""


def monitor_in(folder):
    return RankMonitor(CaptureConfig(monitor_interval_s=0.05), RankLayout(folder), RankIdentity())


def wait_for(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def rows_in(path):
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def test_a_profiled_training_leaves_metrics_and_its_results_alone(tmp_path):
    plain, watched = SmallTraining(), SmallTraining()
    for batch in batches(20):
        plain.step(batch)
    with Profiler(
        output_dir=tmp_path, wait=2, warmup=1, active=2, monitor=True, monitor_interval_s=0.05
    ) as profiler:
        metrics = profiler.session.rank_path / "metrics.csv"
        for batch in profiler.watch(batches(20)):
            watched.step(batch)
        # The next but one was begun after the last step, whatever was being written meanwhile.
        rows = rows_in(metrics)
        wait_for(lambda: rows_in(metrics) >= max(rows, 1) + 2)
    assert watched.losses == plain.losses
    (rank,) = open_run(tmp_path).ranks
    assert rank.metrics_path == metrics
    assert rank.manifest.problems == ()
    summary = summarise_metrics(metrics)
    assert summary.skipped_lines == 0
    assert summary.samples >= 3
    record = read_metrics_record(metrics)
    assert (record.state, record.ended) == ("ended", "told to stop")
    assert record.samples == summary.samples
    assert record.watched_pid == os.getpid()
    assert not psutil.pid_exists(record.process_id)
    # This process is what was watched, and it holds torch.
    assert summary.host["process_memory_peak_bytes"].item() > 50 << 20
    frame, _ = read_metrics(metrics)
    assert frame["time_ns"].is_sorted()
    # The samples lie on the clock of the step record.
    assert frame["time_ns"][-1] > rank.steps[-1].start_ns


def test_it_is_off_unless_asked_for_and_its_options_are_checked(tmp_path):
    with Profiler(output_dir=tmp_path, wait=1) as profiler:
        profiler.step()
    assert not (profiler.session.rank_path / "metrics.csv").exists()
    for options in ({"monitor": 1}, {"monitor_interval_s": 0.0}, {"monitor_max_bytes": 10}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Profiler(**options)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_the_sampler_ends_with_its_training_however_that_ends(tmp_path, number):
    with subprocess.Popen(
        [warm_python(), "-c", TRAINING, tmp_path],
        env=environment(None, **VARIABLES),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as training:
        trainer = int(training.stdout.readline())
        metrics = tmp_path / "run" / "rank00000" / "metrics.csv"
        try:
            wait_for(lambda: rows_in(metrics) >= 3)
            sampler = wait_for(lambda: read_metrics_record(metrics)).process_id
            assert psutil.Process(sampler).ppid() == trainer
            training.send_signal(number)
            training.wait(200)
        finally:
            training.kill()
    wait_for(lambda: not psutil.pid_exists(sampler) or not _is_alive(sampler))
    frame, skipped = read_metrics(metrics)
    assert skipped == 0
    assert len(frame) >= 3
    record = read_metrics_record(metrics)
    killed = number == signal.SIGKILL
    assert record.ended == (
        "the watched process ended without an order to stop" if killed else "told to stop"
    )


def _is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_forked_workers_do_not_keep_the_sampler_alive(tmp_path):
    """They hold the other end of its standard input: the parent's end must tell all the same."""
    script = TRAINING.replace(
        "    while True:",
        "    worker = os.fork()\n    if worker == 0: time.sleep(600)\n    while True:",
    )
    with subprocess.Popen(
        [warm_python(), "-c", script, tmp_path],
        env=environment(None, **VARIABLES),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as training:
        trainer = int(training.stdout.readline())
        try:
            metrics = tmp_path / "run" / "rank00000" / "metrics.csv"
            wait_for(lambda: rows_in(metrics) >= 3)
            sampler = read_metrics_record(metrics).process_id
            children = psutil.Process(trainer).children
            workers = wait_for(lambda: [one.pid for one in children() if one.pid != sampler])
        finally:
            training.kill()
    try:
        assert len(workers) == 1
        wait_for(lambda: not _is_alive(sampler))
        assert _is_alive(workers[0])
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


def test_a_sampler_that_is_killed_is_noted_and_nothing_else(tmp_path):
    with Profiler(output_dir=tmp_path, wait=5, monitor=True, monitor_interval_s=0.05) as profiler:
        metrics = profiler.session.rank_path / "metrics.csv"
        wait_for(lambda: rows_in(metrics) >= 1 and record_path(metrics).exists())
        os.kill(read_metrics_record(metrics).process_id, signal.SIGKILL)
        for _ in range(3):
            profiler.step()
    (rank,) = open_run(tmp_path).ranks
    assert rank.manifest.state == "finished"
    assert [problem.where for problem in rank.manifest.problems] == ["the monitor"]
    assert len(rank.steps) == 3


def test_a_process_that_cannot_start_is_a_problem_and_no_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        beside = monitor_in(tmp_path)
    assert beside.close() == "the monitor's process cannot be started: no more processes"


def test_a_folder_that_refuses_is_a_problem_and_no_error(tmp_path):
    (tmp_path / "metrics.csv").write_text("something, else\n")
    assert "exists with other columns" in monitor_in(tmp_path).close()


def test_run_monitors_a_script_without_a_change_to_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import itertools, sys, time, torch\nfrom pathlib import Path\n"
        "weights = torch.zeros(4, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weights], lr=0.1)\n"
        "metrics = Path(sys.argv[1])\n"
        "for step in itertools.count():\n"
        "    weights.sum().backward()\n    optimizer.step()\n    time.sleep(0.1)\n"
        # The sampler begins when it can: the training goes on until there are some samples.
        "    lines = [file.read_bytes().count(b'\\n') for file in metrics.rglob('metrics.csv')]\n"
        "    if step > 4 and sum(lines) > 3:\n        break\n"
    )
    ended = stepscope(
        "run", "--monitor", "--monitor-interval-s", "0.1", "--output-dir", tmp_path / "out",
        "--", warm_python(), script, tmp_path / "out", **VARIABLES,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "out").iterdir()
    assert "Hardware" in stepscope("report", run, "--full").stdout
    assert summarise_metrics(run / "rank00000" / "metrics.csv").samples >= 3
    shown = json.loads(stepscope("info", run, "--format", "json").stdout)
    assert shown["ranks"][0]["metrics"]["samples"] >= 3
    report = json.loads(stepscope("report", run, "--format", "json").stdout)
    assert report["ranks"][0]["metrics"]["gpus"] == []


@pytest.mark.slow
def test_each_rank_has_metrics_of_its_own(tmp_path):
    body = """
with stepscope.Profiler(output_dir=output, activities="cpu", wait=1, active=1,
                        monitor=True, monitor_interval_s=0.05) as profiler:
    for step in range(5):
        loss = train_step(model, step)
        time.sleep(0.1)
        profiler.step()
"""
    output = tmp_path / "out"
    result = torchrun(tmp_path, body, 2, output=output)
    assert result.returncode == 0, result.stderr
    ranks = open_run(output).ranks
    records = [read_metrics_record(rank.metrics_path) for rank in ranks]
    assert [record.watched_pid for record in records] == [
        rank.manifest.process_id for rank in ranks
    ]
    assert all(rank.manifest.problems == () for rank in ranks)


class FakeProperties:
    uuid = SECOND.removeprefix("GPU-")


def test_a_rank_shows_the_gpu_that_it_uses(tmp_path, monkeypatch):
    """Of several visible GPUs it is the one that holds the rank's memory, not the current one."""
    library = compile_stub(tmp_path / "nvml")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reserved = [0, 0]
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "memory_reserved", lambda index: reserved[index])
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: FakeProperties)
    from stepscope.capture.options.config import CaptureConfig
    from stepscope.run.layout import RankLayout

    config = CaptureConfig(monitor=True, monitor_interval_s=0.05)
    layout = RankLayout(Path(tmp_path))
    monitor = RankMonitor(config, layout, RankIdentity(1, 1, 2))
    wait_for(lambda: rows_in(layout.metrics) >= 2)
    monitor.step_ended()  # nothing is reserved yet
    reserved[1] = 1 << 20
    monitor.step_ended()
    wait_for(lambda: SECOND in layout.metrics.read_text())
    assert monitor.close() == ""
    frame, _ = read_metrics(layout.metrics)
    assert frame["uuid"].unique(maintain_order=True).to_list() == [None, SECOND]
    assert FIRST not in layout.metrics.read_text()
    assert [gpu.uuid for gpu in read_metrics_record(layout.metrics).gpus] == [SECOND]


def test_a_running_process_is_watched_until_it_ends(tmp_path):
    file = tmp_path / "metrics.csv"
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; x = bytearray(40 << 20); sys.stdin.read()"],
        stdin=subprocess.PIPE,
    ) as process, subprocess.Popen(
        [
            sys.executable, "-m", "stepscope", "monitor", "--pid", str(process.pid),
            "-lms", "50", "-f", file,
        ],
        env=environment(None),
        stderr=subprocess.DEVNULL,
    ) as monitor:  # fmt: skip
        try:
            wait_for(lambda: rows_in(file) >= 5)
            process.communicate()
            assert monitor.wait(200) == 0
        finally:
            monitor.kill()
    frame, skipped = read_metrics(file)
    assert skipped == 0
    assert frame["process.count"].max() == 1
    assert frame["process.memory.rss"].max() > 40
    gone = stepscope("monitor", "--pid", process.pid, "--query-gpu=process.count")
    assert (gone.returncode, "no such process" in gone.stderr) == (2, True)


def test_a_terminal_is_drawn_on_until_interrupted(tmp_path):
    main, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "stepscope", "monitor", "-lms", "50"],
        env=environment(None, TERM="xterm", COLUMNS="100", LINES="30"),
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, start_new_session=True,
    ) as viewer:  # fmt: skip
        os.close(terminal)
        try:
            seen = b""
            while seen.count(b"no run is being written") < 3:
                seen += os.read(main, 4096)
            viewer.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the other end is closed
                while os.read(main, 4096):
                    pass
            assert viewer.wait(200) == 0
        finally:
            viewer.kill()
    os.close(main)


def test_a_sampler_that_fails_says_so_in_its_record(tmp_path, monkeypatch):
    job = RecordingJob(str(tmp_path / "metrics.csv"), Watched(os.getpid()), 0.05)

    def broken(self):
        raise RuntimeError("no more")

    monkeypatch.setattr("stepscope.monitor.sampler.Sampler.read", broken)
    with pytest.raises(RuntimeError, match="no more"):
        Recorder(job).run(lambda _: None)
    record = read_metrics_record(tmp_path / "metrics.csv")
    assert record.ended == "the sampler failed: RuntimeError: no more"
