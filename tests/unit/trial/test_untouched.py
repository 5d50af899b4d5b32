"""Which of the user's files a script wrote."""

from __future__ import annotations

from stepscope.trial.untouched import FolderWatch


def test_files_that_are_written_are_named(tmp_path, monkeypatch):
    home, outside = tmp_path / "home", tmp_path / "out"
    for folder in (home, outside, home / "scratch"):
        folder.mkdir()
    (home / "train.py").write_text("pass")
    (outside / "last.pt").write_text("old")
    monkeypatch.chdir(home)
    command = ("python", "train.py", f"--output={outside}")
    watch = FolderWatch(command, home / "scratch")
    assert watch.warnings() == ()
    (home / "scratch" / "log").write_text("ours")
    assert watch.warnings() == ()
    (outside / "last.pt").write_text("new one")
    (home / "runs").mkdir()
    (home / "runs" / "events").write_text("events")
    first, second = watch.warnings()
    assert "overwrote" in first
    assert "last.pt" in first
    assert "train.py" not in first
    assert "runs/events" in second
    assert "{scratch}" in second
