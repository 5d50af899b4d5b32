"""Findings about memory: planted in a snapshot, found with their line, and not found without."""

from __future__ import annotations

import json
import pickle

import pytest
from tests.support.allocator import MIB, Allocator, OutOfMemory, Settings
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import Frames, plain_training, train

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.finding import Severity
from stepscope.advice.rules import (
    RULES,
    activations_dominate,
    memory_fragmented,
    memory_leak,
    one_tensor_dominates,
    optimizer_state_dominates,
    out_of_memory,
)
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.memory.opening import memory_of_rank
from stepscope.errors import UnreadableInputError
from stepscope.memory.view import MemoryView
from stepscope.run.layout import RunLayout
from stepscope.run.reader import open_run

OF_MEMORY = (
    memory_leak,
    out_of_memory,
    memory_fragmented,
    optimizer_state_dominates,
    activations_dominate,
    one_tensor_dominates,
)


def subject(snapshot, **limits):
    view = MemoryView(loaded(pickle.dumps(snapshot)))
    return Subject(0, memory=view, thresholds=Thresholds().changed(limits))


def evidence(finding):
    return {one.label: one.value for one in finding.evidence}


def test_without_a_snapshot_nothing_is_said():
    for rule in OF_MEMORY:
        assert rule.find(Subject(0)) == []
        assert RULES[rule.ID] is rule.find


@pytest.mark.parametrize("rule", OF_MEMORY, ids=lambda rule: rule.ID)
def test_nothing_is_found_in_an_empty_snapshot(rule):
    assert rule.find(subject({"segments": [], "device_traces": [[]]})) == []


def test_a_leak_is_found_with_its_line_and_how_long_it_takes():
    allocator, stack = Allocator(total=400 * MIB), Frames()

    def step(number):
        allocator.range(f"ProfilerStep#{number}", True)
        allocator.free(allocator.malloc(50 * MIB, frames=stack("model.py:4:forward")))
        allocator.malloc(4 * MIB, frames=stack("train.py:9:log"))
        allocator.range(f"ProfilerStep#{number}", False)

    for number in range(8):
        step(number)
    (found,) = memory_leak.find(subject(allocator.snapshot()))
    assert found.severity is Severity.HIGH
    assert "train.py:9 log" in found.title
    assert evidence(found) == {
        "left behind by each step": 4 * MIB,
        "of it at train.py:9 log": 4 * MIB,
        "held from earlier steps at the end": 7 * 4 * MIB,
    }
    assert memory_leak.find(subject(allocator.snapshot(), memory_leak=0.5)) == []
    number = 8
    with pytest.raises(OutOfMemory):
        while True:
            step(number)
            number += 1
    (found,) = memory_leak.find(subject(allocator.snapshot()))
    assert evidence(found)["steps until memory is full"] <= 10


def test_a_steady_training_has_no_leak():
    assert memory_leak.find(subject(train(Allocator(), steps=6).snapshot())) == []


def test_running_out_is_found_with_what_would_have_helped():
    allocator, stack = Allocator(total=200 * MIB), Frames()
    with pytest.raises(OutOfMemory):
        for _ in range(12):
            frames = stack("model.py:4:forward", "torch/nn/modules/module.py:1:_call_impl")
            allocator.malloc(20 * MIB, frames=frames)
    (found,) = out_of_memory.find(subject(allocator.snapshot()))
    assert "model.py:4 forward" in found.title
    assert evidence(found)["asked for"] == 20 * MIB
    assert evidence(found)["held: activation"] == 200 * MIB
    assert found.advice.startswith("Would have sufficed, by simulation, the cheapest first: ")
    assert "MiB less" in found.advice
    assert out_of_memory.find(subject(plain_training())) == []


def pinned(settings=None):
    """Segments that grow with every input, each pinned by what is kept of it."""
    allocator, stack = Allocator(settings=settings), Frames()
    for number in range(8):
        large = allocator.malloc((20 + 4 * number) * MIB, frames=stack("model.py:4:forward"))
        allocator.malloc(2 * MIB, frames=stack("cache.py:2:keep"))
        allocator.free(large)
        allocator.malloc(3 * MIB, frames=stack("cache.py:7:store"))
    return allocator


