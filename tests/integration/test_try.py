"""`stepscope try` on scripts that know nothing of it: what is applied, fails and remains.

How much a fix brings depends on the machine and on what else runs there: `benchmarks/trials.py`
measures that. These tests ask for what does not, and other programs count as idle in them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from tests.support.launching import TORCHRUN, paths_of_this_process
from tests.support.planted_scripts import FRAMEWORKS, HEAD, HEALTHY, RANKS, SLOW_DATA_SET
from tests.support.warm_python import VARIABLES, warm_python

from stepscope.commands.main import main
from stepscope.opening.reader import open_run
from stepscope.opening.trials import (
    CHANGED,
    CLOSE,
    CRASHED,
    HELPS,
    HUNG,
    NOT_APPLIED,
    OUT_OF_MEMORY,
    SAME,
    TrialsRecord,
)
from stepscope.run.manifest import read_record
from stepscope.trial import experiment, outcome, processes, workspace
from stepscope.trial.processes import MARK, CpuClock

torch = pytest.importorskip("torch")

BRIEF = ("--steps", "16", "--budget", "40m")
"""Short processes, and more time than they take on a busy machine."""


@pytest.fixture
def tried(tmp_path, monkeypatch, capsys):
    """Runs `stepscope try` on a script; the exit code, and the record if there is one.

    Each variant runs in two rounds, other programs are read as idle, and processes are compared
    however much they differ.
    """
    monkeypatch.setattr(experiment, "MOST_ROUNDS", experiment.LEAST_ROUNDS)
    monkeypatch.setattr(outcome, "_ABSURD", float("inf"))
    monkeypatch.setattr(CpuClock, "others_share_until", lambda self, later: 0.0)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    def run(text, *options, python=None, command=("train.py",)):
        (tmp_path / "train.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", paths_of_this_process())
        capsys.readouterr()  # what an earlier try printed
        words = ["try", "--format", "json", *options, "--", python or warm_python(), *command]
        code = main(words)
        out, err = capsys.readouterr()
        assert left_behind(tmp_path) == []
        if not out:
            return code, err
        folder = json.loads(out)["folder"]
        record = read_record(tmp_path / folder / "diagnosis" / "trials.json", TrialsRecord)
        print(err, record.verdict, [(t.name, t.promised_ratio, t.ratio) for t in record.all_trials])
        return code, record

    return run


def left_behind(folder):
    """Processes of trials in a folder that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            is_ours = MARK in variables and str(folder) in variables.get("STEPSCOPE_LAUNCH", "")
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def by_name(record):
    return {trial.name: trial for trial in record.all_trials}


@pytest.mark.slow
def test_a_slow_data_set_from_the_finding_to_the_report(tried, tmp_path, capsys):
    """Whether the fix wins depends on the machine; that everything fits together does not."""
    text = HEAD + SLOW_DATA_SET + '    open("notes.txt", "a").write("a step")\n'
    text += '    open(sys.argv[1] + "/mine", "w").close()\n'
    code, record = tried(
        text,
        *(*BRIEF, "--fix", "loader-workers", "--fail-on", "gain>10%"),
        command=("train.py", "{scratch}"),
    )
    (trial,) = record.trials
    assert (trial.name, trial.findings) == ("loader-workers", ("input-bound",))
    assert 0.2 < trial.promised_ratio < 0.8
    assert trial.losses.verdict == SAME
    assert trial.ratio_low <= trial.ratio <= trial.ratio_high
    assert record.best == ("loader-workers" if trial.verdict == HELPS else "")
    assert code == (1 if record.best and trial.ratio < 0.9 else 0)
    # It wrote into a copy of its folder.
    assert not any("files changed" in warning for warning in record.warnings)
    assert not (tmp_path / "notes.txt").exists()
    folder = tmp_path / record.folder
    for one in (*record.baseline.runs, *trial.runs):
        (rank,) = open_run(folder / one).ranks
        assert len(rank.steps) == 16
        assert (folder / "files" / one / "mine").exists()
        assert (folder / "logs" / f"{one}.log").exists()
    assert main(["report", str(folder / "diagnosis")]) == 0
    shown = capsys.readouterr().out
    assert f"Tried  {record.verdict}" in shown
    assert "loader-workers" in shown.partition("Tried")[2]
    assert main(["compare", *(str(folder / one.runs[0]) for one in (record.baseline, trial))]) == 0


