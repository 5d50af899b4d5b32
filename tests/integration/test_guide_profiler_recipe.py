"""The recipe for torch.profiler: its code by our import line, its trace, table and schedule."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import socket
import sys
import time
from unittest import mock

import pytest
import torch
from tests.support.fake_cuda import FakeCuda
from tests.support.runs import manifest_of, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run
from stepscope.adapters import torch_profiler
from stepscope.adapters.torch_profiler import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)
from stepscope.capture.record.memory import MemoryWatch
from stepscope.commands.main import main
from stepscope.run.figures import binary_size

# Torch says once that each cycle has its own events, which is what the recipe wants.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")

CPU = ProfilerActivity.CPU


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def steps_of(path):
    events = json.loads(path.read_bytes())["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


@pytest.mark.parametrize("door", ["torch.profiler's", "our own"])
def test_a_profiled_section_without_steps_is_judged_as_a_whole(tmp_path, capsys, door):
    training, (batch,) = SmallTraining(), batches(1)
    own = stepscope.Profiler(wait=0, warmup=0, active=1)
    doors = {"our own": lambda: own, "torch.profiler's": lambda: profile(activities=[CPU])}
    with doors[door](), record_function("everything"):
        training.step(batch)
    said = capsys.readouterr().err
    assert (
        "stepscope: recorded one section without steps, which the report judges as a whole" in said
    )
    assert "no window" not in said
    assert main(["report", "--full", str(tmp_path / "profiles")]) == 0
    printed = capsys.readouterr().out
    assert "Verdict" in printed
    assert "optimizer" in printed


def test_the_recipes_code_works_and_leaves_a_run(tmp_path):
    tables = []

    def trace_handler(p):
        tables.append(p.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))
        p.export_chrome_trace(str(tmp_path / "traces" / "trace.json"))

    training = SmallTraining()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=5),
        on_trace_ready=trace_handler,
    ) as p:
        for batch in batches(14):
            training.step(batch)
            p.step()
    assert training.losses == bare_losses(14)
    assert len(tables) == 2
    assert "aten::mm" in tables[0]
    assert steps_of(tmp_path / "traces" / "trace.json") == [9, 10, 11, 12, 13]
    run = open_run(tmp_path / "profiles")
    (rank,) = run.ranks
    assert [window.record.state for window in rank.windows] == ["complete", "complete"]
    assert [steps_in_trace(window.trace_path) for window in rank.windows] == [
        [2, 3, 4, 5, 6],
        [9, 10, 11, 12, 13],
    ]
    recorded = [None, None, 0, 0, 0, 0, 0, None, None, 1, 1, 1, 1, 1]
    assert [step.window for step in rank.steps] == recorded
    kinds = {artifact.kind for artifact in rank.windows[0].record.artifacts}
    assert {"trace", "key_averages"} <= kinds
    assert rank.manifest.state == "finished"


def test_sections_without_a_schedule_as_the_other_guide_shows_them(tmp_path):
    training = SmallTraining()
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof,
        record_function("forward_pass"),
    ):
        training.step(next(batches(1)))
    table = prof.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=10)
    assert "forward_pass" in table
    prof.export_chrome_trace("trace.json")
    prof.export_chrome_trace("again.json.gz")  # torch itself would refuse a second time
    assert "forward_pass" in (tmp_path / "trace.json").read_text()
    assert steps_in_trace(tmp_path / "again.json.gz") == []
    (window,) = manifest_of(tmp_path / "profiles").windows
    assert window.state == "complete"
    assert "Input Dims" in (tmp_path / "trace.json").read_text()


def test_stacks_and_the_memory_timeline(tmp_path):
    training = SmallTraining()
    training.step(next(batches(1)))  # a stack window over first imports can go wrong in torch
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        training.step(next(batches(1)))
    prof.export_stacks("stacks.txt", "self_cpu_time_total")
    assert (tmp_path / "stacks.txt").read_text().strip()
    with pytest.warns(FutureWarning):
        prof.export_memory_timeline("timeline.json", device="cpu")
    with pytest.warns(FutureWarning):
        prof.export_memory_timeline("timeline.html", device="cpu")
    _, sizes = json.loads((tmp_path / "timeline.json").read_text())
    page = (tmp_path / "timeline.html").read_text()  # without matplotlib and CUDA
    parameters = binary_size(max(row[1] for row in sizes))
    assert f"<title>Parameter: at most {parameters}</title>" in page
    artifacts = manifest_of(tmp_path / "profiles").windows[0].artifacts
    assert "stacks" in {artifact.kind for artifact in artifacts if not artifact.problem}


def test_the_handler_of_tensorboard_and_our_schedule(tmp_path):
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=tensorboard_trace_handler("board", worker_name="one", use_gzip=True),
    ) as prof:
        training = SmallTraining()
        for batch in batches(8):
            training.step(batch)
            prof.step()
    (board,) = (tmp_path / "board").iterdir()
    assert board.name.startswith("one.")
    assert steps_in_trace(board) == [2, 3]


def test_an_error_in_the_loop_and_one_in_the_handler_reach_the_script(tmp_path):
    def broken(p):
        raise RuntimeError("theirs")

    with (
        pytest.raises(ValueError, match="loop"),
        profile(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=3)
        ) as prof,
    ):
        for batch in batches(2):
            SmallTraining().step(batch)
            prof.step()
        raise ValueError("loop")
    manifest = manifest_of(tmp_path / "profiles")
    assert manifest.state == "failed"
    assert manifest.windows[0].state == "partial"
    assert manifest.windows[0].last_step == 1
    with (
        pytest.raises(RuntimeError, match="theirs"),
        profile(activities=[ProfilerActivity.CPU], on_trace_ready=broken),
    ):
        SmallTraining().step(next(batches(1)))
    assert len(list((tmp_path / "profiles").iterdir())) == 2


def test_the_rest_is_torchs_own():
    assert torch_profiler.supported_activities is torch.profiler.supported_activities
    assert torch_profiler.ExecutionTraceObserver is torch.profiler.ExecutionTraceObserver
    with pytest.raises(AttributeError):
        torch_profiler.no_such_name  # noqa: B018


def test_the_folder_is_an_option_and_one_that_cannot_be_written_costs_the_run_only(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    for folder in ("elsewhere", "file/profiles"):
        monkeypatch.setenv("STEPSCOPE_OUTPUT_DIR", folder)
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            SmallTraining().step(next(batches(1)))
        prof.export_chrome_trace(f"{folder[:4]}.json")
        assert "aten::mm" in (tmp_path / f"{folder[:4]}.json").read_text()
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    assert not torch.autograd._profiler_enabled()


@pytest.mark.filterwarnings("ignore:.*CUDA is not available.*:UserWarning")
@pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")
def test_the_guides_own_lines_on_a_machine_without_a_gpu(tmp_path, capsys):
    def trace_handler(p):
        output = p.key_averages().table(sort_by="self_cuda_time_total", row_limit=10)
        print(output)
        p.export_chrome_trace("trace.json")

    training = SmallTraining()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=torch_profiler.schedule(
            wait=1,
            warmup=1,
            active=5,
        ),
        on_trace_ready=trace_handler,
    ) as p:
        for batch in batches(7):
            training.step(batch)
            p.step()
    printed = capsys.readouterr().out
    assert "Self CPU time total" in printed
    assert 0 < printed.count("aten::") <= 10
    assert steps_of(tmp_path / "trace.json") == [2, 3, 4, 5, 6]


# -- the guide's second example: the step waits for its data --------------------------------------


def test_a_slow_loader_is_found(tmp_path, capsys):
    def slow_batches():
        for batch in batches(30):
            time.sleep(0.02)
            yield batch

    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="recipe")
    profiler = stepscope.Profiler.from_args(parser.parse_args(["--profile"]))
    training = SmallTraining()
    with profiler:
        for batch in profiler.watch(slow_batches()):
            training.step(batch)
    assert steps_of(tmp_path / "profiles" / "trace.json") == [23, 24, 25, 26, 27]
    capsys.readouterr()
    assert main(["report", str(tmp_path / "profiles"), "--format", "json"]) == 0
    assert '"input-bound"' in capsys.readouterr().out


# -- the guide's memory history and snapshots -----------------------------------------------------

MEMORY_FLAGS = ["--profile", "--profile-memory-history", "--profile-memory-snapshot-at-end"]


def record(*flags, steps=8):
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="recipe")
    profiler = stepscope.Profiler.from_args(parser.parse_args([*MEMORY_FLAGS, *flags]))
    training = SmallTraining()
    with profiler:
        for number, batch in enumerate(profiler.watch(batches(steps))):
            training.step(batch)
            if number == 3:
                profiler.snapshot("halfway")
    assert training.losses == bare_losses(steps)


def test_without_cuda_the_history_is_left_out_with_a_line(tmp_path, caplog):
    record()
    about = [line for line in caplog.messages if "memory" in line]
    assert len(about) == 2
    assert "memory_history, memory_snapshot_at_end: skipped, since torch finds no CUDA" in about[0]
    assert "no memory snapshot: CUDA is not in use in this process" in about[1]
    assert manifest_of(tmp_path / "profiles").snapshots == ()
    assert list(tmp_path.rglob("*.pickle")) == []


def test_with_an_allocator_the_history_is_capped_and_snapshots_bear_the_guides_names(
    tmp_path, monkeypatch
):
    cuda = FakeCuda()

    def watch(*given, **named):
        with mock.patch.dict(sys.modules, torch=cuda.torch):
            return MemoryWatch(*given, **named)

    monkeypatch.setattr("stepscope.capture.record.memory.MemoryWatch", watch)
    record("--profile-memory-max-entries", "5000")
    began, *_, ended = [options for name, options in cuda.calls if name == "history"]
    assert began == {"max_entries": 5000, "stacks": "python"}
    assert ended == {"enabled": None}
    snapshots = manifest_of(tmp_path / "profiles").snapshots
    assert [record.cause for record in snapshots] == ["halfway", "end"]
    beside = sorted((tmp_path / "profiles").glob("*.pickle"))
    assert len(beside) == 2
    for path in beside:
        assert re.fullmatch(rf"{re.escape(socket.gethostname())}_\d{{8}}T\d+Z\.pickle", path.name)
        assert pickle.loads(path.read_bytes()) == {"segments": [], "device_traces": [[]]}
        assert path.read_bytes()[1] == 4  # the protocol that the public viewer reads