def test_fragmentation_is_found_with_the_setting_that_helps():
    allocator = pinned()
    (found,) = memory_fragmented.find(subject(allocator.snapshot()))
    told = evidence(found)
    assert told["reserved at its peak"] == max(row[3] for row in allocator.curve)
    assert "expandable_segments:True" in found.advice
    other = pinned(Settings(expandable=True))
    saved = told["saved by expandable_segments:True"]
    assert saved == told["reserved at its peak"] - max(row[3] for row in other.curve)
    assert memory_fragmented.find(subject(allocator.snapshot(), memory_unused=0.99)) == []


def annotated(**parts):
    """A snapshot in which each category holds so many MiB, each in blocks of 2 MiB."""
    allocator, stack = Allocator(), Frames()
    for category, size in parts.items():
        for _ in range(size // 2):
            block = allocator.malloc(2 * MIB, frames=stack("model.py:4:forward"))
            allocator.annotate(block, f"stepscope:{category}:layers.0")
    return allocator.snapshot()


def test_optimizer_state_that_dominates_is_found():
    (found,) = optimizer_state_dominates.find(
        subject(annotated(parameter=20, optimizer_state=40, activation=20))
    )
    assert found.title == "50% of the peak memory is optimizer state"
    assert evidence(found)["freed by 8-bit states"] == 30 * MIB
    few = subject(annotated(parameter=40, optimizer_state=20))
    assert optimizer_state_dominates.find(few) == []


def test_activations_that_dominate_are_found_with_their_modules():
    (found,) = activations_dominate.find(subject(annotated(parameter=10, activation=30)))
    assert found.title == "75% of the peak memory is activations"
    assert evidence(found)["of them in layers.0"] == 30 * MIB
    assert activations_dominate.find(subject(annotated(parameter=30, activation=30))) == []


def test_a_tensor_that_dominates_is_found_with_its_line():
    allocator, stack = Allocator(), Frames()
    for _ in range(6):
        allocator.malloc(10 * MIB, frames=stack("model.py:4:forward"))
    allocator.malloc(40 * MIB, frames=stack("loss.py:8:logits"))
    (found,) = one_tensor_dominates.find(subject(allocator.snapshot()))
    assert found.title == "one tensor is 40% of the peak memory"
    assert evidence(found)["made at"] == "loss.py:8 logits"
    assert one_tensor_dominates.find(subject(annotated(parameter=60, activation=20))) == []


def test_a_weight_is_no_tensor_to_be_split():
    allocator = Allocator()
    block = allocator.malloc(60 * MIB)
    allocator.annotate(block, "stepscope:parameter:embedding.weight")
    allocator.malloc(10 * MIB)
    assert one_tensor_dominates.find(subject(allocator.snapshot())) == []


def test_a_rank_is_judged_by_its_newest_snapshot(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(0)
    layout.snapshots.mkdir(parents=True)
    layout.manifest.write_text(json.dumps({"rank": 0}))
    (tmp_path / "run" / "run.json").write_text("{}")
    (rank,) = open_run(tmp_path / "run").ranks
    assert memory_of_rank(rank, None) is None
    (layout.snapshots / "a").write_bytes(pickle.dumps(plain_training()))
    view = memory_of_rank(rank, None)
    assert view is not None
    assert view.peak_bytes(0) == 53868544


def test_a_run_that_ended_in_its_first_step_says_why(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(0)
    layout.snapshots.mkdir(parents=True)
    layout.manifest.write_text(json.dumps({"rank": 0}))
    (tmp_path / "run" / "run.json").write_text("{}")
    allocator, stack = Allocator(total=200 * MIB), Frames()
    with pytest.raises(OutOfMemory):
        for _ in range(12):
            allocator.malloc(20 * MIB, frames=stack("model.py:4:forward"))
    (layout.snapshots / "a").write_bytes(pickle.dumps(allocator.snapshot()))
    with pytest.raises(UnreadableInputError, match="out-of-memory: .*model.py:4 forward"):
        diagnose(open_run(tmp_path / "run"))
