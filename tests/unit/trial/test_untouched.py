"""Which of the user's files changed while a script was tried."""

from __future__ import annotations

from stepscope.trial.workspace import FolderWatch


def test_what_this_process_prints_into_is_not_theirs(tmp_path, monkeypatch):
    log = tmp_path / "trials.log"
    log.write_text("")
    watched = log.stat()
    monkeypatch.setattr("os.fstat", lambda number: watched)
    watch = FolderWatch((tmp_path,), tmp_path / "scratch")
    log.write_text("round 1")
    assert watch.warnings() == ()
    (tmp_path / "other.log").write_text("theirs")
    (warning,) = watch.warnings()
    assert "other.log" in warning
    assert "trials.log" not in warning


def test_files_that_change_are_named_and_our_own_are_not(tmp_path):
    home, outside = tmp_path / "home", tmp_path / "out"
    for folder in (home, outside, home / "scratch"):
        folder.mkdir()
    (home / "train.py").write_text("pass")
    (outside / "last.pt").write_text("old")
    watch = FolderWatch((home, outside), home / "scratch")
    assert watch.warnings() == ()
    (home / "scratch" / "log").write_text("ours")
    assert watch.warnings() == ()
    (outside / "last.pt").write_text("new one")
    (home / "runs").mkdir()
    (home / "runs" / "events").write_text("events")
    (warning,) = watch.warnings()
    assert "last.pt" in warning
    assert "runs/events" in warning
    assert "train.py" not in warning
