"""The manifest while a capture runs: kept short, kept up to date, kept from raising."""

from __future__ import annotations

import logging

import pytest

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record import journal as module
from stepscope.capture.record.journal import Clock, Journal
from stepscope.run.manifest import ArtifactRecord, ClockSample, WindowRecord, read_rank


@pytest.fixture
def journal(tmp_path):
    config = CaptureConfig(output_dir=tmp_path, run_name="run")
    return Journal(config, RankIdentity(), Clock.start())


def manifest(tmp_path):
    return read_rank(tmp_path / "run" / "rank00000" / "manifest.json")


def test_windows_without_files_are_forgotten_in_the_end(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WINDOWS", 10)
    for index in range(50):
        state = "complete" if index % 10 == 0 else "removed"
        journal.add_window(WindowRecord(index, state))
    journal.close(None, "done")
    found = manifest(tmp_path)
    assert len(found.windows) == 10
    assert found.forgotten_windows == 40
    assert {0, 10, 20, 30, 40, 49} <= {window.index for window in found.windows}


def test_problems_are_capped(journal, tmp_path):
    for number in range(500):
        journal.note("somewhere", f"problem {number}", number)
    journal.close(None, "done")
    assert len(manifest(tmp_path).problems) == 100


def test_what_became_of_a_window_keeps_its_pause(journal, tmp_path):
    journal.add_window(WindowRecord(0, "saving", pause_ns=77))
    journal.update_window(WindowRecord(0, "complete"))
    assert manifest(tmp_path).windows == (WindowRecord(0, "complete", pause_ns=77),)


def test_a_clock_that_is_known_only_after_the_last_step_is_written_all_the_same(journal, tmp_path):
    journal.note_clock(ClockSample(0, 5, 7))
    journal.close(None, "done")
    found = manifest(tmp_path)
    assert (found.clock_offset_ns, found.clock_error_ns) == (5, 7)


def test_a_disk_that_refuses_is_told_once_and_then_written(journal, tmp_path, monkeypatch, caplog):
    def refuse(path, record):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "stepscope"):
        patch.setattr(module, "write_record", refuse)
        for index in range(5):
            journal.add_window(WindowRecord(index, "complete"))
    assert caplog.text.count("manifest cannot be written") == 1
    journal.add_snapshot(ArtifactRecord("snapshot", "snapshots/x.pickle"))
    found = manifest(tmp_path)
    assert len(found.windows) == 5
    assert "No space left" in found.problems[0].message
    assert found.snapshots[0].kind == "snapshot"
