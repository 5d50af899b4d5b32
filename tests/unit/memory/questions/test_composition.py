"""What is held at a moment, against what the plain allocator's events say."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.allocator import KIB, MIB, Allocator
from tests.support.allocator_programs import PROGRAMS as DRAWN
from tests.support.allocator_programs import SETTINGS, Program
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import PROGRAMS, SCHEMAS, Frames, plain_training

from stepscope.errors import UsageError
from stepscope.memory.questions.composition import NO_NAME, composition, difference, peak
from stepscope.memory.questions.timeline import timeline
from stepscope.memory.questions.totals import totals
from stepscope.memory.view import MemoryView


def viewed(snapshot):
    return MemoryView(loaded(pickle.dumps(snapshot)))


def assert_divided(found):
    tables = (found.categories, found.lines, found.modules, found.sizes, found.allocations)
    for table in tables:
        assert table["allocated_bytes"].sum() == found.allocated_bytes
    for table in tables[:4]:
        assert table["allocations"].sum() == len(found.allocations)
        if found.allocated_bytes:
            assert table["allocated_share"].sum() == pytest.approx(1)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_table_divides_what_is_held(program, schema):
    view = viewed(SCHEMAS[schema](PROGRAMS[program]()))
    numbers = totals(view)
    most = peak(view)
    assert_divided(most)
    assert most.allocated_bytes == numbers.peak_allocated_bytes
    assert numbers.categories.equals(most.categories)
    assert numbers.lines.equals(most.lines)
    end = composition(view, view.end(view.device()))
    assert_divided(end)
    assert (end.allocated_bytes, end.reserved_bytes) == (
        numbers.allocated_bytes,
        numbers.reserved_bytes,
    )


@settings(max_examples=2 * settings.default.max_examples // 5)
@given(DRAWN, SETTINGS, st.integers(1, 50))
def test_what_is_held_is_what_the_events_leave(steps, chosen, buckets):
    allocator = Allocator(total=1000 * MIB, settings=chosen)
    Program(allocator).run(steps)
    view = viewed(allocator.snapshot())
    live = {}
    totals_ = []
    for event in allocator.events:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            del live[event["addr"]]
        totals_.append(sum(live.values()))
    for number in range(-1, len(allocator.events)):
        if number % 9 in (0, 8):
            found = composition(view, view.moment(0, event=number))
            assert found.requested_bytes == (totals_[number] if number >= 0 else 0)
    curve = allocator.curve or [(0, 0, 0, 0)]
    numbers = totals(view)
    assert numbers.peak_allocated_bytes == max(row[1] for row in curve)
    assert numbers.peak_requested_bytes == max(row[0] for row in curve)
    assert numbers.peak_reserved_bytes == max(row[3] for row in curve)
    assert numbers.reserved_bytes == curve[-1][3]
    assert numbers.replay_mismatches == 0
    over_time = timeline(view, buckets=buckets)
    rows = over_time.timeline
    assert len(rows) <= buckets
    assert rows["allocated_bytes"].max() == over_time.peak_allocated_bytes
    assert rows["reserved_bytes"].max() == over_time.peak_reserved_bytes
    of_categories = rows.select(pl.exclude("allocated_bytes", "reserved_bytes", "time_ns"))
    parts = [name for name in of_categories.columns if name.endswith("_bytes")]
    if parts:
        assert of_categories.select(pl.sum_horizontal(parts)).to_series().to_list() == (
            rows["allocated_bytes"].to_list()
        )
    for event, allocated in rows.select("event", "allocated_bytes").iter_rows():
        assert allocated == (curve[event][1] if event >= 0 else 0)


def test_a_fat_tensor_is_named_with_its_line():
    allocator, stack = Allocator(), Frames()
    for k in range(20):
        allocator.malloc(MIB, frames=stack(f"model.py:{k}:forward", "train.py:1:main"))
    fat = stack("loss.py:33:cross_entropy", "train.py:5:main")
    logits = allocator.malloc(400 * MIB, frames=fat)
    allocator.free(logits, frames=fat)
    found = peak(viewed(allocator.snapshot()))
    first = found.lines.row(0, named=True)
    assert first["line"] == "loss.py:33 cross_entropy"
    assert first["largest_bytes"] == 400 * MIB
    assert first["allocated_share"] == pytest.approx(400 / 420)
    assert found.allocations.row(0, named=True)["line"] == "loss.py:33 cross_entropy"


def test_modules_come_from_names():
    allocator = Allocator()
    for text, size in (
        ("parameter:layers.0.attention.weight", 3),
        ("gradient:layers.0.attention.weight", 3),
        ("activation:layers.0", 5),
        ("parameter:scale", 1),
    ):
        block = allocator.malloc(size * MIB)
        allocator.annotate(block, f"stepscope:{text}")
    allocator.malloc(2 * MIB)
    found = peak(viewed(allocator.snapshot()))
    modules = dict(found.modules.select("module", "allocated_bytes").iter_rows())
    assert modules == {
        "layers.0.attention": 6 * MIB, "layers.0": 5 * MIB, NO_NAME: 2 * MIB, "": MIB,
    }  # fmt: skip


def test_a_line_and_a_module_have_the_category_of_most_of_their_bytes():
    allocator, line = Allocator(), Frames()("model.py:3:forward")
    for kind, size in (("temporary", 5), ("activation", 3), ("activation", 4)):
        block = allocator.malloc(size * MIB, frames=line)
        allocator.annotate(block, f"stepscope:{kind}:layers.0")
    found = peak(viewed(allocator.snapshot()))
    assert found.lines["category"].to_list() == ["activation"]
    assert found.modules["category"].to_list() == ["activation"]


def test_sizes_are_in_order():
    allocator = Allocator()
    for size in (500, MIB, MIB + 1, 10 * MIB, 30 * MIB, 2048 * MIB):
        allocator.malloc(size)
    sizes = peak(viewed(allocator.snapshot())).sizes
    assert sizes["allocations"].to_list() == [2, 2, 1, 1]
    assert sizes["size_class"][0].startswith("up to 1 MiB")


def test_a_device_and_a_moment_can_be_chosen():
    view = viewed(PROGRAMS["two devices"]())
    numbers = [totals(view, device) for device in (0, 1)]
    assert [part.device for part in numbers] == [0, 1]
    assert numbers[0].devices.equals(numbers[1].devices)
    assert totals(view).peak_allocated_bytes == max(part.peak_allocated_bytes for part in numbers)
    with pytest.raises(UsageError, match="no device 7; it has 0, 1"):
        totals(view, 7)
    curve = view.curve(1)
    with pytest.raises(UsageError, match="not one of device 1"):
        view.moment(1, event=0)
    event, time = curve["event"][5], curve["time_ns"][5]
    assert view.moment(1, time_ns=time).event == event
    assert view.moment(1).event == curve["event"][-1]
    assert view.moment(1, event=-1).event == -1


def test_a_time_needs_times():
    view = viewed(SCHEMAS["torch 2.1"](plain_training()))
    with pytest.raises(UsageError, match="name an event"):
        view.moment(0, time_ns=5)
    over_time = timeline(view)
    assert over_time.is_by_event
    assert over_time.start_ns is None
    assert over_time.timeline["allocated_bytes"].max() == over_time.peak_allocated_bytes


def test_steps_have_their_own_peaks():
    found = timeline(viewed(plain_training()))
    steps = found.steps
    assert steps["step"].to_list() == [0, 1, 2]
    assert steps["peak_allocated_bytes"].max() == found.peak_allocated_bytes
    assert set(found.timeline["step"].drop_nulls()) == {0, 1, 2}
    assert steps["allocations"].sum() == 43


def test_a_step_has_what_was_held_before_the_first_event():
    allocator = Allocator(max_entries=2)
    held = allocator.malloc(100 * MIB)
    allocator.range("ProfilerStep#0", True)
    allocator.free(held)
    allocator.range("ProfilerStep#0", False)
    found = timeline(viewed(allocator.snapshot()))
    assert found.peak_allocated_bytes == found.steps["peak_allocated_bytes"].item() == 100 * MIB


def test_a_difference_adds_up():
    allocator, stack = Allocator(), Frames()
    one, two = stack("a.py:1:f"), stack("b.py:2:g")
    first = allocator.malloc(100 * KIB, frames=one)
    allocator.malloc(50 * KIB, frames=two)
    before = len(allocator.events) - 1
    allocator.free(first)
    allocator.malloc(5 * MIB, frames=two)
    allocator.malloc(1 * MIB, frames=stack("c.py:3:h"))
    view = viewed(allocator.snapshot())
    found = difference(
        composition(view, view.moment(0, event=before)), composition(view, view.end(0))
    )
    assert found.change_bytes == found.after_bytes - found.before_bytes == 6 * MIB - 100 * KIB
    for table in (found.categories, found.lines, found.modules):
        assert table["change_bytes"].sum() == found.change_bytes
        assert table["before_bytes"].sum() == found.before_bytes
        assert table["after_bytes"].sum() == found.after_bytes
    assert found.lines.select("line", "change_bytes", "after_allocations").rows() == [
        ("b.py:2 g", 5 * MIB, 2),
        ("c.py:3 h", MIB, 1),
        ("a.py:1 f", -100 * KIB, 0),
    ]


def test_nothing_is_an_answer_too():
    view = viewed({"segments": [], "device_traces": [[]]})
    assert totals(view).peak_allocated_bytes == 0
    assert peak(view).lines.is_empty()
    assert len(timeline(view).timeline) == 1
