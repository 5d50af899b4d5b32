"""Windows that torch's profiler does not record: tracemalloc's, those marked for nsys, and none."""

from __future__ import annotations

import logging
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from click.testing import CliRunner
from tests.support.runs import manifest_of, rank_directory, steps_in_trace
from tests.support.training import SmallTraining, batches

import stepscope
from stepscope.advice.diagnosis import diagnose
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.windows import python_memory
from stepscope.capture.windows.cuda_range import CudaRangeWindow, is_leader
from stepscope.capture.windows.planner import WindowPlan
from stepscope.capture.windows.python_memory import PYTHON_MEMORY_FILE, changes_between
from stepscope.capture.windows.recorder import WindowTools
from stepscope.commands.info import command as info
from stepscope.opening.reader import open_run
from stepscope.run.manifest import WindowRecord

QUICK = {"wait": 1, "warmup": 1, "active": 3, "repeat": 1, "activities": "cpu"}
MEGABYTE = 1_000_000
HERE = Path(__file__).name


def train(output, steps=8, work=None, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**QUICK, **options}) as profiler:
        for number, batch in enumerate(batches(steps)):
            training.step(batch)
            if work is not None:
                work(number)
            profiler.step()
    return training.losses


def leaker():
    """A step that keeps one megabyte, and lets go of ten within itself."""
    kept = []

    def work(_):
        kept.append(bytearray(MEGABYTE))  # the leak
        del bytearray(10 * MEGABYTE)[:]

    return work


def table_of(output, window=0):
    path = rank_directory(output) / f"window-{window:04d}" / PYTHON_MEMORY_FILE
    return path.read_text(encoding="utf-8")


def rows_of(table):
    """(change, each step, blocks, held, place) of the table of places."""
    _, _, body = table.partition("  location\n")
    found = []
    for line in body.splitlines():
        if "called from" not in line:
            change, each, blocks, held, place = line.split(None, 4)
            numbers = [int(word.replace(",", "")) for word in (change, each, blocks, held)]
            found.append((*numbers, place))
    return found


def number_after(words, table):
    return int(re.search(re.escape(words) + r" ([-+]?[\d,]+)", table).group(1).replace(",", ""))


# -- tracemalloc ----------------------------------------------------------------------------------


def test_tracemalloc_finds_the_line_that_keeps_memory(tmp_path):
    train(tmp_path, work=leaker(), window_recorder="tracemalloc")
    assert not tracemalloc.is_tracing()
    (window,) = manifest_of(tmp_path).windows
    assert (window.state, window.first_step, window.last_step) == ("complete", 2, 4)
    (artifact,) = window.artifacts
    assert (artifact.kind, artifact.path) == ("python_memory", f"window-0000/{PYTHON_MEMORY_FILE}")
    assert window.pause_ns > 0
    table = table_of(tmp_path)
    assert artifact.bytes == len(table.encode())
    change, each, blocks, held, place = rows_of(table)[0]
    assert 3 * MEGABYTE <= change < 3 * MEGABYTE + 1000
    assert each == pytest.approx(change / 3, abs=1)
    assert blocks >= 6  # a bytearray is an object and its content; the list may grow
    assert held >= change
    assert HERE in place
    assert "# the leak" in place
    # Steps 2 to 4: each peak has what was let go again, and each end is a megabyte higher.
    steps = re.findall(r"^ +(\d+) +([\d,]+) +([\d,]+)$", table, re.MULTILINE)
    assert [int(step) for step, _, _ in steps] == [2, 3, 4]
    ends = [int(end.replace(",", "")) for _, end, _ in steps]
    peaks = [int(peak.replace(",", "")) for _, _, peak in steps]
    assert all(peak >= end + 9 * MEGABYTE for end, peak in zip(ends, peaks, strict=True))
    assert ends[2] - ends[0] == pytest.approx(2 * MEGABYTE, abs=100_000)
    assert number_after("Current memory:", table) == ends[-1]
    assert number_after("Peak memory:", table) == max(peaks)


def test_tracemallocs_places_add_up(tmp_path):
    train(tmp_path, work=leaker(), window_recorder="tracemalloc", tracemalloc_rows=1)
    table = table_of(tmp_path)
    rows = rows_of(table)
    assert len(rows) == 2
    assert rows[1][4].endswith("other locations")
    assert sum(row[0] for row in rows) == number_after("Change over the window:", table)


def test_changes_agree_with_what_tracemalloc_counts_itself():
    tracemalloc.start()
    try:
        first = tracemalloc.take_snapshot()
        before = tracemalloc.get_traced_memory()[0]
        kept = [bytes(1000) for _ in range(50)]
        after = tracemalloc.get_traced_memory()[0]
        last = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    changes = changes_between(first, last, by_stack=False)
    assert sum(change.size_diff for change in changes) == pytest.approx(after - before, abs=2000)
    assert sum(change.size_diff for change in changes) >= sum(map(len, kept))


