"""Windows recorded by real torch: which steps, which files, and how each ending is told."""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import stat
import sys
import warnings

import orjson
import pytest
import torch
from tests.support.runs import manifest_of, rank_directory, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run
from stepscope.capture.ranks import NestedProfilerError
from stepscope.errors import UsageError

QUICK = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1, "activities": "cpu"}


def train(output, steps, *, fail_at=None, error=None, **options):
    """Train with a profiler; returns the losses."""
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**QUICK, **options}) as profiler:
        for number, batch in enumerate(batches(steps)):
            if number == fail_at:
                raise error
            training.step(batch)
            profiler.step()
    return training.losses


def only_window(output):
    (window,) = manifest_of(output).windows
    return window


# -- what is recorded -----------------------------------------------------------------------------


def test_a_window_holds_the_steps_of_the_schedule(tmp_path):
    train(tmp_path, 8)
    manifest = manifest_of(tmp_path)
    window = only_window(tmp_path)
    assert manifest.state == "finished"
    assert manifest.steps == 8
    assert (window.state, window.first_step, window.last_step) == ("complete", 2, 3)
    assert window.reason == ""
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [2, 3]


def test_the_guides_two_cycles_after_ten_steps(tmp_path):
    train(tmp_path, 30, wait=5, warmup=1, active=3, repeat=2, skip_first=10)
    found = [steps_in_trace(window.trace_path) for window in open_run(tmp_path).windows]
    assert found == [[16, 17, 18], [25, 26, 27]]


def test_windows_without_end_follow_each_other(tmp_path):
    train(tmp_path, 7, wait=0, warmup=0, active=1, repeat=0)
    *windows, last = open_run(tmp_path).windows
    assert [steps_in_trace(window.trace_path) for window in windows] == [[n] for n in range(7)]
    assert last.record.state == "empty"


def test_files_are_as_the_manifest_lists_them(tmp_path):
    train(tmp_path, 6, with_stack=True, record_shapes=True, profile_memory=True)
    directory = rank_directory(tmp_path)
    window = only_window(tmp_path)
    by_kind = {artifact.kind: artifact for artifact in window.artifacts}
    assert {"trace", "key_averages", "stacks"} <= set(by_kind)
    listed = set()
    for artifact in window.artifacts:
        assert artifact.problem == ""
        path = directory / artifact.path
        assert path.stat().st_size == artifact.bytes > 0
        listed.add(path.name)
    found = {path.name for path in (directory / "window-0000").iterdir()}
    assert found == listed | {"window.json"}
    table = (directory / by_kind["key_averages"].path).read_text()
    assert "aten::mm" in table
    for line in (directory / by_kind["stacks"].path).read_text().splitlines():
        frames, _, weight = line.rpartition(" ")
        assert frames
        assert int(weight) >= 0


