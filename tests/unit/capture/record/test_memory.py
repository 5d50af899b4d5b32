"""Memory history, snapshots and the memory log, against an allocator that the test plays."""

from __future__ import annotations

import logging
import pickle
import re
import sys
from unittest import mock

import psutil
import pytest
from tests.support.fake_cuda import GIB, FakeCuda

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.record.memory import MemoryWatch
from stepscope.run.layout import RankLayout


def make(tmp_path, cuda, **options):
    noted = []
    with mock.patch.dict(sys.modules, torch=cuda.torch):
        watch = MemoryWatch(CaptureConfig(**options), RankLayout(tmp_path), 3, noted.append)
    watch.start()
    return watch, noted


def test_without_cuda_one_line_says_what_is_left_out(tmp_path, caplog):
    options = {"memory_history": True, "memory_snapshot_at_end": True}
    with caplog.at_level(logging.WARNING, "stepscope"):
        watch, noted = make(tmp_path, FakeCuda(available=False), **options)
        for step in range(30):
            watch.step_ended(step)
        watch.close()
    assert len(caplog.records) == 1
    for name in options:
        assert name in caplog.text
    assert noted == []
    assert list(tmp_path.iterdir()) == []


def test_without_cuda_the_log_has_the_memory_of_the_host(tmp_path, capsys):
    watch, _ = make(tmp_path, FakeCuda(available=False), memory_log=True, memory_log_steps=4)
    for step in range(10):
        watch.step_ended(step)
    watch.close()
    lines = (tmp_path / "memory.log").read_text().splitlines()
    assert lines == capsys.readouterr().out.splitlines()
    found = [
        re.fullmatch(r"\[Step (\d)\] Host: Resident: (\d+\.\d\d)GB, Peak: (\d+\.\d\d)GB", line)
        for line in lines
    ]
    assert [match[1] for match in found] == ["4", "8"]
    resident = psutil.Process().memory_info().rss / 1024**3
    for match in found:
        assert float(match[2]) == pytest.approx(resident, rel=0.2, abs=0.02)
        assert float(match[3]) >= float(match[2])


def test_on_the_host_of_a_job_each_line_names_its_rank(tmp_path, capsys):
    """All ranks print to one terminal, and no GPU's number tells them apart."""
    config = CaptureConfig(memory_log=True, memory_log_steps=1)
    cuda = FakeCuda(available=False)
    with mock.patch.dict(sys.modules, torch=cuda.torch):
        watch = MemoryWatch(config, RankLayout(tmp_path), 3, lambda _: None, world_size=4)
    watch.step_ended(0)
    watch.close()
    assert capsys.readouterr().out.startswith("[Step 1] Host, rank 3: Resident: ")


def test_the_history_is_capped_and_covers_the_run(tmp_path):
    cuda = FakeCuda()
    watch, _ = make(tmp_path, cuda, memory_history=True, memory_max_entries=77)
    watch.step_ended(0)
    watch.close()
    assert cuda.calls == [
        ("history", {"max_entries": 77, "stacks": "python"}),
        ("snapshot", {}),
        ("history", {"enabled": None}),
    ]


def test_a_history_that_was_shown_needs_no_snapshot_at_the_end(tmp_path):
    cuda = FakeCuda()
    watch, noted = make(tmp_path, cuda, memory_history=True)
    watch.snapshot("code")
    watch.close()
    assert [record.cause for record in noted] == ["code"]


def test_a_snapshot_is_named_after_host_time_and_rank_in_a_readable_protocol(tmp_path):
    watch, noted = make(tmp_path, FakeCuda())
    path = watch.snapshot("code")
    assert re.fullmatch(r".+_\d{8}T\d{12}Z_rank3\.pickle", path.name)
    data = path.read_bytes()
    assert data[:2] == b"\x80\x04"
    assert pickle.loads(data)["segments"] == []
    assert noted[0].path == f"snapshots/{path.name}"
    assert noted[0].bytes == len(data)


def test_a_snapshot_that_fails_is_told(tmp_path):
    cuda = FakeCuda()
    cuda.fails = True
    watch, noted = make(tmp_path, cuda)
    assert watch.snapshot("code") is None
    assert "allocator is confused" in noted[0].problem
    assert not list(tmp_path.rglob("*.pickle"))


def test_running_out_of_memory_takes_one_snapshot(tmp_path):
    cuda = FakeCuda()
    watch, noted = make(tmp_path, cuda, memory_snapshot_at_end=True)
    watch.step_ended(0)
    watch.step_ended(1)
    (observer,) = cuda.observers
    observer(1, 5 * GIB, 0, 42)
    observer(1, 5 * GIB, 0, 42)
    assert [record.cause for record in noted] == [
        f"out of memory on GPU 1: {5 * GIB} bytes wanted, 42 free"
    ]
    watch.close()
    observer(1, 1, 0, 0)
    assert len(noted) == 1