def test_a_script_that_cannot_be_tried_says_why(tried, tmp_path):
    code, err = tried("import os, sys; print('no data in', os.getcwd()); sys.exit(5)")
    assert code == 3
    # The folder is the user's, not the copy of it, which is gone.
    assert f"cannot be measured: exit code 5: no data in {tmp_path} (log:" in err


def test_a_write_outside_the_copies_is_asked_about_before_it_happens(tried, tmp_path):
    text = HEAD + HEALTHY.replace("step(", f"open('{tmp_path}/log', 'w'); step(", 1)
    code, err = tried(text, "--fix", "zero-grad-none")
    assert code == 3
    assert f"it writes to {tmp_path}/log, outside the folders that trials copy" in err
    assert f"--allow-writes {tmp_path}" in err
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    "line",
    [
        "{write}; import torch",
        "import subprocess; subprocess.run([sys.executable, '-c', {write!r}], check=True)",
    ],
)
def test_writes_without_torch_are_asked_about_too(tried, tmp_path, monkeypatch, line):
    monkeypatch.setattr(processes, "is_available", lambda: False)
    text = "import sys\n" + line.format(write=f"open('{tmp_path}/log', 'w')")
    code, err = tried(text, python=sys.executable)
    assert code == 3
    assert f"it writes to {tmp_path}/log, outside the folders that trials copy" in err
    assert not (tmp_path / "log").exists()


