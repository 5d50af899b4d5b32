"""Copies of a script's folders: complete, apart from the user's, and where the script looks."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from tests.support.launching import paths_of_this_process
from tests.support.warm_python import VARIABLES, warm_python

from stepscope.trial import workspace as module
from stepscope.trial.workspace import Workspace, folders_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX links")


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "home" / "project"
    (root / "ckpt").mkdir(parents=True)
    (root / "ckpt" / "last.pt").write_text("old")
    (root / "train.py").write_text("pass")
    (root / "latest").symlink_to("ckpt/last.pt")
    (root / "__pycache__").mkdir()
    (root / ".git").mkdir()
    (tmp_path / "home" / "data").mkdir()
    (tmp_path / "home" / "data" / "set").write_text("data")
    return root


def place_of(project, *command, scratch=None):
    scratch = scratch or project / "scratch"
    scratch.mkdir(exist_ok=True)
    workspace = Workspace(("python", *command), project, (scratch,))
    return workspace.create(scratch / "1" / "work" / "a")


def test_what_is_written_in_a_copy_changes_nothing_and_the_next_copy_is_as_the_first(project):
    for name in ("a", "b"):
        workspace = Workspace(("python", "train.py"), project, (project / "scratch",))
        here = workspace.create(project / "scratch" / name).directory
        assert (here / "ckpt" / "last.pt").read_text() == "old"
        (here / "latest").write_text("new")
        assert (here / "ckpt" / "last.pt").read_text() == "new"
        (here / "out").mkdir()
        assert not (here / "scratch").exists()
        assert not (here / "__pycache__").exists()
        assert (here / ".git").is_symlink()
    assert (project / "ckpt" / "last.pt").read_text() == "old"
    assert not (project / "out").exists()


def test_a_folder_of_copies_within_the_project_is_not_copied_into_itself(project):
    mirror = project / "trials" / "the-copy"
    Workspace(("python", "train.py"), project, ()).create(mirror)
    assert not list(mirror.rglob("the-copy"))


def test_what_lies_beside_the_folders_is_found_by_its_relative_path(project):
    place = place_of(project, "train.py")
    assert (place.directory / ".." / "data" / "set").read_text() == "data"
    assert place.command == ("python", "train.py")


def test_paths_in_the_command_lead_into_the_copies(project, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    script = project / "train.py"
    place = place_of(project, str(script), f"--out={out}", "--data", "/dev/null", f"--new={out}/x")
    _, copied, option, _, data, new = place.command
    assert copied == str(place.directory / "train.py")
    assert option == f"--out={place.guarded['mirror'][0]}{out}"
    assert new == f"{option.replace('--out', '--new')}/x"
    assert data == "/dev/null"


def test_large_files_and_vast_folders_are_linked(project, monkeypatch):
    monkeypatch.setattr(module, "LARGE_BYTES", 100)
    monkeypatch.setattr(module, "MOST_FILES", 10)
    (project / "large").write_bytes(b"x" * 101)
    vast = project / "sets" / "images"
    vast.mkdir(parents=True)
    for number in range(11):
        (vast / str(number)).touch()
    here = place_of(project, "train.py").directory
    assert (here / "large").is_symlink()
    assert (here / "sets" / "images").is_symlink()
    assert not (here / "sets").is_symlink()
    assert not (here / "train.py").is_symlink()


def test_folders_are_named_once_and_never_above_the_working_directory(project, tmp_path):
    command = ("python", "train.py", str(tmp_path), "ckpt", "--x=../data", "")
    assert set(folders_of(command, project)) == {
        project.resolve(),
        (project.parent / "data").resolve(),
    }


def test_a_home_directory_is_linked_and_a_script_elsewhere_still_copied(
    project, tmp_path, monkeypatch
):
    home = project.parent
    monkeypatch.setenv("HOME", str(home))
    (home / "notes.txt").write_text("mine")
    scratch = home / "scratch"
    scratch.mkdir()
    place = Workspace(("python", "project/train.py"), home, (scratch,)).create(scratch / "a")
    here = place.directory
    assert (here / "notes.txt").is_symlink()
    assert (here / "data").is_symlink()
    assert not (here / "project").is_symlink()
    assert (here / "project" / "ckpt" / "last.pt").read_text() == "old"
    assert not (here / "scratch").exists()


ALLOWED = """
open("new", "w").write("x")
open("large", "a").write("x"); assert os.stat("large").st_size == 102
open("large", "r+").write("y"); assert os.stat("large").st_size == 101
torch.save([1], "large"); assert torch.load("large") == [1]
os.truncate("large", 1); assert os.stat("large").st_size == 1
os.remove("large")
os.rename("new", "large")
assert open("large").read() == "x" * 101
os.makedirs(home, exist_ok=True)
open(os.devnull, "w").write("x")
""".strip().splitlines()
REFUSED = """
open(home / "ckpt" / "last.pt", "w")
open("../data/set", "a")
os.open("../data/set", os.O_RDWR)
torch.save([1], home / "ckpt" / "last.pt")
torch.save([1], "../data/set")
os.remove(home / "train.py")
os.rename("train.py", home / "train.py")
os.mkdir(home / "new")
shutil.rmtree(home / "ckpt")
os.symlink("x", home / "new")
""".strip().splitlines()
SCRIPT = """
import json, os, shutil, sys
from pathlib import Path
import torch
from stepscope.trial.inside.guard import WriteGuard
from stepscope.trial.patches import Patches
guard = WriteGuard(json.loads(sys.argv[1]), Path(sys.argv[2]))
guard.watch()
guard.watch_savers(Patches())
home, original = Path(sys.argv[3]), os.readlink("large")
outcomes = []
for line in json.loads(sys.argv[4]):
    Path("large").unlink(missing_ok=True)
    Path("large").symlink_to(original)
    try:
        exec(line)
    except Exception as error:
        outcomes.append(type(error).__name__)
    else:
        outcomes.append("done")
print(json.dumps(outcomes))
"""


def test_the_guard_lets_a_trial_write_to_its_own_files_only(project, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGE_BYTES", 100)
    for name, value in {**VARIABLES, "PYTHONPATH": paths_of_this_process()}.items():
        monkeypatch.setenv(name, value)
    (project / "large").write_bytes(b"x" * 101)
    before = {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()}
    place, notes = place_of(project, "train.py"), tmp_path / "notes"
    notes.mkdir()
    # The project lies in a temporary folder, where trials may write; the rule of what is around it
    # is stricter.
    guarded = json.dumps({**place.guarded, "refused": [str(project.parent.resolve())]})
    lines = json.dumps([*ALLOWED, *REFUSED])
    ended = subprocess.run(
        [warm_python(), "-c", SCRIPT, guarded, str(notes), str(project), lines],
        cwd=place.directory,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    outcomes = dict(zip([*ALLOWED, *REFUSED], json.loads(ended.stdout), strict=True))
    expected = {**dict.fromkeys(ALLOWED, "done"), **dict.fromkeys(REFUSED, "PermissionError")}
    assert outcomes == expected
    (noted,) = notes.glob("*.refused")
    assert len(noted.read_text().splitlines()) == len(REFUSED)
    for path, content in before.items():
        assert path.read_bytes() == content
    assert not (project / "new").exists()
