"""`stepscope run` with the real py-spy and memray, and with a stand-in for nsys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.fake_nsys import arguments_of, make_nsys
from tests.support.guides import environment
from tests.support.launching import WITHOUT_COMPILER
from tests.support.warm_python import warm_python

from stepscope import load, open_run
from stepscope.adapters.external.tools import find_program
from stepscope.analysis.python_functions import python_functions
from stepscope.commands.main import main
from stepscope.commands.report import command as report
from stepscope.report.units import size

SCRIPT = (
    WITHOUT_COMPILER
    + """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def tokenise_slowly(seconds):
    # Of its own time: most of the step's, however much of the machine others have.
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


def main(seconds, steps, code):
    data = TensorDataset(torch.randn(4 * steps, 16), torch.randn(4 * steps, 4))
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        tokenise_slowly(seconds)
        kept.append(torch.ones(1_000_000))
        print("step", flush=True)
    print(sum(p.sum().item() for p in model.parameters()))
    sys.exit(code)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""
)
RANKS = """
import torch, time
from torch import nn
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def tokenise_slowly():
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        sum(range(200))


for _ in range(40):  # a busy machine lets py-spy look only now and then
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    tokenise_slowly()
torch.distributed.destroy_process_group()
"""
TERMINAL = str(Path(__file__).parents[1] / "support" / "terminal.py")
QUICK = ["--wait", "2", "--warmup", "1", "--active", "2", "--activities", "cpu", "--no-report"]
# Each look stops the training and reads its stacks, the long ones of importing torch, too.
SELDOM = ["--py-spy", "--py-spy-rate", "25"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
needs_py_spy = pytest.mark.skipif(
    find_program("py-spy") is None or sys.platform == "darwin",
    reason="needs py-spy, and on macOS root",
)


def run(folder, options, *arguments, text=SCRIPT, before=(), **more):
    """Run the script below `stepscope run` with options."""
    (folder / "train.py").write_text(text)
    ours = [sys.executable, "-m", "stepscope", "run", *QUICK, *options, "--"]
    # Tools other than nsys look into the process that they start.
    python = warm_python() if options[0] in ("--nsys", "--result-file") else sys.executable
    return subprocess.run(
        [*ours, python, *before, "train.py", *map(str, arguments)],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def plainly(folder, *arguments):
    (folder / "train.py").write_text(SCRIPT)
    command = [warm_python(), "train.py", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def recording_of(folder):
    (recording,) = open_run(folder / "profiles").external
    return recording


def put_program(folder, name, text):
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


# -- py-spy ---------------------------------------------------------------------------------------


@needs_py_spy
@pytest.mark.slow
def test_a_chrome_trace_of_py_spy_opens_with_report(tmp_path):
    options = ["--py-spy", "--py-spy-format", "chrometrace", "--py-spy-rate", "200"]
    done = run(tmp_path, options, 0.04, 20, 0)
    assert done.returncode == 0, done.stderr
    (path,) = recording_of(tmp_path).files
    answer = python_functions(load(path))
    assert answer.threads["thread"][0] == "MainThread"
    # Of the script's own functions, whatever the imports took before.
    ours = [row for row in answer.functions.to_dicts() if row["place"].endswith("train.py")]
    assert ours[0]["function"] == "tokenise_slowly"
    assert ours[0]["self_ns"] > 0
    told = CliRunner().invoke(report, [str(path)])
    assert told.exit_code == 0, told.output
    assert "Verdict  MainThread of process" in told.output
    assert "tokenise_slowly" in told.output


@pytest.mark.slow
@needs_py_spy
def test_py_spy_sees_the_ranks_below_torchrun(tmp_path):
    options = ["--py-spy", "--py-spy-format", "speedscope"]
    done = run(tmp_path, options, text=RANKS, before=TORCHRUN)
    assert done.returncode == 0, done.stderr
    run_found = open_run(tmp_path / "profiles")
    assert [rank.manifest.steps for rank in run_found.ranks] == [40, 40]
    (recording,) = run_found.external
    document = json.loads(recording.files[0].read_bytes())
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    slow = {number for number, name in enumerate(frames) if name == "tokenise_slowly"}
    assert slow
    seen = {
        profile["name"]
        for profile in document["profiles"]
        if any(slow & set(sample) for sample in profile["samples"])
    }
    assert len(seen) == 2


@pytest.mark.slow  # as Ctrl-C below
@needs_py_spy
def test_a_signal_reaches_the_training_and_the_recording_is_kept(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stepscope", "run", *QUICK, *SELDOM, "--"]
    command += [sys.executable, "train.py", "0.05", "2000", "0"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            steps = 0
            while steps < 20:
                line = child.stdout.readline()
                assert line, child.stderr.read()
                steps += line == "step\n"
            child.send_signal(signal.SIGTERM)
            _, said = child.communicate(timeout=250)
        finally:
            child.kill()
    assert child.returncode == 128 + signal.SIGTERM, said
    found = open_run(tmp_path / "profiles")
    assert found.ranks[0].manifest.ended.startswith("SIGTERM in step")
    (recording,) = found.external
    assert "tokenise_slowly" in recording.files[0].read_text()


@pytest.mark.slow
@needs_py_spy
def test_ctrl_c_at_the_terminal_ends_the_training_and_keeps_the_recording(tmp_path):
    """py-spy would kill what it started, and with it the word of how the training ended."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stepscope", "run", *QUICK, *SELDOM, "--"]
    command += [sys.executable, "train.py", "0.05", "2000", "0"]
    done = subprocess.run(
        [sys.executable, TERMINAL, "step", "10", *command],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "130", done.stdout
    found = open_run(tmp_path / "profiles")
    assert found.ranks[0].manifest.ended.startswith("KeyboardInterrupt in step")
    (recording,) = found.external
    assert "tokenise_slowly" in recording.files[0].read_text()
    assert recording.record.problems == ()


@needs_py_spy
def test_a_script_that_trains_nothing_keeps_its_recording(tmp_path):
    text = "import time\nuntil = time.time() + 1\nwhile time.time() < until: sum(range(300))\n"
    done = run(tmp_path, ["--py-spy"], text=text)
    assert done.returncode == 0
    assert "nothing was trained" in done.stderr
    (folder,) = (tmp_path / "profiles").iterdir()
    assert (folder / "py-spy.json").is_file()
    assert f"stepscope report {folder / 'py-spy.json'}" in done.stderr


@needs_py_spy
def test_attaching_to_a_run(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stepscope", "run", *QUICK, "--"]
    command += [sys.executable, "train.py", "0.05", "2000", "0"]
    ours = [sys.executable, "-m", "stepscope", "attach", "--seconds", "3"]
    options = {"cwd": tmp_path, "env": environment(), "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as child:
        try:
            for _ in range(3):
                assert child.stdout.readline() == "step\n"
            home = open_run(tmp_path / "profiles").path
            more = {"capture_output": True, "timeout": 100, **options}
            words = [*ours, str(home), "--py-spy-format", "chrometrace"]
            done = subprocess.run(words, check=False, **more)
        finally:
            child.terminate()
            child.stdout.read()
    assert done.returncode == 0, done.stderr
    (path,) = recording_of(tmp_path).files
    assert done.stdout.strip() == str(path)
    assert python_functions(load(path)).threads["most_in"][0] == "tokenise_slowly"


@needs_py_spy
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to be somebody else",
)
def test_a_process_of_somebody_else_is_refused_with_the_remedy(tmp_path, monkeypatch, capsys):
    somebody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    program = f'#!/bin/sh\nexec {somebody} {find_program("py-spy")} "$@"\n'
    monkeypatch.setenv("PATH", put_program(tmp_path / "bin", "py-spy", program)["PATH"])
    output = str(tmp_path / "x.svg")
    assert main(["attach", str(os.getpid()), "--seconds", "1", "--output", output]) == 2
    said = capsys.readouterr().err
    assert "py-spy may not read the other process: " in said
    assert re.search(r"sudo|SYS_PTRACE", said)


@pytest.mark.slow
def test_a_py_spy_that_is_refused_at_the_start_ends_the_training_with_it(tmp_path):
    program = f"""#!{sys.executable}
import subprocess, sys, time
if "--version" in sys.argv:
    sys.exit(print("py-spy 0.4.0"))
subprocess.Popen(sys.argv[sys.argv.index("--") + 1:])
time.sleep(4)
print("Permission Denied: Try running again with elevated permissions", file=sys.stderr)
sys.exit(1)
"""
    path = put_program(tmp_path / "bin", "py-spy", program)
    done = run(tmp_path, ["--py-spy"], 0.05, 2000, 0, **path)
    assert done.returncode == 2, done.stderr
    assert "py-spy ended with 1 at the start: " in done.stderr
    assert "Permission Denied" in done.stderr
    assert _nobody_trains_in(tmp_path)


def test_a_py_spy_that_cannot_start_the_training_says_so(tmp_path):
    program = "#!/bin/sh\necho 'error: unexpected argument' >&2\nexit 2\n"
    path = put_program(tmp_path / "bin", "py-spy", program)
    done = run(tmp_path, ["--py-spy"], 0.05, 2000, 0, **path)
    assert done.returncode == 2
    assert "without starting the training" in done.stderr
    assert not (tmp_path / "profiles").exists()


def _nobody_trains_in(folder):
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder) and "train.py" in process.cmdline():
                return False
    return True


# -- nsys -----------------------------------------------------------------------------------------


def with_nsys(folder, **how):
    make_nsys(folder / "bin", **how)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def test_nsys_runs_the_training_and_its_report_opens(tmp_path, monkeypatch):
    path = with_nsys(tmp_path)
    done = run(tmp_path, ["--nsys", "--nsys-trace", "cuda,mpi"], 0.01, 8, 3, **path)
    assert done.returncode == 3, done.stderr
    words = arguments_of(tmp_path / "bin")
    assert words[:2] == ["profile", "--trace=cuda,mpi"]
    assert "--capture-range=cudaProfilerApi" in words
    found = open_run(tmp_path / "profiles")
    assert found.ranks[0].manifest.steps == 8
    assert found.job.options["window_recorder"] == "cuda-range"
    recording = recording_of(tmp_path)
    (file,) = recording.files
    assert file.name == "report.nsys-rep"
    assert recording.record.tool_version == "2025.3.1"
    assert f"nsys: next: stepscope report {file.resolve()}" in done.stderr
    monkeypatch.setenv("PATH", path["PATH"])
    told = CliRunner().invoke(report, [str(file)])
    assert told.exit_code == 0, told.output
    trace = load(file)
    assert trace.steps["step"].to_list() == [2, 3]


def test_without_cuda_nsys_is_never_told_to_begin(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    done = run(tmp_path, ["--nsys"], 0.01, 8, 0, **with_nsys(tmp_path, endings=()))
    assert done.returncode == 0
    assert (
        done.stderr.count(
            "window_recorder=cuda-range: no windows are recorded: torch finds no CUDA"
        )
        == 1
    )
    assert "nsys: it wrote no report: no window was marked for it" in done.stderr
    assert recording_of(tmp_path).record.problems[0].startswith("it wrote no report")


def test_an_nsys_that_refuses_is_told(tmp_path):
    done = run(tmp_path, ["--nsys"], 0.01, 8, 0, **with_nsys(tmp_path, code=5))
    assert done.returncode == 2
    assert "nsys: this machine is not supported" in done.stderr
    assert "nsys ended with 5 without starting the training" in done.stderr


def test_a_tool_that_dies_later_leaves_the_training_alone(tmp_path, monkeypatch):
    """Once it has trained for a while, the training is worth more than the recording."""
    from stepscope.adapters.external import session
    from stepscope.adapters.script.launch import Launched

    monkeypatch.setattr(session, "EARLY_S", 0.0)
    result = tmp_path / "result.json"
    inner = (
        "import time, sys; from pathlib import Path\n"
        "from stepscope.adapters.external.session import write_beginning, write_result\n"
        "from stepscope.adapters.script.launch import Launched\n"
        f"path = Path({str(result)!r})\n"
        "write_beginning(path)\n"
        "print('begun', flush=True)\n"
        "time.sleep(2)\n"
        "write_result(path, Launched(9, (path,), True, 2, ('odd',), {4: 1}, {path: (0, 1)}))\n"
    )
    tool = (
        f"import subprocess, sys\n"
        f"inner = [sys.executable, '-c', {inner!r}]\n"
        "subprocess.Popen(inner, stdout=subprocess.PIPE).stdout.readline()\n"
        "sys.exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    launched, problems = session.run_below([sys.executable, "-c", tool], result, lambda: "why")
    assert launched == Launched(9, (result,), True, 2, ("odd",), {4: 1}, {result: (0, 1)})
    (problem,) = problems
    assert "before the training did" in problem


# -- memray ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memray_counts_tensors_in_the_hosts_memory(tmp_path):
    pytest.importorskip("memray", reason="needs memray")
    bare = plainly(tmp_path, 0.001, 30, 7)
    done = run(tmp_path, ["--memray"], 0.001, 30, 7)
    assert done.returncode == 7, done.stderr
    assert done.stdout == bare.stdout
    recording = recording_of(tmp_path)
    assert {path.name for path in recording.files} == {
        "rank00000.bin",
        "rank00000-flamegraph.html",
        "rank00000-table.html",
        "rank00000-stats.json",
        "rank00000-stats.txt",
    }
    assert recording.record.problems == ()
    # The script keeps 30 tensors of 4 MB.
    statistics = json.loads((recording.directory / "rank00000-stats.json").read_bytes())
    peak = statistics["metadata"]["peak_memory"]
    assert 120_000_000 < peak < 1_000_000_000
    # Importing torch allocates as much here and there, and lets go of it again.
    sizes = {row["location"]: row["size"] for row in statistics["top_allocations_by_size"]}
    (ours,) = (place for place in sizes if place.startswith("main:") and "train.py" in place)
    assert sizes[ours] >= 120_000_000
    assert f"memray: rank 0 used at most {size(peak)} of host memory" in done.stderr
    text = (recording.directory / "rank00000-stats.txt").read_text()
    assert "Peak memory usage" in text
    # Nothing of torch's profiler is in what was counted, and a line says so.
    assert "memray: no windows were recorded" in done.stderr
    found = open_run(tmp_path / "profiles")
    assert found.job.options["window_recorder"] == "none"
    assert found.ranks[0].manifest.windows == ()
    assert len(found.ranks[0].steps) == 30


@pytest.mark.slow
def test_memray_counts_each_rank_below_torchrun(tmp_path):
    pytest.importorskip("memray", reason="needs memray")
    done = run(tmp_path, ["--memray"], text=RANKS, before=TORCHRUN)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in recording_of(tmp_path).files}
    assert {"rank00000.bin", "rank00001.bin", "rank00000-flamegraph.html"} <= names
    assert not any(name.startswith("memray-") for name in names)
    assert "memray: rank 1 used at most" in done.stderr


def test_two_trainings_of_one_command_keep_a_file_each(tmp_path):
    from stepscope.adapters.external.memray import _named_files

    for number in (11, 12, 13, 14):
        (tmp_path / f"memray-{number}.bin").touch()
    (tmp_path / "memray-12.bin.99").touch()
    found = _named_files(tmp_path, {11: 0, 12: 0, 14: 1})
    names = ["rank00000.bin", "rank00000-2.bin", "rank00001.bin"]
    assert [(rank, path.name) for rank, path in found] == list(zip((0, 0, 1), names, strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {*names, "rank00000-2.bin.99"}
    (tmp_path / "memray-5.bin").touch()
    assert _named_files(tmp_path, {}) == [(0, tmp_path / "process5.bin")]


@pytest.mark.slow
def test_memray_keeps_what_a_killed_training_allocated(tmp_path):
    pytest.importorskip("memray", reason="needs memray")
    text = SCRIPT.replace("    sys.exit(code)", "    import os; os.kill(os.getpid(), 9)")
    done = run(tmp_path, ["--memray"], 0.001, 30, 0, text=text)
    assert done.returncode == 128 + 9
    assert re.search(r"memray: rank 0 used at most [\d.]+ MiB", done.stderr), done.stderr


def test_an_interpreter_without_memray_stops_before_the_training(tmp_path):
    """Below torchrun nobody can look beforehand: the processes themselves say so."""
    pytest.importorskip("memray", reason="needs memray")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "memray.py").write_text("raise ModuleNotFoundError('no', name='memray')\n")
    launcher = put_program(
        tmp_path / "bin",
        "launch",
        f"#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{hidden}\nexport PYTHONPATH\n"
        f'exec {sys.executable} -c "\nimport sys; sys.path.insert(0, {str(hidden)!r})\n'
        "import torch; open('trained', 'w')\"\n",
    )
    ours = [sys.executable, "-m", "stepscope", "run", *QUICK, "--memray", "--", "launch"]
    done = subprocess.run(
        ours, cwd=tmp_path, env=environment(**launcher), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert re.search(r"this Python has no memray: \S+ -m pip install memray", done.stderr)
    assert not (tmp_path / "trained").exists()


# -- tracemalloc, result file ---------------------------------------------------------------------


@pytest.mark.slow
def test_tracemalloc_tells_where_its_table_is(tmp_path):
    text = SCRIPT.replace("torch.ones(1_000_000)", "bytearray(1_000_000)")
    done = run(tmp_path, ["--tracemalloc"], 0.001, 8, 0, text=text)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "tracemalloc: " in line]
    table = Path(line.partition("tracemalloc: ")[2]).read_text()
    assert "bytearray(1_000_000)" in table
    assert re.search(r"^ +\+2,000,\d{3} +\+1,000,\d{3} ", table, re.MULTILINE)


def test_the_result_file(tmp_path):
    started = time.time()
    done = run(tmp_path, ["--result-file", "result.json"], 0.001, 8, 5)
    assert done.returncode == 5
    assert "stepscope report" not in done.stderr.replace("next: stepscope report", "", 1)
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["exit_code"] == 5
    assert result["runs"] == [str(open_run(tmp_path / "profiles").path.resolve())]
    assert list(result["ranks"].values()) == [0]
    assert (tmp_path / "result.json").stat().st_mtime >= started - 2


def test_a_result_file_that_cannot_be_written_is_told_first(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(tmp_path, ["--result-file", "file/result.json"], 0.001, 8, 5)
    assert done.returncode == 2
    assert "file/result.json: cannot be written" in done.stderr
    assert not (tmp_path / "profiles").exists()
