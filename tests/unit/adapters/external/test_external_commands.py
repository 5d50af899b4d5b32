"""The commands that start other tools: what is typed, what is refused, what is explained."""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.support.fake_nsys import make_nsys

from stepscope.adapters.external import nsys, py_spy
from stepscope.adapters.external.memray import MemrayOptions
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.py_spy import PySpyOptions, explain
from stepscope.adapters.external.tools import find_program, keep, scratch_folder, version_of
from stepscope.commands.attach import command as attach
from stepscope.commands.main import main
from stepscope.commands.run import command as run
from stepscope.errors import UsageError
from stepscope.opening.reader import open_run
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import ExternalRecord, JobRecord, read_record, write_record


def dry_run(*options):
    """The words that would be run."""
    done = CliRunner().invoke(
        run, ["--dry-run", *options, "--", "torchrun", "train.py", "--lr", "1"]
    )
    assert done.exit_code == 0, done.output
    return shlex.split(done.stdout)


def refusal(*options):
    done = CliRunner().invoke(run, [*options, "--", "python", "train.py"])
    assert isinstance(done.exception, (click.UsageError, UsageError, SystemExit))
    return done.output + str(done.exception)


@pytest.fixture
def no_tools(monkeypatch, tmp_path):
    """A machine that has none of the tools."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


# -- nsys -----------------------------------------------------------------------------------------


def test_the_command_of_nsys_needs_no_nsys(no_tools):
    words = dry_run(
        "--nsys", "--output-dir", "out", "--repeat", "3", "--with-stack", "--no-triggers"
    )
    folder = Path("out").absolute() / "external"
    assert words[:2] == ["nsys", "profile"]
    assert words[2:6] == [
        "--trace=cuda,nvtx,osrt",
        f"--output={folder}/report",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=repeat:3",
    ]
    below = words[6:]
    assert below[1:5] == ["-m", "stepscope", "run", "--no-report"]
    assert below[below.index("--result-file") + 1] == f"{folder}/result.json"
    assert below[below.index("--window-recorder") + 1] == "cuda-range"
    assert below[below.index("--output-dir") + 1] == "out"
    assert below[below.index("--repeat") + 1] == "3"
    assert {"--with-stack", "--no-triggers"} <= set(below)
    assert below[-5:] == ["--", "torchrun", "train.py", "--lr", "1"]


def test_what_nsys_starts_is_a_command_that_works(no_tools):
    """The words below nsys are taken by `stepscope run` as it was meant."""
    words = dry_run("--nsys", "--active", "4", "--ranks", "0,1", "--step-on", "iteration")
    inner = words[words.index("run") + 1 :]
    again = CliRunner().invoke(run, ["--dry-run", *inner])
    assert again.exit_code == 0, again.output
    assert shlex.split(again.stdout) == ["torchrun", "train.py", "--lr", "1"]


@pytest.mark.parametrize(("windows", "ending"), [(1, "stop"), (2, "repeat:2"), (0, "repeat")])
def test_the_training_goes_on_after_the_last_window(windows, ending):
    words = NsysOptions().command(Path("r"), ["python"], "nsys", windows=windows)
    # What nsys does by itself, stop-shutdown, ends the program.
    assert f"--capture-range-end={ending}" in words


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2023.4.1", "--gpu-metrics-device=all"),
        ("2024.2.3", "--gpu-metrics-device=all"),
        ("2025.1", "--gpu-metrics-devices=all"),
        ("", "--gpu-metrics-devices=all"),
    ],
)
def test_an_option_that_was_renamed(version, name, monkeypatch):
    monkeypatch.setattr(nsys, "version_of", lambda _: version)
    options = NsysOptions(gpu_metrics="all")
    words = options.command(Path("r"), ["python"], "nsys", windows=1)
    assert name in words


def test_the_version_of_an_installed_nsys_decides(monkeypatch, tmp_path):
    make_nsys(tmp_path, version="2023.2")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = dry_run("--nsys", "--nsys-gpu-metrics", "0,1")
    assert words[0] == str(tmp_path / "nsys")
    assert "--gpu-metrics-device=0,1" in words
    assert version_of(words[0]) == "2023.2.1"


def test_reports_stand_in_the_order_of_their_windows(tmp_path):
    for number in (10, 2, 1):
        (tmp_path / f"report.{number}.nsys-rep").touch()
    (tmp_path / "other.nsys-rep").touch()
    found = [path.name for path in nsys.reports_in(tmp_path)]
    assert found == ["report.1.nsys-rep", "report.2.nsys-rep", "report.10.nsys-rep"]


def test_running_as_somebody_else_needs_root(monkeypatch):
    options = NsysOptions(run_as="ada", memory=True)
    monkeypatch.setattr(nsys, "_is_no_root", lambda: True)
    words = options.command(Path("r"), ["python"], "nsys", windows=1)
    assert words[:4] == ["sudo", "--preserve-env", "nsys", "profile"]
    assert {"--run-as=ada", "--cuda-memory-usage=true"} <= set(words)
    monkeypatch.setattr(nsys, "_is_no_root", lambda: False)
    assert options.command(Path("r"), ["python"], "nsys", windows=1)[0] == "nsys"


def test_more_arguments_are_passed_as_they_are():
    words = dry_run(
        "--nsys", "--nsys-arguments", "--sample=none '--delay=3'", "--nsys-range", "all"
    )
    assert {"--sample=none", "--delay=3"} <= set(words)
    assert not any(word.startswith("--capture-range") for word in words)


# -- py-spy ---------------------------------------------------------------------------------------


def test_the_command_of_py_spy(no_tools):
    words = dry_run("--py-spy", "--py-spy-format", "speedscope", "--py-spy-rate", "50")
    assert words[:8] == [
        "py-spy", "record", "--subprocesses", "--format", "speedscope", "--rate", "50", "--output",
    ]  # fmt: skip
    assert words[8].endswith("/external/py-spy.speedscope.json")
    assert words[9] == "--"
    assert words[-5:] == ["--", "torchrun", "train.py", "--lr", "1"]


def test_attaching():
    words = PySpyOptions("raw").record("py-spy", Path("x.txt"), ("--pid", "7"), 2.4)
    assert words[-4:] == ["--duration", "2", "--pid", "7"]
    assert "--" not in words


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["-o", "profile.svg"], "flamegraph"),
        (["-o", "spy.speedscope.json"], "speedscope"),
        (["-o", "spy.json"], "chrometrace"),
        (["-o", "spy.txt"], "raw"),
        (["-o", "spy"], "chrometrace"),
        (["-o", "profile.svg", "--py-spy-format", "raw"], "raw"),
        ([], "chrometrace"),
    ],
)
def test_the_ending_of_the_output_chooses_the_format(monkeypatch, tmp_path, words, asked):
    program = tmp_path / "py-spy"
    program.write_text(f'#!{sys.executable}\nimport sys\nprint(sys.argv, file=open("said", "w"))\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    main(["attach", str(os.getpid()), "--seconds", "1", *words])
    assert f"'--format', '{asked}'" in Path("said").read_text()


def test_lanes_of_a_chrome_trace_are_told_apart():
    def words_of(options):
        return options.command(Path("x"), ["a"], "py-spy", windows=1)

    words = words_of(PySpyOptions("chrometrace"))
    assert {"--threads", "--idle"} <= set(words)
    assert "--idle" not in words_of(PySpyOptions("flamegraph"))
    # A raw has no lanes: without the threads' names, all threads of a process are one.
    assert "--threads" in words_of(PySpyOptions("raw"))
    twice = PySpyOptions("chrometrace", arguments=("--threads",))
    assert words_of(twice).count("--threads") == 1


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "Permission Denied: Try running again with elevated permissions",
            "may not read.*: rule 5",
        ),
        ("Error: Operation not permitted (os error 1)", "may not read.*: rule 5"),
        ("This program requires root on OSX.", "may not read.*: rule 5"),
        ("Caused by:\n 0: No such file or directory (os error 2)", "there is no such process"),
        ("Error: No python processes found in process 9 or", "it is not a Python process"),
        (
            "Error: Failed to find python version from target process",
            "py-spy does not support the process's Python",
        ),
        ("\nsomething else\nmore", "py-spy failed: something else$"),
        ("", "no reason given"),
    ],
)
def test_py_spys_complaints_are_explained(said, meaning):
    error = explain(said, "rule 5")
    assert error.exit_code == 2
    with pytest.raises(UsageError, match=meaning):
        raise error


def test_macos_lets_only_root_sample(monkeypatch):
    monkeypatch.setattr(py_spy, "require_program", lambda *_: "py-spy")
    monkeypatch.setattr(py_spy.sys, "platform", "darwin")
    monkeypatch.setattr(py_spy.os, "geteuid", lambda: 501)
    with pytest.raises(UsageError, match="with sudo"):
        PySpyOptions().require()
    monkeypatch.setattr(py_spy.os, "geteuid", lambda: 0)
    assert PySpyOptions().require() == "py-spy"


# -- memray ---------------------------------------------------------------------------------------


def test_memray_runs_inside_and_needs_no_other_command():
    assert dry_run("--memray") == ["torchrun", "train.py", "--lr", "1"]


# -- what is refused, before anything begins -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--py-spy", "--memray"], "--py-spy and --memray: use one at a time"),
        (["--py-spy", "--nsys", "--memray"], "--py-spy and --nsys and --memray"),
        (["--py-spy-rate", "10"], "--py-spy-rate needs --py-spy"),
        (["--nsys-memory"], "--nsys-memory needs --nsys"),
        (["-o", "prof"], "--nsys-output needs --nsys; the folder of the run is --output-dir"),
        (["--memray-native", "--py-spy"], "--memray-native needs --memray"),
        (["--tracemalloc", "--memray"], "one would count the other's memory"),
        (["--tracemalloc", "--nsys"], "a window has one recorder"),
        (["--tracemalloc", "--window-recorder", "torch"], "another --window-recorder"),
        (["--nsys", "--window-recorder", "torch"], "marks none"),
        (["--py-spy", "--py-spy-arguments", "'open"], "No closing quotation"),
        # py-spy would end the training after the duration.
        (["--py-spy", "--py-spy-arguments", "-d 5"], "leave -d out: py-spy ends the training"),
        (["--py-spy", "--py-spy-arguments", "--native --duration=5"], "leave --duration out"),
        (["--py-spy", "--py-spy-arguments", "-ox.svg"], "leave -o out"),
        (["--nsys", "--nsys-arguments", "--capture-range=nvtx"], "give --nsys-range"),
    ],
)
def test_options_that_cannot_work(options, said):
    assert said in refusal(*options)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--py-spy", 'pip install "stepscope[py-spy]"'),
        ("--nsys", "apt install nsight-systems"),
        ("--memray", 'pip install "stepscope[memray]"'),
    ],
)
def test_a_missing_tool_is_one_line_before_the_training(
    option, remedy, no_tools, monkeypatch, capsys
):
    monkeypatch.setattr("importlib.util.find_spec", _without_memray)
    monkeypatch.chdir(no_tools)
    assert main(["run", option, "--", "python", "-c", "open('ran', 'w')"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert remedy in line
    assert list(no_tools.iterdir()) == []


_FIND = importlib.util.find_spec


def _without_memray(name, *rest):
    return None if name == "memray" else _FIND(name, *rest)


def test_a_missing_py_spy_cannot_attach(no_tools, capsys):
    assert main(["attach", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "stepscope[py-spy]"' in line


@pytest.mark.parametrize("process", ["99999999", "9" * 30])
def test_a_process_that_does_not_exist_is_named(monkeypatch, tmp_path, capsys, process):
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["attach", process, "-o", str(tmp_path / "spy.svg")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"stepscope: there is no process {process} on this machine"


def test_tracemalloc_is_a_recorder_of_windows():
    # There is nothing to start for it: the command is what it was.
    assert dry_run("--tracemalloc") == ["torchrun", "train.py", "--lr", "1"]


# -- finding --------------------------------------------------------------------------------------


def test_a_program_beside_the_interpreter_is_found(monkeypatch, tmp_path):
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho py-spy 9.8.7\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_program("py-spy") == str(program)
    assert version_of(str(program)) == "9.8.7"
    assert version_of(str(tmp_path / "missing")) == ""


# -- keeping --------------------------------------------------------------------------------------


def recording_in(output, **files):
    folder = scratch_folder(output, "py-spy")
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    command = ("py-spy", "--token", "hf_secretsecret")
    return folder, ExternalRecord("py-spy", "0.4.0", command, started_ns=5)


def test_files_move_into_the_run_with_a_manifest(tmp_path):
    run_path = tmp_path / "job"
    run_path.mkdir()
    write_record(RunLayout(run_path).run_file, JobRecord("job", 1))
    home = keep(*recording_in(tmp_path, a_svg="<svg/>"), run_path, ["it coughed"])
    assert home.parent == run_path / "external"
    record = read_record(home / "manifest.json", ExternalRecord)
    (artifact,) = record.artifacts
    assert (artifact.kind, artifact.path, artifact.bytes) == ("py-spy svg", "a.svg", 6)
    assert len(artifact.digest) == 32
    assert record.command == ("py-spy", "--token", "(hidden)")
    assert (record.tool_version, record.host) == ("0.4.0", socket.gethostname())
    assert record.problems == ("it coughed",)
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    (external,) = open_run(run_path).external
    assert external.files == (home / "a.svg",)
    text = CliRunner().invoke(_info(), [str(run_path)]).output
    assert "py-spy" in text
    assert "a.svg" in text


def _info():
    from stepscope.commands.info import command

    return command


def test_a_manifest_of_a_stranger_leads_nowhere_else(tmp_path):
    run_path = tmp_path / "job"
    run_path.mkdir()
    write_record(RunLayout(run_path).run_file, JobRecord("job", 1))
    home = keep(*recording_in(tmp_path, a_svg="x"), run_path)
    manifest = home / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"a.svg"', '"../../run.json"'))
    (external,) = open_run(run_path).external
    assert external.files == ()
    manifest.write_text("{")
    broken = open_run(run_path)
    assert broken.external == ()
    assert "not valid JSON" in broken.problems[0]


def test_without_a_run_files_stay_and_nothing_stays_of_nothing(tmp_path):
    folder, record = recording_in(tmp_path, a_svg="x")
    assert keep(folder, record, None) == folder
    empty, record = recording_in(tmp_path)
    assert empty != folder
    assert keep(empty, record, None) is None
    assert not empty.exists()


# -- attaching to a run ---------------------------------------------------------------------------


def make_run(root, **manifest):
    from stepscope.run.manifest import RankManifest

    root.mkdir()
    write_record(RunLayout(root).run_file, JobRecord(root.name, 1))
    rank = RunLayout(root).rank(0)
    rank.root.mkdir()
    write_record(rank.manifest, RankManifest(0, host=socket.gethostname(), **manifest))
    return root


@pytest.mark.parametrize(
    ("manifest", "options", "said"),
    [
        ({"state": "finished"}, [], "the run has ended"),
        ({"state": "finished"}, ["--rank", "0"], "rank 0 is no longer running"),
        ({}, ["--rank", "4"], "has no rank 4"),
    ],
)
def test_a_run_that_has_ended_cannot_be_attached_to(tmp_path, manifest, options, said):
    root = make_run(tmp_path / "job", **manifest)
    done = CliRunner().invoke(attach, [str(root), *options])
    assert done.exit_code == 2
    assert said in done.output


def test_a_rank_on_another_machine_or_dead_is_told(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    root = make_run(tmp_path / "job", process_id=gone.pid)
    done = CliRunner().invoke(attach, [str(root), "--rank", "0"])
    assert "no longer running" in done.output
    manifest = RunLayout(root).rank(0).manifest
    manifest.write_text(manifest.read_text().replace(socket.gethostname(), "elsewhere"))
    done = CliRunner().invoke(attach, [str(root), "--rank", "0"])
    assert "runs on elsewhere: attach to it there" in done.output


@pytest.mark.parametrize("option", ["--seconds", "--duration", "-d"])
def test_how_long_to_sample_has_the_name_that_py_spy_gives_it_too(monkeypatch, option):
    asked = []
    monkeypatch.setattr(py_spy, "attach", lambda *given: asked.append(given[2]) or "spy.json")
    done = CliRunner().invoke(attach, ["12", option, "7"])
    assert (done.exit_code, asked) == (0, [7.0]), done.output


def test_a_process_has_no_ranks():
    done = CliRunner().invoke(attach, ["12", "--rank", "0"])
    assert "--rank needs a run directory" in done.output


def test_options_of_memray_are_read():
    from stepscope.adapters.external.options import take_tool

    values = {
        "py_spy": False, "py_spy_format": None, "py_spy_rate": None, "py_spy_arguments": None,
        "nsys": False, "nsys_trace": None, "nsys_gpu_metrics": None, "nsys_memory": None,
        "nsys_range": None, "nsys_run_as": None, "nsys_arguments": None,
        "memray": True, "memray_native": True, "memray_follow_fork": None, "active": "3",
    }  # fmt: skip
    assert take_tool(values) == MemrayOptions(native=True, follow_fork=False)
    assert values == {"active": "3"}


def test_the_help_of_run_tells_defaults():
    text = " ".join(CliRunner().invoke(run, ["--help"]).output.split())
    assert "--wait INT Steps at the start of each cycle that are not recorded. [default: 5]" in text
    assert (
        "--trace-format json.gz|json Format of the trace: json.gz or json. "
        "[default: json.gz]" in text
    )