def test_phases_and_the_wait_for_data_are_marked_in_the_trace(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for batch in profiler.watch(batches(6)):
            with profiler.phase("everything"):
                training.step(batch)
    from tests.support.runs import trace_document

    events = trace_document(open_run(tmp_path).windows[0].trace_path)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert names.count("everything") == 2
    assert names.count("stepscope.data_wait") == 2


def test_the_training_is_the_same_with_and_without(tmp_path):
    bare = bare_losses(12)
    assert train(tmp_path / "plain", 12) == bare
    assert (
        train(tmp_path / "all", 12, with_stack=True, profile_memory=True, with_flops=True, repeat=0)
        == bare
    )
    assert train(tmp_path / "off", 12, enabled=False) == bare
    assert not (tmp_path / "off").exists()


def test_the_record_of_steps_names_the_window_of_each(tmp_path):
    train(tmp_path, 6)
    steps = open_run(tmp_path).ranks[0].steps
    assert [step.step for step in steps] == list(range(6))
    assert [step.window for step in steps] == [None, None, 0, 0, None, None]
    assert not any(step.is_partial for step in steps)
    for before, after in itertools.pairwise(steps):
        assert before.start_ns + before.dur_ns <= after.start_ns


def test_without_the_step_record_windows_are_still_recorded(tmp_path):
    train(tmp_path, 6, step_record=False)
    assert not (rank_directory(tmp_path) / "steps.jsonl").exists()
    assert only_window(tmp_path).state == "complete"


def test_a_missing_activity_costs_one_line(tmp_path, caplog):
    if torch.cuda.is_available():
        pytest.skip("this machine has what the test expects to be missing")
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(tmp_path, 6, activities=("cpu", "cuda"))
    assert [record.message for record in caplog.records if "'cuda'" in record.message]
    assert len(caplog.records) == 1
    assert only_window(tmp_path).state == "complete"


@pytest.mark.parametrize(
    ("options", "message", "category"),
    [
        ({"with_modules": True}, "with_modules is deprecated and will be removed", FutureWarning),
        ({}, "Warning: Profiler clears events at the end of each cycle.", UserWarning),
    ],
    ids=["torch 2.14", "torch 2.11"],
)
def test_a_window_is_recorded_where_torch_warns_of_it_and_warnings_are_errors(
    tmp_path, monkeypatch, options, message, category
):
    plain = torch.profiler.profile.prepare_trace
    asked = []

    def warning(profiler):
        asked.append(profiler.with_modules)
        warnings.warn(message, category, stacklevel=2)
        plain(profiler)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(tmp_path, 6, **options)
    assert asked == [bool(options)]
    assert only_window(tmp_path).state == "complete"


def test_a_torch_without_module_hierarchies_costs_one_line(tmp_path, monkeypatch, caplog):
    class Later(torch.profiler.profile):
        def __init__(self, *, activities, record_shapes, profile_memory, with_stack, with_flops,
                     experimental_config=None, execution_trace_observer=None):  # fmt: skip
            super().__init__(activities=activities, experimental_config=experimental_config)

    monkeypatch.setattr(torch.profiler, "profile", Later)
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(tmp_path, 6, with_modules=True)
    assert [record.message for record in caplog.records] == [
        "stepscope: this torch cannot record with with_modules"
    ]
    assert only_window(tmp_path).state == "complete"


def test_secrets_on_the_command_line_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--hf_token", "verysecret", "--lr=1"])
    train(tmp_path, 3)
    text = (open_run(tmp_path).path / "run.json").read_text()
    assert "verysecret" not in text
    assert "--lr=1" in text


def test_a_second_run_never_touches_the_first(tmp_path):
    for _ in range(2):
        train(tmp_path, 6, run_name="same")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["same", "same-2"]


# -- endings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "state", "recorded", "sentence"),
    [
        pytest.param(1, None, None, "no window was recorded", id="in wait"),
        pytest.param(3, "partial", [2], "1 of 2 steps early", id="in the middle of active"),
        pytest.param(4, "complete", [2, 3], "", id="right after active"),
    ],
)
def test_where_the_loop_ends(tmp_path, steps, state, recorded, sentence):
    train(tmp_path, steps)
    manifest = manifest_of(tmp_path)
    assert manifest.state == "finished"
    assert f"finished after {steps} step" in manifest.ended
    if state is None:
        assert [window for window in manifest.windows if window.state != "abandoned"] == []
        assert sentence in manifest.ended
        assert "steps 2 to 3" in manifest.ended
        return
    (window,) = manifest.windows
    assert window.state == state
    assert sentence in window.reason
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == recorded


def test_the_loop_ends_in_warmup(tmp_path):
    train(tmp_path, 3, warmup=3)
    window = only_window(tmp_path)
    assert window.state == "abandoned"
    assert "warming up" in window.reason
    assert "no window was recorded" in manifest_of(tmp_path).ended
    assert not torch.autograd._profiler_enabled()


def test_the_loop_ends_between_warmup_and_active(tmp_path):
    train(tmp_path, 2)
    window = only_window(tmp_path)
    assert window.state == "empty"
    assert window.first_step is None
    assert "2 of 2 steps early" in window.reason
    assert window.artifacts == ()
    assert "no window was recorded" in manifest_of(tmp_path).ended
    assert not (rank_directory(tmp_path) / "window-0000").exists()


