"""The monitor on a real GPU: what it says against torch and nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
import torch
from tests.support.nvml import stepscope

from stepscope import Profiler, open_run
from stepscope.analysis.record.metrics import summarise_metrics
from stepscope.monitor.columns import COLUMNS, same_uuid
from stepscope.monitor.notes import Notes
from stepscope.monitor.nvidia import NvidiaSource

pytestmark = pytest.mark.gpu

STABLE = "name,uuid,memory.total,enforced.power.limit,driver_version,clocks.max.sm,pci.bus_id"


@pytest.fixture
def nvidia():
    if torch.version.cuda is None:
        pytest.skip("torch is not built for NVIDIA GPUs")
    return torch.cuda


def test_what_does_not_change_is_what_nvidia_smi_says():
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi")
    asked = [f"--query-gpu={STABLE}", "--format=csv", "--id=0"]
    theirs = subprocess.run(["nvidia-smi", *asked], check=True, capture_output=True, text=True)
    assert stepscope("monitor", *asked).stdout == theirs.stdout


def test_torchs_uuid_names_the_same_gpu(nvidia):
    source = NvidiaSource.open(Notes(), os.environ)
    assert source is not None
    uuid = str(nvidia.get_device_properties(0).uuid)
    assert same_uuid(source.gpus[0].uuid, uuid)
    assert source.use(uuid)
    assert len(source.gpus) == 1
    source.close()


def test_memory_that_torch_takes_is_seen(nvidia):
    source = NvidiaSource.open(Notes(), os.environ)
    nvidia.synchronize()
    torch.zeros(1, device="cuda")
    before = source.read(["memory.used"], [])[0]["memory.used"]
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    after = source.read(["memory.used"], [])[0]["memory.used"]
    assert after - before == pytest.approx(held.numel() / (1 << 20), abs=64)
    source.close()


def test_a_busy_gpu_is_seen_busy(nvidia, tmp_path):
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    with Profiler(
        output_dir=tmp_path, wait=10**6, monitor=True, monitor_interval_s=0.25
    ) as profiler:
        begun = time.monotonic()
        while time.monotonic() - begun < 6:
            for _ in range(20):
                left @ left
            nvidia.synchronize()
            profiler.step()
    (rank,) = open_run(tmp_path).ranks
    assert rank.manifest.problems == ()
    summary = summarise_metrics(rank.metrics_path)
    row = summary.gpus.to_dicts()[0]
    assert row["utilization_percent"] > 50
    assert row["memory_peak_bytes"] > left.numel() * 2
    assert row["memory_total_bytes"] >= nvidia.get_device_properties(0).total_memory * 0.95
    assert row["power_watts"] > 0
    assert row["energy_joules"] == pytest.approx(row["power_watts"] * 6, rel=0.5)
    if row["tensor_percent"] is not None:  # not every driver lets a process read it
        assert row["tensor_percent"] > 10
    # The sampler itself takes next to nothing, also with a driver to ask.
    assert summary.record.cpu_s < 3


def test_every_column_is_read_or_noted():
    notes = Notes()
    source = NvidiaSource.open(notes, os.environ)
    if source is None:
        pytest.skip("no NVIDIA GPU")
    source.read(list(COLUMNS), [os.getpid()])
    values = source.read(list(COLUMNS), [os.getpid()])[0]
    assert values["utilization.gpu"] is not None or source.gpus[0].uuid.startswith("MIG-")
    noted = {note.what for note in notes.entries}
    index = source.gpus[0].index
    for name in ("power.draw", "temperature.gpu", "clocks.current.sm", "memory.used"):
        assert values.get(name) is not None or f"{name} of GPU {index}" in noted
    source.close()
