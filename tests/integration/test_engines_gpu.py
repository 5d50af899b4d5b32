"""What of engines only a GPU can show: backward in other threads, real snapshots."""

from __future__ import annotations

import pickle

import pytest
import torch

from stepscope.adapters.torchtitan import Profiler as TitanProfiler

pytestmark = pytest.mark.gpu
BATCH, INPUTS, OUTPUTS = 8, 16, 32


def train_step(model):
    model(torch.ones(BATCH, INPUTS, device="cuda")).sum().backward()


def test_snapshots_under_torchtitans_names(tmp_path):
    section = {"enable_memory_snapshot": True, "memory_snapshot_freq": 2}
    model = torch.nn.Linear(INPUTS, OUTPUTS, device="cuda")
    with TitanProfiler(section, base_folder=str(tmp_path)) as profiler:
        for _ in range(5):
            train_step(model)
            profiler.step()
    folder = tmp_path / "profiling" / "memory_snapshot"
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.pickle"))
    assert names == [
        "step_000000000002/000000_step_2.pickle",
        "step_000000000004/000000_step_4.pickle",
    ]
    content = pickle.loads((folder / names[0]).read_bytes())
    assert content["segments"]
    assert any(content["device_traces"])