@pytest.mark.parametrize(("by_stack", "group"), [(False, "lineno"), (True, "traceback")])
def test_changes_are_those_of_snapshots_without_the_recorders_own(by_stack, group, monkeypatch):
    """Filtering snapshots is what tracemalloc offers for it, at seconds per million blocks."""
    package = Path(tracemalloc.__file__).parent / "made_up"
    monkeypatch.setattr(python_memory, "PACKAGE", package)
    own = compile("kept.append(bytes(9999)); theirs()", f"{package}/capture/core.py", "exec")
    kept = []
    tracemalloc.start(4)
    try:
        first = tracemalloc.take_snapshot()
        for _ in range(20):
            exec(own, {"kept": kept, "theirs": lambda: kept.append(bytes(1000))})
        last = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    patterns = (f"{package}/capture/*", tracemalloc.__file__)
    filters = [tracemalloc.Filter(inclusive=False, filename_pattern=one) for one in patterns]
    expected = last.filter_traces(filters).compare_to(first.filter_traces(filters), group)
    found = changes_between(first, last, by_stack=by_stack)
    assert found == [one for one in expected if one.size_diff or one.count_diff]
    assert 20_000 <= sum(one.size_diff for one in found) < 9999 * 20


def test_whole_stacks_are_shown_if_asked_for(tmp_path):
    train(tmp_path, work=leaker(), window_recorder="tracemalloc", tracemalloc_frames=4)
    table = table_of(tmp_path)
    place = table.partition("# the leak")[2].splitlines()[1]
    assert "called from" in place
    assert HERE in place


def test_tracemalloc_ends_where_its_own_memory_grows_too_large(tmp_path):
    kept = []

    def work(number):
        kept.append([object() for _ in range(2000)])

    train(tmp_path, work=work, window_recorder="tracemalloc", tracemalloc_max_bytes=20_000)
    assert not tracemalloc.is_tracing()
    (window,) = manifest_of(tmp_path).windows
    assert (window.state, window.last_step) == ("complete", 2)
    assert "Tracing ended here: tracemalloc's own memory passed 20,000" in table_of(tmp_path)


def test_a_script_that_traces_itself_goes_on_tracing(tmp_path):
    tracemalloc.start()
    try:
        train(tmp_path, window_recorder="tracemalloc")
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert "Peak memory:" in table_of(tmp_path)


def test_a_script_that_stops_the_tracing_loses_the_window_and_nothing_else(tmp_path):
    losses = train(
        tmp_path,
        work=lambda step: tracemalloc.stop() if step == 3 else None,
        window_recorder="tracemalloc",
    )
    assert len(losses) == 8
    (window,) = manifest_of(tmp_path).windows
    assert window.state == "failed"
    assert "stopped by the script" in window.reason


@pytest.mark.parametrize("steps", [1, 2])
def test_a_training_that_ends_too_early_leaves_no_tracing_behind(tmp_path, steps):
    train(tmp_path, steps, window_recorder="tracemalloc")
    assert not tracemalloc.is_tracing()
    (window,) = manifest_of(tmp_path).windows
    assert window.state == {1: "abandoned", 2: "empty"}[steps]


def test_a_window_cut_short_is_partial(tmp_path):
    train(tmp_path, 4, window_recorder="tracemalloc")
    (window,) = manifest_of(tmp_path).windows
    assert (window.state, window.last_step) == ("partial", 3)
    assert "Peak memory:" in table_of(tmp_path)


def test_old_windows_are_removed_here_too(tmp_path):
    train(tmp_path, 12, window_recorder="tracemalloc", repeat=2, keep_windows=1)
    first, second = manifest_of(tmp_path).windows
    assert (first.state, second.state) == ("removed", "complete")
    assert not (rank_directory(tmp_path) / "window-0000").exists()


def test_the_report_stands_on_the_step_record(tmp_path):
    train(tmp_path, 20, window_recorder="tracemalloc")
    diagnosis = diagnose(open_run(tmp_path))
    (rank,) = diagnosis.ranks
    assert rank.window is None
    assert rank.steps is not None
    assert diagnosis.verdict


def test_info_names_the_table(tmp_path):
    train(tmp_path, 8, window_recorder="tracemalloc")
    done = CliRunner().invoke(info, [str(tmp_path)])
    assert f"window-0000/{PYTHON_MEMORY_FILE}" in done.output
    assert "(missing)" not in done.output


def test_steps_that_tracing_makes_longer_are_told_apart(tmp_path):
    train(tmp_path, 8, window_recorder="tracemalloc", warmup=2)
    (rank,) = open_run(tmp_path).ranks
    # Steps 1 and 2 are the warm-up, in which allocations are traced already.
    assert [step.step for step in rank.steps if step.window == 0] == [1, 2, 3, 4, 5]
    assert (rank.windows[0].record.first_step, rank.windows[0].record.last_step) == (3, 5)


# -- none -----------------------------------------------------------------------------------------


def test_no_windows_at_all(tmp_path):
    train(tmp_path, window_recorder="none")
    manifest = manifest_of(tmp_path)
    assert manifest.windows == ()
    assert manifest.steps == 8
    assert manifest.ended == "finished after 8 steps"