@pytest.mark.skipif(not processes.is_available(), reason="Landlock of Linux 6.2 and later")
def test_programs_that_the_script_starts_cannot_write_elsewhere(tried, tmp_path, monkeypatch):
    # The project lies in a temporary folder, where programs may write.
    monkeypatch.setattr(workspace, "_SYSTEM", ("/dev", "/proc"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    text = f"import subprocess\nsubprocess.run(['cp', 'train.py', '{tmp_path}/copy'], check=True)\n"
    code, err = tried(text, python=sys.executable)
    assert code == 3
    assert "it may write only to its copies of your folders: see --allow-writes" in err
    assert not (tmp_path / "copy").exists()
    code, err = tried(text, "--allow-writes", str(tmp_path), python=sys.executable)
    assert "see --allow-writes" not in err
    assert (tmp_path / "copy").exists(), err


RESUMING = (
    HEAD
    + """
path = "ckpt/last.pt"
done = torch.load(path) if os.path.exists(path) else 0
print("resuming at", done, "lr", sys.stdin.readline().strip())
os.makedirs("results")
for batch in DataLoader(Samples(), batch_size=BATCH):
    step(batch, 0.001)
    done += 1
    torch.save(done, path)
"""
)


@pytest.mark.slow
def test_a_script_that_resumes_begins_anew_each_time_and_leaves_its_folder_alone(
    tried, tmp_path, monkeypatch
):
    (tmp_path / "ckpt").mkdir()
    torch.save(7, tmp_path / "ckpt" / "last.pt")
    (tmp_path / "given").write_text("0.1\n")
    (tmp_path / "train.py").write_text(RESUMING)
    before = _files_of(tmp_path)
    with (tmp_path / "given").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        code, record = tried(RESUMING, *BRIEF, "--fix", "zero-grad-none")
    assert code == 0
    logs = [path.read_text() for path in (tmp_path / record.folder / "logs").iterdir()]
    assert len(logs) >= 2
    assert all("resuming at 7 lr 0.1" in log for log in logs)
    # Of the script's own folder every file is byte-equal, and only our record is new.
    after = _files_of(tmp_path)
    assert {name: after[name] for name in before} == before
    ours = (tmp_path / record.folder).relative_to(tmp_path).parts[0]
    assert {Path(name).parts[0] for name in after.keys() - before.keys()} == {ours}


def _files_of(folder):
    """Every file below a folder, and every folder, with what they hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


FAILING = (
    HEAD
    + """
torch.set_num_threads(2)
for batch in DataLoader(Samples(), batch_size=BATCH):
    step(batch, 0.01)
    if torch.get_num_threads() == 1:
        raise RuntimeError("one thread is too few")
    if gc.get_freeze_count():
        time.sleep(1000)
    if optimizer.defaults["fused"]:
        raise torch.OutOfMemoryError("CUDA out of memory")
    if optimizer.defaults["foreach"]:
        os.kill(os.getpid(), 9)
"""
)


@pytest.mark.slow
def test_fixes_with_which_a_script_fails_are_answers(tried):
    names = ("threads", "rare-gc", "fused-optimizer", "foreach-optimizer", "zero-grad-none")
    code, record = tried(FAILING, *BRIEF, *(f"--fix={name}" for name in names))
    assert code == 0
    trials = by_name(record)
    assert trials["threads"].verdict == CRASHED
    assert "one thread is too few" in trials["threads"].reason
    assert trials["rare-gc"].verdict == HUNG
    assert trials["fused-optimizer"].verdict == OUT_OF_MEMORY
    assert trials["foreach-optimizer"].verdict == OUT_OF_MEMORY
    assert trials["zero-grad-none"].verdict == NOT_APPLIED
    assert record.best == ""


@pytest.mark.slow
def test_a_script_that_ignores_its_end_is_ended_and_measured(tried):
    text = HEAD + (
        "while True:\n"
        "    for batch in DataLoader(Samples(), batch_size=BATCH):\n"
        "        try:\n"
        "            step(batch, 0.01)\n"
        "        except:\n"
        "            pass\n"
    )
    code, record = tried(text, *BRIEF, "--fix", "zero-grad-none", python=sys.executable)
    assert code == 0
    assert record.baseline.steps
    assert by_name(record)["zero-grad-none"].verdict == NOT_APPLIED


@pytest.mark.slow
def test_a_script_that_never_steps_is_ended_with_the_budget(tried):
    code, err = tried("import torch, time; time.sleep(1000)", "--budget", "4s")
    assert code == 3
    assert "did not do 40 steps within the budget of 4 s" in err


@pytest.mark.slow
def test_a_fix_that_changes_the_losses_is_marked(tried):
    text = HEAD.replace("index % 7", "torch.rand(1).item()") + SLOW_DATA_SET
    _, record = tried(text, *BRIEF, "--fix", "loader-workers")
    assert by_name(record)["loader-workers"].losses.verdict == CHANGED
    assert record.best == ""


@pytest.mark.slow
def test_two_ranks_of_torchrun(tried):
    _, record = tried(
        HEAD + RANKS,
        *(*BRIEF, "--fix", "ddp-buckets"),
        command=(*TORCHRUN, "train.py"),
    )
    (trial,) = record.trials
    assert trial.ratio is not None
    assert trial.losses.verdict in (SAME, CLOSE)
    assert trial.overrides == ()


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_slow_data_set_in_a_framework(tried, framework):
    pytest.importorskip(framework)
    _, record = tried(FRAMEWORKS[framework], *BRIEF, "--fix", "loader-workers")
    trial = by_name(record)["loader-workers"]
    assert trial.findings == ("input-bound",)
    assert trial.applied
    assert trial.processes == experiment.LEAST_ROUNDS
    assert trial.losses.verdict == SAME
    assert trial.promised_ratio < 0.9
