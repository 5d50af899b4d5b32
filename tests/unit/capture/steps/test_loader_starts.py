"""What is recorded where a DataLoader's iterator begins and ends, and of requested collections."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from stepscope import Profiler
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import read_rank
from stepscope.run.step_record import read_steps

SAMPLER_S, ITEMS, EPOCHS = 0.2, 8, 3


class SlowSampler(Sampler):
    def __iter__(self):
        time.sleep(SAMPLER_S)
        return iter(range(ITEMS))

    def __len__(self):
        return ITEMS


class Items(Dataset):
    def __init__(self, sleep_s=0.0):
        self.sleep_s = sleep_s

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        time.sleep(self.sleep_s)
        return torch.zeros(256)


def recorded(tmp_path, train, **options):
    with Profiler(
        output_dir=tmp_path, window_recorder="none", announce=False, **options
    ) as profiler:
        train(profiler)
        layout = RunLayout(profiler.run_path)
    rank = layout.rank(0)
    return read_rank(rank.manifest), read_steps(rank.steps)[0]


def loop(loader, body=lambda: None):
    def train(profiler):
        for _ in range(EPOCHS):
            for _ in loader:
                body()
                profiler.step()

    return train


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
def test_the_sampler_and_the_start_of_an_epoch_are_told_apart(tmp_path, workers):
    loader = DataLoader(Items(), batch_size=2, sampler=SlowSampler(), **workers)
    _, steps = recorded(tmp_path, loop(loader), auto_phases=True)
    starts = [step for step in steps if step.epoch_start_ns]
    assert len(starts) == EPOCHS
    for step in starts:
        assert SAMPLER_S * 1e9 <= step.sampler_ns <= step.epoch_start_ns <= step.data_wait_ns
        assert step.sampler_ns + step.loader_workers_ns <= step.data_wait_ns
        # Workers that live on start in the first epoch only.
        lives_on = "persistent_workers" in workers and step is not starts[0]
        assert step.loader_workers_ns < SAMPLER_S * 1e9 or not lives_on
    assert all(not step.sampler_ns for step in steps if not step.epoch_start_ns)


def test_watch_sees_the_same_without_looking_into_torch(tmp_path):
    loader = DataLoader(Items(), batch_size=2, sampler=SlowSampler())

    def train(profiler):
        for _ in range(EPOCHS):
            for _ in profiler.watch(loader):
                pass

    _, steps = recorded(tmp_path, train)
    starts = [step for step in steps if step.epoch_start_ns]
    assert len(starts) == EPOCHS
    assert all(step.sampler_ns >= SAMPLER_S * 1e9 for step in starts)


def test_workers_are_measured_however_short_the_epochs(tmp_path):
    loader = DataLoader(Items(0.005), batch_size=2, num_workers=1)
    manifest, _ = recorded(tmp_path, loop(loader), auto_phases=True)
    assert manifest.loader.worker_cpu_share is not None
    assert manifest.loader.worker_cpu_share < 0.5  # they sleep
    assert manifest.loader.batch_bytes == 2 * 256 * 4
    assert manifest.loader.batch_tensors == 1
    assert manifest.loader.starts == EPOCHS


def test_collections_that_code_requests_are_told_apart_with_their_line(tmp_path):
    manifest, steps = recorded(tmp_path, loop(range(5), gc.collect))
    assert all(step.gc_called_ns for step in steps)
    (place,) = manifest.gc_calls
    assert place.startswith(f"{__file__}:")


def test_the_collectors_own_runs_are_not_requested(tmp_path):
    def garbage():
        kept = [[index] for index in range(200_000)]
        del kept

    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # as in a script; a report in this process collects less often
    try:
        manifest, steps = recorded(tmp_path, loop(range(5), garbage))
    finally:
        gc.set_threshold(*before)
    assert any(step.gc_ns for step in steps)
    assert manifest.gc_calls == ()
    assert not any(step.gc_called_ns for step in steps)


def test_phases_that_hold_a_backward_pass_are_noted(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train(profiler):
        for _ in range(4):
            with profiler.phase("rocket"):
                weight.sum().backward()
            with profiler.phase("booster"), profiler.phase("inner"):
                optimizer.step()
            with profiler.phase("logging"):
                pass
            profiler.step()

    manifest, _ = recorded(tmp_path, train, auto_phases=True)
    assert set(manifest.training_phases) == {"rocket", "booster", "booster/inner"}