def test_a_window_asked_for_is_refused_with_the_reason(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "stepscope")
    training = SmallTraining()
    options = {**QUICK, "window_recorder": "none"}
    with stepscope.Profiler(output_dir=tmp_path, **options) as profiler:
        for batch in batches(6):
            training.step(batch)
            if profiler.session.steps.number == 1:
                profiler.trigger()
            profiler.step()
    assert manifest_of(tmp_path).windows == ()
    assert "a requested window is skipped: window_recorder=none" in caplog.text


def test_torch_is_the_default(tmp_path):
    train(tmp_path)
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [2, 3, 4]


def test_an_unknown_recorder_is_refused():
    with pytest.raises(ConfigError, match="window_recorder='nsys' is unknown"):
        CaptureConfig(window_recorder="nsys")


# -- marked for nsys ------------------------------------------------------------------------------


class FakeTorch:
    """What torch says and is told about CUDA, in order."""

    def __init__(self, initialised=True, result=0):
        self.calls = []
        self.result = result
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: initialised,
            synchronize=lambda: self.calls.append("synchronize"),
            cudart=lambda: SimpleNamespace(
                cudaProfilerStart=lambda: self._call("start"),
                cudaProfilerStop=lambda: self._call("stop"),
            ),
            check_error=self._check,
        )
        self.autograd = SimpleNamespace(profiler=SimpleNamespace(emit_nvtx=self._nvtx))

    def _call(self, word):
        self.calls.append(word)
        return self.result

    def _check(self, result):
        if result:
            raise RuntimeError(f"CUDA error {result}")

    def _nvtx(self, record_shapes):
        fake = self

        class Ranges:
            def __enter__(self):
                fake.calls.append(f"nvtx on, shapes {record_shapes}")

            def __exit__(self, *_):
                fake.calls.append("nvtx off")

        return Ranges()


def marked(fake, *, is_leader=True, **options):
    plan = WindowPlan(0, 5, 2, Path("window-0000"))
    rank = 0 if is_leader else 1
    tools = WindowTools(CaptureConfig(**options), RankIdentity(rank, rank, 2), None, bool)
    with mock.patch.dict(sys.modules, torch=fake):
        return CudaRangeWindow(tools, plan)


def test_the_range_is_opened_and_closed_at_the_windows_borders():
    fake = FakeTorch()
    window = marked(fake, record_shapes=True)
    window.prepare()
    assert fake.calls == []
    window.start()
    assert window.is_recording
    for step in (5, 6):
        window.ranges.open(step)
        window.ranges.close(is_whole=True)
    assert window.stop() > 0
    assert fake.calls == ["nvtx on, shapes True", "start", "synchronize", "stop", "nvtx off"]
    assert window.ranges.whole_steps == (5, 6)
    record = WindowRecord(0, "saving", first_step=5, last_step=6)
    assert window.save(record, 7) == replace(record, state="complete")


def test_other_ranks_of_the_machine_only_name_their_steps():
    fake = FakeTorch()
    window = marked(fake, is_leader=False)
    window.start()
    window.stop()
    assert fake.calls == ["nvtx on, shapes False", "synchronize", "nvtx off"]


def test_a_runtime_that_refuses_leaves_nothing_open():
    fake = FakeTorch(result=999)
    with pytest.raises(RuntimeError, match="CUDA error 999"):
        marked(fake).start()
    assert fake.calls == ["nvtx on, shapes False", "start", "nvtx off"]


def test_a_process_without_cuda_in_use_is_told_so():
    fake = FakeTorch(initialised=False)
    with pytest.raises(RuntimeError, match="does not use CUDA"):
        marked(fake).start()
    assert fake.calls == []


@pytest.mark.parametrize(
    ("ranks", "local_rank", "leads"),
    [("all", 0, True), ("all", 3, False), ((5, 6), 1, True), ((5, 6), 2, False)],
)
def test_the_first_rank_of_a_machine_that_records_leads(ranks, local_rank, leads):
    config = CaptureConfig(window_recorder="cuda-range", ranks=ranks)
    identity = RankIdentity(4 + local_rank, local_rank, 8, 1)
    assert is_leader(config, identity) is leads


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_it_does_nothing_and_says_so_once(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "stepscope")
    train(tmp_path, 30, window_recorder="cuda-range", repeat=0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert (
        "window_recorder=cuda-range: no windows are recorded: torch finds no CUDA device here"
        in line
    )
    assert manifest_of(tmp_path).windows == ()


@pytest.mark.gpu
def test_with_cuda_the_calls_are_made(tmp_path, monkeypatch):
    calls = []
    runtime = torch.cuda.cudart()
    monkeypatch.setattr(
        torch.cuda,
        "cudart",
        lambda: SimpleNamespace(
            cudaProfilerStart=lambda: (calls.append("start"), runtime.cudaProfilerStart())[1],
            cudaProfilerStop=lambda: (calls.append("stop"), runtime.cudaProfilerStop())[1],
        ),
    )
    ones = torch.ones(1000, device="cuda")
    train(tmp_path, work=lambda _: ones.sum(), window_recorder="cuda-range")
    (window,) = manifest_of(tmp_path).windows
    assert (window.state, window.first_step, window.last_step) == ("complete", 2, 4)
    assert calls == ["start", "stop"]