def test_running_out_of_memory_in_the_first_step_is_seen(tmp_path):
    cuda = FakeCuda()
    _, noted = make(tmp_path, cuda)
    cuda.observers[0](0, GIB, 0, 42)
    assert len(noted) == 1


def test_a_process_that_has_not_brought_cuda_up_is_observed_from_then_on(tmp_path):
    cuda = FakeCuda()
    cuda.is_up = False
    _, noted = make(tmp_path, cuda)
    assert cuda.observers == []
    cuda.bring_up()
    cuda.observers[0](0, GIB, 0, 42)
    assert len(noted) == 1


def test_a_fork_neither_observes_nor_writes_for_its_parent(tmp_path):
    cuda, later = FakeCuda(), FakeCuda()
    later.is_up = False
    (tmp_path / "now").mkdir()
    watch, noted = make(tmp_path / "now", cuda)
    watch.forget()
    make(tmp_path / "later", later)[0].forget()
    cuda.observers[0](0, GIB, 0, 42)
    later.bring_up()
    assert noted == []
    assert later.observers == []


def test_an_observer_that_torch_refuses_does_not_keep_cuda_from_coming_up(tmp_path, caplog):
    cuda = FakeCuda()
    cuda.is_up = False
    cuda.refuses_observers = True
    make(tmp_path, cuda)
    cuda.bring_up()
    assert "no snapshot will be taken" in caplog.text


def test_an_observer_that_fails_does_not_change_the_error(tmp_path, caplog):
    cuda = FakeCuda()
    watch, noted = make(tmp_path / "file" / "under", cuda)
    (tmp_path / "file").write_text("")
    watch.step_ended(0)
    cuda.observers[0](0, 1, 0, 0)
    assert "no memory snapshot" in caplog.text
    assert noted[0].problem


def test_no_observer_where_it_is_not_wanted(tmp_path):
    cuda = FakeCuda()
    watch, _ = make(tmp_path, cuda, oom_snapshot=False)
    watch.step_ended(0)
    assert cuda.observers == []


def test_the_memory_log_has_a_line_every_n_steps_with_a_peak_of_its_own(tmp_path):
    cuda = FakeCuda()
    watch, _ = make(tmp_path, cuda, memory_log=True, memory_log_steps=4)
    for step in range(9):
        watch.step_ended(step)
    watch.close()
    assert (tmp_path / "memory.log").read_text().splitlines() == [
        f"[Step {step}] GPU 0: Allocated: 1.00GB, Reserved: 3.00GB, Peak: 2.00GB" for step in (4, 8)
    ]
    assert cuda.calls == [("reset", {"device": 0})] * 2


def test_the_memory_log_goes_on_counting_where_a_resumed_training_does(tmp_path):
    config = CaptureConfig(memory_log=True, memory_log_steps=4)
    with mock.patch.dict(sys.modules, torch=FakeCuda().torch):
        watch = MemoryWatch(config, RankLayout(tmp_path), 0, [].append, steps_before=6)
    step, lines = 0, tmp_path / "memory.log"
    while (step := watch.next_due(step)) < 12:
        watch.step_ended(step - 1)  # at the beginning of a step, the one before has ended
        step += 1
    watch.close()
    written = [line.split("]")[0] for line in lines.read_text().splitlines()]
    assert written == ["[Step 8", "[Step 12", "[Step 16"]


@pytest.mark.gpu
def test_a_real_out_of_memory_leaves_a_snapshot_with_history(tmp_path):
    import torch

    import stepscope
    from stepscope import open_run

    options = {"wait": 10**6, "memory_history": True}
    held = torch.zeros(1 << 20, device="cuda")
    with stepscope.Profiler(output_dir=tmp_path, **options) as profiler:
        held.add_(1)
        profiler.step()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        profiler.step()
    (record,) = open_run(tmp_path).ranks[0].manifest.snapshots
    assert "out of memory" in record.cause
    path = open_run(tmp_path).ranks[0].directory / record.path
    content = pickle.loads(path.read_bytes())
    assert content["segments"]
    assert any(entry["action"] == "oom" for trace in content["device_traces"] for entry in trace)


@pytest.mark.gpu
def test_the_memory_log_of_a_real_gpu(tmp_path):
    import torch

    import stepscope
    from stepscope import open_run

    held = torch.zeros(1 << 28, device="cuda")
    with stepscope.Profiler(output_dir=tmp_path, wait=10**6, memory_log=True) as profiler:
        for _ in range(20):
            held.add_(1)
            profiler.step()
    lines = (open_run(tmp_path).ranks[0].directory / "memory.log").read_text().splitlines()
    assert [line.split("]")[0] for line in lines] == ["[Step 10", "[Step 20"]