def test_work_after_the_last_step_is_not_lost(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for batch in batches(2):
            training.step(batch)
            profiler.step()
        training.step(next(batches(1)))
    window = only_window(tmp_path)
    assert window.state == "partial"
    assert (window.first_step, window.last_step) == (2, None)
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [2]


class UnprintableError(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("loss is nan\nmore"),
        UnprintableError("x"),
        KeyboardInterrupt(),
        SystemExit(3),
        torch.OutOfMemoryError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_inside_active_saves_what_was_recorded(tmp_path, error):
    with pytest.raises(type(error)) as caught:
        train(tmp_path, 8, fail_at=3, error=error)
    assert caught.value is error
    manifest = manifest_of(tmp_path)
    assert manifest.state == ("failed" if isinstance(error, Exception) else "stopped")
    assert type(error).__name__ in manifest.ended
    assert "step 3" in manifest.ended
    assert "\n" not in manifest.ended
    window = only_window(tmp_path)
    assert window.state == "partial"
    assert type(error).__name__ in window.reason
    assert window.last_step == 2
    assert 2 in steps_in_trace(open_run(tmp_path).windows[0].trace_path)
    last = open_run(tmp_path).ranks[0].steps[-1]
    assert (last.step, last.is_partial) == (3, True)
    assert not torch.autograd._profiler_enabled()


def test_an_exception_before_any_window_is_told(tmp_path):
    with pytest.raises(ValueError, match="early"):
        train(tmp_path, 8, fail_at=0, error=ValueError("early"))
    manifest = manifest_of(tmp_path)
    assert manifest.state == "failed"
    assert manifest.ended.startswith("ValueError in step 0: early")
    assert manifest.windows == ()


def test_the_command_at_the_end_can_be_copied_though_its_path_has_a_space(tmp_path, capsys):
    folder = tmp_path / "my runs"
    train(folder, 8)
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "next: " in one]
    assert shlex.split(line)[1:] == ["next:", "stepscope", "report", str(open_run(folder).path)]


def test_step_never_called(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK):
        for batch in batches(3):
            SmallTraining().step(batch)
    manifest = manifest_of(tmp_path)
    assert manifest.steps == 0
    assert "step() was never called" in manifest.ended
    (step,) = open_run(tmp_path).ranks[0].steps
    assert step.is_partial


def test_step_never_called_with_everything_active_still_saves_the_trace(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, wait=0, warmup=0, active=1, activities="cpu"):
        SmallTraining().step(next(batches(1)))
    assert only_window(tmp_path).state == "partial"
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [0]


def test_stop_twice_and_steps_after_it_are_harmless(tmp_path):
    profiler = stepscope.Profiler(output_dir=tmp_path, **QUICK)
    profiler.start()
    profiler.step()
    profiler.stop()
    profiler.stop()
    profiler.step()
    with profiler.phase("late"):
        profiler.count(tokens=3)
        profiler.mark("late")
    assert manifest_of(tmp_path).steps == 1


def test_a_profiler_starts_once(tmp_path):
    profiler = stepscope.Profiler(output_dir=tmp_path, **QUICK)
    with profiler:
        pass
    with pytest.raises(UsageError, match="create a new one"):
        profiler.start()


# -- two profilers --------------------------------------------------------------------------------


def test_ours_inside_ours_is_refused_and_the_outer_goes_on(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as outer:
        with (
            pytest.raises(NestedProfilerError, match="stop it first"),
            stepscope.Profiler(output_dir=tmp_path / "inner", **QUICK),
        ):
            raise AssertionError("unreachable")
        for batch in batches(6):
            training.step(batch)
            outer.step()
    assert only_window(tmp_path).state == "complete"
    assert not (tmp_path / "inner").exists()


def test_inside_torchs_steps_and_phases_are_recorded_and_windows_skipped(tmp_path, caplog):
    training = SmallTraining()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs,
        stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler,
    ):
        for batch in batches(6):
            with profiler.phase("all of it"):
                training.step(batch)
            profiler.step()
    assert "another torch profiler is recording" in caplog.text
    assert only_window(tmp_path).state == "skipped"
    (rank,) = stepscope.open_run(tmp_path).ranks
    assert [set(record.phases) for record in rank.steps] == [{"all of it"}] * 6
    assert any(event.name == "aten::mm" for event in theirs.events())
    assert training.losses == bare_losses(6)


@pytest.mark.parametrize("with_stack", [True, False])
def test_a_tool_that_torch_switches_off_is_named(tmp_path, caplog, with_stack):
    def follow(*_):
        pass

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        with stepscope.Profiler(
            output_dir=tmp_path, **{**QUICK, "with_stack": with_stack}
        ) as profiler:
            for batch in batches(4):
                SmallTraining().step(batch)
                profiler.step()
    finally:
        sys.setprofile(before)
    assert (follow.__qualname__ in caplog.text) is with_stack


def test_torchs_running_when_a_window_should_open_skips_the_window(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **{**QUICK, "repeat": 2}) as profiler:
        theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        theirs.start()
        for number, batch in enumerate(batches(10)):
            training.step(batch)
            profiler.step()
            if number == 3:
                theirs.stop()
    first, second = manifest_of(tmp_path).windows
    assert first.state == "skipped"
    assert "another torch profiler" in first.reason
    assert second.state == "complete"
    assert any(event.name == "aten::mm" for event in theirs.events())
    assert training.losses == bare_losses(10)


def test_torchs_started_inside_our_window_is_told(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **{**QUICK, "active": 3}) as profiler:
        for number, batch in enumerate(batches(8)):
            if number == 3:
                theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                theirs.start()
                training.step(batch)
                theirs.stop()
            else:
                training.step(batch)
            profiler.step()
    window = only_window(tmp_path)
    assert window.state in {"failed", "partial"}
    assert "another" in window.reason
    assert training.losses == bare_losses(8)
    assert manifest_of(tmp_path).state == "finished"


# -- handlers -------------------------------------------------------------------------------------


def test_a_handler_of_torch_works_unchanged(tmp_path):
    seen = []

    def handler(profiler):
        seen.append((profiler.step_num, len(profiler.key_averages())))
        profiler.export_chrome_trace(str(tmp_path / "own.json"))
        profiler.export_chrome_trace(str(tmp_path / "again.json.gz"))

    train(tmp_path / "runs", 8, on_trace_ready=handler)
    assert seen[0][0] == 4
    assert seen[0][1] > 0
    assert "aten::mm" in (tmp_path / "own.json").read_text()
    assert steps_in_trace(tmp_path / "again.json.gz") == [2, 3]


def test_the_handler_of_tensorboard_works_unchanged(tmp_path):
    board = tmp_path / "board"
    handlers = [
        torch.profiler.tensorboard_trace_handler(str(board), worker_name="one"),
        torch.profiler.tensorboard_trace_handler(str(board), worker_name="two", use_gzip=True),
    ]
    train(tmp_path / "runs", 8, on_trace_ready=handlers)
    names = sorted(path.name.split(".")[0] for path in board.iterdir())
    assert names == ["one", "two"]
    assert {artifact.problem for artifact in only_window(tmp_path / "runs").artifacts} == {""}


def test_an_error_of_a_handler_is_noted_and_the_others_still_run(tmp_path):
    seen = []

    def broken(profiler):
        raise RuntimeError("disk on fire")

    losses = train(tmp_path, 8, on_trace_ready=[broken, lambda profiler: seen.append(1)])
    assert seen == [1]
    assert losses == bare_losses(8)
    window = only_window(tmp_path)
    assert window.state == "complete"
    problems = [artifact.problem for artifact in window.artifacts if artifact.problem]
    assert len(problems) == 1
    assert "broken" in problems[0]
    assert "disk on fire" in problems[0]


def test_a_keyboard_interrupt_in_a_handler_passes_and_the_window_is_kept(tmp_path):
    def interrupted(profiler):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 8, on_trace_ready=interrupted)
    manifest = manifest_of(tmp_path)
    assert manifest.state == "stopped"
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [2, 3]


