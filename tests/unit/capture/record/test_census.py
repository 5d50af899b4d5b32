"""The census as it is written is the census as it is read, and its file does not grow for ever."""

from __future__ import annotations

import json

import pytest
import torch

import stepscope
from stepscope.capture.record.census import KIND, MemoryCensus
from stepscope.memory.categories.census import read_census
from stepscope.memory.opening import census_beside, read_censuses
from stepscope.run.layout import RankLayout


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    """The watch leaves modules alone once anything is compiled, as by a test before this one."""
    monkeypatch.setattr("stepscope.capture.record.census._has_compiled", lambda: False)


@pytest.fixture
def layout(tmp_path):
    return RankLayout(tmp_path / "rank00000")


def test_what_is_written_is_what_is_read(layout):
    notes = []
    census = MemoryCensus(layout, notes.append, lambda: True)
    census.step_begins(3)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    census.close()
    found = read_census(layout.census)
    assert found.skipped_lines == 0
    rows = found.sightings.filter(found.sightings["kind"] == "gradient")
    assert rows.select("device", "step", "name").rows() == [(-1, 3, "weight"), (-1, 3, "bias")]
    assert rows["address"].to_list() == [p.grad.data_ptr() for p in net.parameters()]
    assert rows["bytes"].to_list() == [p.grad.nbytes for p in net.parameters()]
    assert [(note.kind, note.path, note.problem) for note in notes] == [
        (KIND, "memory_census.jsonl", "")
    ]
    assert notes[0].bytes == layout.census.stat().st_size


def test_nothing_is_noted_while_nothing_is_recorded(layout):
    on = [False]
    census = MemoryCensus(layout, print, lambda: on[0])
    net = torch.nn.Linear(4, 2)
    census.step_begins(0)
    net(torch.ones(3, 4))
    assert not layout.census.exists()
    on[0] = True
    census.step_begins(1)
    net(torch.ones(3, 4))
    assert layout.census.exists()
    on[0] = False
    census.step_begins(2)
    assert not census.watch.is_listening
    census.close()


def test_what_stays_is_noted_once(layout):
    census = MemoryCensus(layout, lambda _: None, lambda: True)
    net = torch.nn.Linear(4, 2)
    for step in range(5):
        census.step_begins(step)
        net(torch.ones(3, 4))
    census.close()
    kinds = [json.loads(line).get("kind") for line in layout.census.read_text().splitlines()]
    assert kinds.count("parameter") == 1
    assert kinds.count("activation") == kinds.count("input") == 5


def test_a_full_file_is_rotated_and_both_are_read(layout, monkeypatch):
    monkeypatch.setattr("stepscope.capture.record.census.MOST_BYTES", 4_000)
    census = MemoryCensus(layout, lambda _: None, lambda: True)
    net = torch.nn.Linear(4, 2)
    for step in range(40):
        census.step_begins(step)
        net(torch.ones(3, 4))
    census.close()
    assert layout.census.stat().st_size < 5_000
    assert layout.older_census.stat().st_size < 5_000
    snapshot = layout.snapshots / "a.pickle"
    found, remarks = read_censuses(census_beside(snapshot))
    assert remarks == ()
    assert found.skipped_lines == 0
    steps = found.sightings["step"].unique().sort()
    assert steps[-1] == 39
    assert len(steps) > 10
    parameters = found.sightings.filter(found.sightings["kind"] == "parameter")
    assert set(parameters["name"]) == {"weight", "bias"}


def test_a_run_without_the_option_has_no_census(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, skip_first=0, wait=0, warmup=0, active=1) as one:
        torch.nn.Linear(4, 2)(torch.ones(3, 4))
        one.step()
    assert not list(tmp_path.glob("*/rank00000/memory_census*"))


def test_the_option_implies_the_trace_of_memory():
    assert stepscope.CaptureConfig(memory_census=True).profile_memory
    assert not stepscope.CaptureConfig().profile_memory
