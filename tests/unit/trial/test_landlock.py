"""Commands that can write to some paths only, whatever they are written in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.trial import processes
from stepscope.trial.processes import start_confined

needs_landlock = pytest.mark.skipif(
    not processes.is_available(), reason="Landlock of Linux 6.2 and later"
)
REFUSED = (
    "echo new > outside/file",
    "echo new >> outside/kept",
    "echo new > link",
    "truncate -s 0 outside/kept",
    "cp inside/kept outside/kept",
    "mv inside/kept outside/moved",
    "mv outside/kept inside/moved",
    "ln inside/kept outside/linked",
    "ln -s x outside/linked",
    "mkdir outside/folder",
    "rm outside/kept",
    "sh -c 'sh -c \"echo new > outside/file\"'",
    f'{sys.executable} -ISc \'open("outside/file", "w")\'',
)
ALLOWED = (
    "echo new > inside/file",
    "truncate -s 0 inside/kept",
    "mkdir -p inside/a/b && mv inside/kept inside/a/b/moved",
    "ln inside/kept inside/linked",
    "rm inside/kept",
    "cat outside/kept > inside/copy",
    "echo new > one-file",
    "echo new > /dev/null",
)


@pytest.fixture
def folder(tmp_path):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").write_text("old")
    (tmp_path / "one-file").write_text("old")
    (tmp_path / "link").symlink_to("outside/kept")
    return tmp_path


def run(folder, line):
    """The exit code of a line of the shell, and whether it was confined."""
    writable = [*(folder / name for name in ("inside", "one-file", "missing"))]
    process, is_confined = start_confined(
        lambda: subprocess.Popen(["sh", "-c", line], cwd=folder, stderr=subprocess.DEVNULL),
        [*writable, Path("/dev")],
    )
    return process.wait(), is_confined


def files(folder):
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@needs_landlock
@pytest.mark.parametrize("line", REFUSED)
def test_writes_elsewhere_fail_and_change_nothing(folder, line):
    before = files(folder)
    code, is_confined = run(folder, line)
    assert is_confined
    assert code != 0
    assert files(folder) == before
    # This process, and what it starts otherwise, is as free as before.
    (folder / "outside" / "mine").write_text("mine")
    assert subprocess.run(["touch", "outside/other"], cwd=folder, check=False).returncode == 0


@needs_landlock
@pytest.mark.parametrize("line", ALLOWED)
def test_writes_to_the_paths_succeed(folder, line):
    assert run(folder, line) == (0, True)


def test_a_command_that_cannot_be_started_says_so(folder):
    with pytest.raises(FileNotFoundError):
        start_confined(lambda: subprocess.Popen(["no-such-program"]), [folder])


def test_elsewhere_a_command_starts_unconfined(folder, monkeypatch):
    monkeypatch.setattr(processes, "is_available", lambda: False)
    assert run(folder, "echo new > outside/file") == (0, False)