# -- places that cannot be written ----------------------------------------------------------------


@pytest.fixture
def unwritable(tmp_path):
    """A path that not even root can make a directory at."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "profiles"


def test_an_unwritable_place_costs_the_profile_and_nothing_else(unwritable, caplog):
    with caplog.at_level(logging.WARNING, "stepscope"):
        assert train(unwritable, 8) == bare_losses(8)
    assert any("Not a directory" in record.message for record in caplog.records)


def test_max_steps_holds_where_nothing_can_be_recorded(unwritable):
    for options in ({"output_dir": unwritable}, {"enabled": False}):
        training = SmallTraining()
        with stepscope.Profiler(**{**QUICK, **options}, max_steps=5) as profiler:
            for batch in profiler.watch(batches(9)):
                training.step(batch)
        assert len(training.losses) == 5
        assert profiler.should_stop


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_files_of_a_run_may_be_read_by_others(tmp_path):
    before = os.umask(0o022)
    try:
        train(tmp_path, 6)
    finally:
        os.umask(before)
    files = [path for path in rank_directory(tmp_path).rglob("*") if path.is_file()]
    assert {"manifest.json", "steps.jsonl", "trace.json.gz"} <= {path.name for path in files}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, path


def test_run_json_describes_the_job(tmp_path):
    train(tmp_path, 3, run_name="named")
    job = open_run(tmp_path).job
    assert job.name == "named"
    assert job.versions["torch"] == torch.__version__
    assert job.options["active"] == 2
    assert orjson.loads((open_run(tmp_path).path / "run.json").read_bytes())["format"]


def test_a_run_ends_with_a_verdict_from_its_steps(tmp_path, capfd):
    train(tmp_path, 40, wait=10**6)
    assert manifest_of(tmp_path).verdict.startswith("median step ")
    assert "median step" in capfd.readouterr().err
