"""The peak at another sharding degree, against a program of that degree on the plain allocator."""

from __future__ import annotations

import pickle

import pytest
from tests.support.allocator import MIB, Allocator, OutOfMemory
from tests.support.snapshot_tables import loaded

from stepscope.errors import UsageError
from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.shard import shard
from stepscope.memory.view import MemoryView

PARAMETERS = {
    "embedding.weight": 20 * MIB,
    "layers.0.linear.weight": 11 * MIB + 333,
    "layers.0.linear.bias": 4000,
    "layers.1.linear.weight": 11 * MIB + 333,
    "layers.1.linear.bias": 4000,
    "head.weight": 5 * MIB,
}
UNIT = 20 * MIB  # the embedding; a layer is smaller
STAGES = ("optimizer state (ZeRO 1)", "and gradients (ZeRO 2)", "and parameters (ZeRO 3, FSDP)")


def program(ranks=1, stage=0, has_buffers=True, **more):
    """A training whose state is divided as the stage says, and its recording."""
    allocator = Allocator(**more)

    def make(size, kind, name):
        divided = {"optimizer_state": 1, "gradient": 2, "parameter": 3}.get(kind, 9) <= stage
        block = allocator.malloc(-(-size // ranks) if divided else size)
        allocator.annotate(block, f"stepscope:{kind}:{name}")
        return block

    units = (0, 0, 1, 3)[stage]
    if units and has_buffers:
        allocator.malloc(units * UNIT)
    for name, size in PARAMETERS.items():
        make(size, "parameter", name)
    for step in range(3):
        kept = [make(7 * MIB, "activation", f"layers.{k}") for k in range(5)]
        gradients = []
        for block, (name, size) in zip(kept, list(PARAMETERS.items())[::-1], strict=False):
            gradients.append(make(size, "gradient", name))
            allocator.free(block)
        gradients.append(make(PARAMETERS["embedding.weight"], "gradient", "embedding.weight"))
        if not step:
            for name, size in PARAMETERS.items():
                make(2 * size, "optimizer_state", name)
        for block in gradients:
            allocator.free(block)
    return allocator


def run(ranks=1, stage=0, **more):
    allocator = program(ranks, stage, **more)
    return Run(ranks, MemoryView(loaded(pickle.dumps(allocator.snapshot()))))


def peaks(allocator):
    return tuple(max(row[place] for row in allocator.curve) for place in (0, 1, 3))


NAMES = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


def test_the_peaks_are_those_of_a_program_that_is_sharded_so():
    found = shard(run(), [2, 8])
    assert found.unit_bytes == UNIT
    # In blocks: the allocator keeps up to 1 MiB with a large block.
    assert sum(PARAMETERS.values()) <= found.parameter_bytes < sum(PARAMETERS.values()) + 6 * MIB
    rows = {(r["ranks"], r["divided"]): r for r in found.targets.iter_rows(named=True)}
    recorded = rows[1, "as recorded"]
    assert recorded["is_observed"]
    # What a block that is gone kept beyond its request is not in the recording.
    assert (recorded[NAMES[0]], recorded[NAMES[2]]) == peaks(program())[::2]
    for ranks in (2, 8):
        for number, stage in enumerate(STAGES, start=1):
            row = rows[ranks, stage]
            assert tuple(row[name] for name in NAMES) == peaks(program(ranks, number)), row
            assert row["buffer_bytes"] == (0, UNIT, 3 * UNIT)[number - 1]
            assert row["saved_bytes"] == peaks(program())[2] - row["peak_reserved_bytes"]
    assert len(rows) == 8


def test_from_a_sharded_run_no_buffers_are_added():
    found = shard(run(2, 3), [4])
    row = found.targets.row(-1, named=True)
    assert row["buffer_bytes"] == 0
    assert any("sharded already" in note for note in found.notes)
    truth = peaks(program(4, 3))
    assert row["peak_requested_bytes"] == pytest.approx(truth[0], rel=0.001)


def test_whether_it_fits_is_what_the_allocator_finds():
    needed = min(peaks(program(4, stage))[2] for stage in (1, 2, 3))
    truth = []
    for stage in (1, 2, 3):
        try:
            program(4, stage, total=needed)
            truth.append(True)
        except OutOfMemory:
            truth.append(False)
    assert set(truth) == {True, False}
    found = shard(run(), [4], capacity_bytes=needed)
    assert found.targets["fits"].to_list()[2:] == truth


def test_without_state_nothing_can_be_divided():
    allocator = Allocator()
    allocator.malloc(MIB)
    with pytest.raises(UsageError, match="record with memory_census=True"):
        shard(Run(1, MemoryView(loaded(pickle.dumps(allocator.snapshot())))))
    for number in (0.5, 2.5):
        with pytest.raises(UsageError, match="no number of ranks"):
            shard(run(), [number])
