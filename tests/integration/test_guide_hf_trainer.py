"""The guide of a script on the Hugging Face Trainer: its flags, its defaults, its folder."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import pytest
import torch
from tests.support.guides import environment, run_inline, run_script
from tests.support.launching import WITHOUT_COMPILER
from tests.support.runs import manifest_of, rank_directory, steps_in_trace

import stepscope
from stepscope import open_run
from stepscope.adapters.external.tools import find_program
from stepscope.analysis.python_functions import python_functions

SCRIPT = """
    import argparse

    from tests.support.training import SmallTraining, batches

    import stepscope

    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=20)
    stepscope.add_arguments(parser, dialect="hf")
    args = parser.parse_args()
    training = SmallTraining()
    with stepscope.Profiler.from_args(args) as profiler:
        for batch in profiler.watch(batches(args.max_steps)):
            training.step(batch)
            profiler.step()
"""


def traces(folder):
    return sorted(
        folder.glob("*.pt.trace.json.gz"), key=lambda path: re.findall(r"\.(\d+)\.pt", path.name)
    )


def test_the_defaults_of_the_guide(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--enable-profiling", "--max-steps", "50"])
    folder = tmp_path / "profiler_traces"
    (trace,) = traces(folder)
    assert steps_in_trace(trace) == [7, 8, 9]
    manifest = manifest_of(folder)
    assert manifest.steps == 50
    assert manifest.step_unit == "optimizer step"
    options = open_run(folder).job.options
    wanted = ("record_shapes", "profile_memory", "with_stack", "with_flops")
    assert all(options[name] for name in wanted)


def test_the_customised_command_of_the_guide(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.WARNING, "stepscope")  # restored afterwards
    flags = [
        "--enable-profiling",
        "--profiler-output-dir",
        "./my_traces",
        "--profiler-wait-steps",
        "10",
        "--profiler-warmup-steps",
        "2",
        "--profiler-active-steps",
        "5",
        "--profiler-repeat",
        "2",
        "--enable-memory-logging",
        "--memory-log-steps",
        "5",
        "--max-steps",
        "40",
    ]
    run_inline(monkeypatch, tmp_path, SCRIPT, flags)
    recorded = [steps_in_trace(trace) for trace in traces(tmp_path / "my_traces")]
    assert recorded == [[12, 13, 14, 15, 16], [29, 30, 31, 32, 33]]
    if not torch.cuda.is_available():
        assert "skipped" not in caplog.text
        log = (rank_directory(tmp_path / "my_traces") / "memory.log").read_text()
        steps = re.findall(r"^\[Step (\d+)\] Host: Resident: \d+\.\d\dGB", log, re.MULTILINE)
        assert steps == [str(done) for done in range(5, 41, 5)]


def test_memory_is_logged_without_profiling(tmp_path):
    flags = ["--enable-memory-logging", "--memory-log-steps", "5", "--max-steps", "20"]
    result = run_script(tmp_path, SCRIPT, flags)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "profiler_traces"
    lines = re.findall(r"^\[Step (\d+)\] (?:GPU 0|Host): .*GB$", result.stdout, re.MULTILINE)
    assert lines == ["5", "10", "15", "20"]
    log = (rank_directory(folder) / "memory.log").read_text()
    assert re.findall(r"^\[Step (\d+)\]", log, re.MULTILINE) == lines
    manifest = manifest_of(folder)
    assert manifest.windows == ()
    assert manifest.steps == 20
    assert traces(folder) == []
    assert "stepscope: recorded the times of 20 steps, and no window\n" in result.stderr


def test_without_the_flag_nothing_is_profiled(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, [])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.gpu
def test_the_line_on_each_gpu(tmp_path):
    script = SCRIPT.replace(
        "training.step(batch)", "training.step(batch); torch.ones(1 << 20, device='cuda').sum()"
    )
    script = script.replace("import argparse", "import argparse\n\n    import torch", 1)
    flags = ["--enable-profiling", "--enable-memory-logging", "--max-steps", "20"]
    result = run_script(tmp_path, script, flags)
    assert result.returncode == 0, result.stderr
    pattern = r"\[Step 10\] GPU 0: Allocated: \d\.\d\dGB, Reserved: \d\.\d\dGB, Peak: \d\.\d\dGB"
    assert re.search(pattern, result.stdout)
    log = (open_run(tmp_path / "profiler_traces").path / "rank00000" / "memory.log").read_text()
    assert re.search(pattern, log)


def test_too_short_a_training_says_what_to_set(monkeypatch, capsys, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--enable-profiling", "--max-steps", "8"])
    said = capsys.readouterr().err
    assert "stepscope: recorded the times of 8 steps and 1 window: step 7 (1 of 3)\n" in said
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--enable-profiling", "--max-steps", "6"])
    said = capsys.readouterr().err
    assert "and the first window would be steps 7 to 9: train 10 steps or more" in said
    assert ", or set --profiler-wait-steps 1\n" in said


# -- "Alternative Profiling Methods": py-spy and tracemalloc ---------------------------------------

needs_py_spy = pytest.mark.skipif(
    find_program("py-spy") is None or sys.platform == "darwin",
    reason="needs py-spy, and on macOS root",
)
PLAIN = (
    WITHOUT_COMPILER
    + """
