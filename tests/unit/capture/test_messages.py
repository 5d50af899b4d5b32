"""The lines about windows: which are printed, and what they say."""

from __future__ import annotations

import sys
import types

import pytest

from stepscope.capture.messages import WindowAnnouncer, print_lines, size_text
from stepscope.capture.windows.planner import WindowPlan
from stepscope.run.manifest import ArtifactRecord, WindowRecord


def saved(index=0, **changes):
    files = (
        ArtifactRecord("trace", f"window-{index:04d}/trace.json.gz", 1_500_000),
        ArtifactRecord("key_averages", f"window-{index:04d}/key_averages.txt", 2_000),
        ArtifactRecord("stacks", "", problem="OSError: full"),
    )
    return WindowRecord(
        index, "complete", 7, 9, 3, pause_ns=410_000_000, artifacts=files, **changes
    )


@pytest.fixture
def announcer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return WindowAnnouncer(0, True, tmp_path / "profiles" / "run" / "rank00000")


def test_the_warm_up_names_the_steps(announcer, tmp_path, capsys):
    announcer.warms_up(WindowPlan(0, 7, 3, tmp_path), 5)
    announcer.warms_up(WindowPlan(1, 9, 1, tmp_path, cause="signal"), 9)
    assert capsys.readouterr().err == (
        "stepscope: window 0: warming up to record steps 7 to 9\n"
        "stepscope: window 1: recording step 9 (requested by signal)\n"
    )


def test_steps_are_named_as_in_the_memory_log_too(tmp_path, capsys):
    """That counts the steps that are done, as the Trainer of transformers does."""
    announcer = WindowAnnouncer(0, True, tmp_path, logged_before=400)
    announcer.warms_up(WindowPlan(0, 7, 3, tmp_path), 5)
    announcer.warms_up(WindowPlan(1, 9, 1, tmp_path, cause="signal"), 9)
    assert capsys.readouterr().err == (
        "stepscope: window 0: warming up to record steps 7 to 9, in the memory log [Step 408] to "
        "[Step 410]\n"
        "stepscope: window 1: recording step 9, in the memory log [Step 410] (requested by signal)"
        "\n"
    )


def test_a_saved_window_names_steps_pause_size_and_files(announcer, capsys):
    announcer.saved(saved(), [])
    assert capsys.readouterr().err == (
        "stepscope: window 0: saved steps 7 to 9, 1.5 MB, training paused for 410 ms: "
        "profiles/run/rank00000/window-0000: trace.json.gz, key_averages.txt\n"
    )


def test_a_window_that_the_end_of_the_loop_left_empty_has_a_line_as_well(announcer, capsys):
    ended = "the loop ended in step 4, 3 of 3 steps early"
    announcer.saved(WindowRecord(0, "empty", 3, reason=ended), [])
    assert capsys.readouterr().err == f"stepscope: window 0: no step recorded ({ended})\n"
    # The line at the end of the run says what became of one that was asked for.
    announcer.saved(WindowRecord(0, "empty", 3, cause="signal", reason=ended), [])
    assert capsys.readouterr().err == ""


def test_the_files_that_a_guide_promises_come_with_their_paths(announcer, tmp_path, capsys):
    announcer.saved(saved(reason="the loop ended"), [tmp_path / "out" / "trace.json"])
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("stepscope: window 0: saved steps 7 to 9 (the loop ended), 1.5 MB")
    assert second == "stepscope:   out/trace.json"


def test_a_print_that_also_logs_shows_no_line_twice(monkeypatch, capsys):
    """Ray Train replaces `print` in its workers."""

    def also_logs(*parts, **_):
        sys.stderr.write("logged: " + "".join(parts))

    monkeypatch.setattr("builtins.print", also_logs)
    print_lines("one", "two")
    assert capsys.readouterr().err == "stepscope: one\nstepscope: two\n"


def test_thousands_of_windows_print_a_bounded_number_of_lines(announcer, tmp_path, capsys):
    for index in range(2000):
        announcer.warms_up(WindowPlan(index, 10 * index, 1, tmp_path), 10 * index)
        announcer.saved(saved(index), [])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert "without a message" in lines[-1]


def test_a_rank_that_does_not_speak_prints_nothing(tmp_path, capsys):
    silent = WindowAnnouncer(3, False, tmp_path)
    silent.warms_up(WindowPlan(0, 7, 3, tmp_path), 5)
    silent.saved(saved(), [])
    assert capsys.readouterr().err == ""


def test_another_rank_than_the_first_names_itself(tmp_path, capsys):
    WindowAnnouncer(3, True, tmp_path).warms_up(WindowPlan(0, 7, 1, tmp_path), 5)
    assert capsys.readouterr().err.startswith("stepscope: rank 3: window 0: ")


def test_a_process_without_standard_error_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    print_lines("text")
    assert capsys.readouterr().out == ""


def test_sizes_are_never_exponents():
    assert [size_text(size) for size in (0, 999, 12_345, 2_668_490_000)] == [
        "0 bytes",
        "999 bytes",
        "12.3 kB",
        "2.7 GB",
    ]


def test_a_message_is_one_write(monkeypatch):
    """Where output is unbuffered, as below torchrun, the lines of several ranks would mix."""
    writes = []
    stream = types.SimpleNamespace(write=writes.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", stream)
    print_lines("one", "two")
    assert [text for text in writes if text] == ["stepscope: one\nstepscope: two\n"]