import sys, time
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def slow_collate(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(200))


for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    slow_collate(0.05)
    print("step", flush=True)
sys.exit(7)
"""
)
MEMORY = """
    import argparse
    import tracemalloc

    from tests.support.training import SmallTraining, batches

    import stepscope

    parser = argparse.ArgumentParser()
    stepscope.add_arguments(parser, dialect="hf")
    args = parser.parse_args()
    training = SmallTraining()
    kept = []
    with stepscope.Profiler.from_args(args) as profiler, open("seen.txt", "w") as seen:
        for number, batch in enumerate(profiler.watch(batches(14))):
            training.step(batch)
            kept.append(bytearray(2_000_000))
            if tracemalloc.is_tracing():
                current, peak = tracemalloc.get_traced_memory()
                print(number, current, peak, file=seen, flush=True)
            profiler.step()
"""


@pytest.mark.slow
@needs_py_spy
def test_py_spy_runs_the_training_directly(tmp_path):
    (tmp_path / "train.py").write_text(PLAIN)
    # Each look stops the training and reads its stacks, the long ones of importing torch, too.
    options = ("--no-report", "--py-spy", "--py-spy-rate", "25")
    ours = [sys.executable, "-m", "stepscope", "run", *options, "--"]
    done = subprocess.run(
        [*ours, sys.executable, "train.py", "20"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    (home,) = (tmp_path / "profiles").iterdir()
    run = open_run(home)
    (recording,) = run.external
    (path,) = recording.files
    assert path.name == "py-spy.json"
    assert "slow_collate" in python_functions(stepscope.load(path)).functions["function"]
    assert f"py-spy: next: stepscope report {path.resolve()}" in done.stderr
    record = recording.record
    assert (record.tool, record.problems) == ("py-spy", ())
    assert re.fullmatch(r"\d+\.\d+\.\d+", record.tool_version)
    assert record.artifacts[0].bytes == path.stat().st_size
    # The training is recorded as it is without py-spy.
    assert run.ranks[0].manifest.steps == 20
    assert run.windows[0].trace_path is not None


@needs_py_spy
@pytest.mark.slow
def test_py_spy_beside_a_training_that_runs(tmp_path):
    (tmp_path / "train.py").write_text(PLAIN)
    options = {"cwd": tmp_path, "env": environment(), "text": True}
    command = [sys.executable, "train.py", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as training:
        try:
            assert training.stdout.readline() == "step\n"
            # On a busy machine the training may stand still for a while, and has no stacks then.
            for seconds in ("1", "5", "30"):
                ours = ["-m", "stepscope", "attach", str(training.pid), "--seconds", seconds]
                done = subprocess.run(
                    [sys.executable, *ours, "--output", "profile.svg"],
                    capture_output=True,
                    timeout=250,
                    check=False,
                    **options,
                )
                if (
                    done.returncode == 0
                    and "slow_collate" in (tmp_path / "profile.svg").read_text()
                ):
                    break
        finally:
            training.kill()
            training.stdout.read()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "profile.svg\n"
    assert "slow_collate" in (tmp_path / "profile.svg").read_text()


def test_tracemalloc_tells_current_and_peak_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_WINDOW_RECORDER", "tracemalloc")
    run_inline(monkeypatch, tmp_path, MEMORY, ["--enable-profiling"])
    (window,) = manifest_of(tmp_path / "profiler_traces").windows
    assert (window.first_step, window.last_step) == (7, 9)
    table = rank_directory(tmp_path / "profiler_traces") / "window-0000" / "python_memory.txt"
    text = table.read_text()
    told = {
        word: int(
            re.search(rf"^{word} memory: ([\d,]+) bytes$", text, re.MULTILINE)[1].replace(",", "")
        )
        for word in ("Current", "Peak")
    }
    # What the guide's own lines would have printed at the same moment.
    seen = [
        tuple(map(int, line.split())) for line in (tmp_path / "seen.txt").read_text().splitlines()
    ]
    last = {number: (current, peak) for number, current, peak in seen}[9]
    assert told["Current"] == pytest.approx(last[0], abs=20_000)
    assert told["Peak"] == pytest.approx(last[1], abs=20_000)
    assert "kept.append(bytearray(2_000_000))" in text
