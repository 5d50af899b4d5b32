"""A replay tells what the plain allocator knew at each event, and contradicts nothing."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.allocator import MIB, Allocator
from tests.support.allocator_programs import PROGRAMS as DRAWN
from tests.support.allocator_programs import SETTINGS, Program
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import PROGRAMS, SCHEMAS, plain_training, train

from stepscope.memory.replay.allocations import ALLOCATIONS
from stepscope.memory.replay.replay import CURVE, replay
from stepscope.memory.replay.reserved import RESERVED
from stepscope.memory.replay.state import event_at, state_at
from stepscope.memory.view import MemoryView, held_at


def replayed(snapshot):
    return replay(loaded(pickle.dumps(snapshot)))


def curve(found):
    return found.curve.select(
        "requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"
    ).rows()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_invariant_holds_in_every_program_and_schema(program, schema):
    snapshot = SCHEMAS[schema](PROGRAMS[program]())
    found = replayed(snapshot)
    assert found.contradictions.rows() == []
    assert found.mismatches == 0
    assert found.allocations.schema == ALLOCATIONS
    assert found.reserved.schema == RESERVED
    assert found.curve.schema == CURVE


@settings(max_examples=3 * settings.default.max_examples // 5)
@given(DRAWN, SETTINGS, st.sampled_from([400, 1000]), st.sampled_from([None, None, 5, 40]))
def test_the_curve_is_what_the_allocator_held(steps, chosen, megabytes, most):
    allocator = Allocator(total=megabytes * MIB, settings=chosen, max_entries=most)
    allocator.freeable_pools = {(0, 1), (3, 0)}
    Program(allocator).run(steps)
    found = replayed(allocator.snapshot())
    assert found.mismatches == 0
    expected = allocator.curve[-len(allocator.events) :] if allocator.events else []
    if most is None or len(expected) < most:
        exact = [(row[0], row[3]) for row in expected]
        assert [(row[0], row[3]) for row in curve(found)] == exact
    # Without all events, blocks of before are known by what they asked for alone.
    assert [row[0] for row in curve(found)] == [row[0] for row in expected]
    assert [row[3] for row in curve(found)] == [row[3] for row in expected]


@settings(max_examples=2 * settings.default.max_examples // 5)
@given(DRAWN, SETTINGS, st.integers(0, 59))
def test_the_state_at_any_time_is_that_of_a_snapshot_taken_then(steps, chosen, moment):
    allocator = Allocator(total=1000 * MIB, settings=chosen)
    program = Program(allocator).run(steps[:moment])
    earlier, event = allocator.snapshot(), len(allocator.events) - 1
    program.run(steps[moment:])
    found = replayed(allocator.snapshot())
    state = state_at(found, 0, event)
    assert state.outside == 0
    then = [
        (s["address"], s["total_size"], s["stream"], s["is_expandable"])
        for s in earlier["segments"]
    ]
    assert (
        sorted(then)
        == state.segments.select("address", "size_bytes", "stream", "is_expandable").rows()
    )
    blocks = [
        (b["address"], b["size"], b["requested_size"] or None, b["state"])
        for s in earlier["segments"]
        for b in s["blocks"]
    ]
    assert (
        sorted(blocks)
        == state.blocks.select("address", "size_bytes", "requested_bytes", "state").rows()
    )


def test_the_state_at_the_end_is_the_snapshot():
    for program in PROGRAMS.values():
        snapshot = program()
        found = replayed(snapshot)
        for device in range(len(snapshot["device_traces"])):
            state = state_at(found, device)
            expected = [
                (b["address"], b["size"], b["state"])
                for s in snapshot["segments"]
                for b in s["blocks"]
                if s["device"] == device
            ]
            assert state.blocks.select("address", "size_bytes", "state").rows() == expected


def test_lives_of_blocks_have_times_and_stacks():
    found = replayed(plain_training())
    batches = found.allocations.filter(pl.col("requested_bytes") == 2 * MIB)
    frames = found.snapshot.frames
    collate = frames.filter(pl.col("name") == "collate")["frame"].item()
    stacks = {stack for stack, places in found.snapshot.stacks.iter_rows() if places[0] == collate}
    assert len(batches) == 3
    assert set(batches["stack"]) == stacks
    assert (batches["start_ns"] < batches["free_ns"]).all()
    assert (batches["free_ns"] < batches["end_ns"]).all()
    assert (batches["free_event"] < batches["end_event"]).all()
    assert not batches["is_stack_of_free"].any()
    before = found.curve.filter(pl.col("event") < batches["start_event"][0])["time_ns"]
    assert event_at(found, 0, batches["start_ns"][0] - 1) == len(before) - 1
    assert event_at(found, 0, 0) == -1


def test_a_block_from_before_the_recording_has_the_stack_of_its_free_only():
    allocator = Allocator(max_entries=2)
    address = allocator.malloc(5, frames=[{"name": "ask", "filename": "a.py", "line": 1}])
    allocator.free(address, frames=[{"name": "give", "filename": "b.py", "line": 2}])
    found = replayed(allocator.snapshot())
    (row,) = found.allocations.iter_rows(named=True)
    assert row["start_event"] is None
    assert row["is_stack_of_free"]
    stack = found.snapshot.stacks["frames"][row["stack"]].to_list()
    assert [found.snapshot.frames["name"][frame] for frame in stack] == ["give"]


def test_a_block_that_is_there_at_the_end_has_the_stack_of_its_request():
    allocator = Allocator(max_entries=1)
    allocator.malloc(5, frames=[{"name": "ask", "filename": "a.py", "line": 1}])
    allocator.malloc(7 * MIB)
    found = replayed(allocator.snapshot())
    (row,) = found.allocations.filter(pl.col("requested_bytes") == 5).iter_rows(named=True)
    assert (row["start_event"], row["end_event"], row["is_stack_of_free"]) == (None, None, False)
    stack = found.snapshot.stacks["frames"][row["stack"]].to_list()
    assert [found.snapshot.frames["name"][frame] for frame in stack] == ["ask"]


def test_pools_are_known_without_being_said_in_events():
    snapshot = PROGRAMS["graph pools"]()
    old = SCHEMAS["torch 2.1"](snapshot)
    said, found = replayed(snapshot), replayed(old)
    live = pl.col("end_event").is_null()
    assert found.allocations.filter(live)["pool"].to_list() == (
        said.allocations.filter(live)["pool"].to_list()
    )
    # What was in a segment that is gone cannot be told, where there are several pools.
    gone = found.allocations.filter(pl.col("pool").is_null())
    assert len(gone)
    assert gone["end_event"].null_count() == 0
    only = replayed(SCHEMAS["torch 2.1"](plain_training())).allocations
    assert only["pool"].to_list() == [0] * len(only)


def test_annotations_belong_to_the_block_that_lived_then():
    allocator = Allocator()
    first = allocator.malloc(1000)
    allocator.annotate(first, "parameter")
    allocator.annotate(first, "layer 3")
    allocator.free(first)
    second = allocator.malloc(1000)
    assert first == second
    allocator.annotate(second, "gradient")
    allocator.free(second)
    allocator.annotate_anyway(first, "after it was gone")
    found = replayed(allocator.snapshot())
    texts = found.snapshot.texts["value"]
    notes = [(texts[text], block) for text, block, _ in found.notes.iter_rows()]
    assert notes == [("parameter", 0), ("layer 3", 0), ("gradient", 1)]


# -- histories with holes


def words(found):
    return dict(found.contradictions.select("contradiction", "count").iter_rows())


def test_a_free_that_is_missing_shows():
    snapshot = plain_training()
    trace = snapshot["device_traces"][0]
    gone = [e for e in trace if e["action"].startswith("free")][:2]
    assert [e["action"] for e in gone] == ["free_requested", "free_completed"]
    again = any(e["addr"] == gone[0]["addr"] for e in trace[trace.index(gone[1]) + 1 :])
    for event in gone:
        trace.remove(event)
    found = replayed(snapshot)
    assert words(found) == {"alloc_without_free" if again else "missing_at_snapshot": 1}
    assert found.mismatches == 1
    message = found.contradictions["message"][0]
    assert "recording was off" in message
    assert "skip_actions" in message


def test_contradictions_are_told_of_the_device_that_has_them():
    snapshot = PROGRAMS["two devices"]()
    for trace, most in zip(snapshot["device_traces"], (3, 1), strict=True):
        for event in [e for e in trace if e["action"] == "free_requested"][:most]:
            event["size"] += 1
    view = MemoryView(loaded(pickle.dumps(snapshot)))
    found = view.replay.contradictions
    assert found.select("contradiction", "device", "count").rows() == [
        ("other_size", 0, 3), ("other_size", 1, 1),
    ]  # fmt: skip
    assert [view.notes(device)[0].split(":")[0] for device in (0, 1)] == [
        "3 contradictions", "1 contradiction",
    ]  # fmt: skip


def test_an_allocation_that_is_missing_shows_unless_it_is_the_first_of_its_address():
    snapshot = plain_training()
    trace = snapshot["device_traces"][0]
    allocs = [e for e in trace if e["action"] == "alloc"]
    addresses = [e["addr"] for e in allocs]
    later = next(e for k, e in enumerate(allocs) if e["addr"] in addresses[:k])
    trace.remove(later)
    found = replayed(snapshot)
    assert found.mismatches == 1
    assert set(words(found)) <= {"free_without_alloc", "unexpected_at_snapshot"}
    event = found.contradictions["event"].item()
    assert event is None or trace[event]["addr"] == later["addr"]


def test_actions_that_were_skipped_are_named():
    for skipped, word in (
        ({"alloc"}, "leave out allocations"),
        ({"free_completed", "free_requested"}, "leave out frees"),
    ):
        allocator = Allocator()
        allocator.skip = skipped
        found = replayed(train(allocator).snapshot())
        assert found.mismatches > 0
        assert all(word in message for message in found.contradictions["message"])


def test_skipped_completions_are_no_contradiction():
    allocator = Allocator()
    allocator.skip = {"free_completed"}
    snapshot = train(allocator).snapshot()
    found = replayed(snapshot)
    assert found.mismatches == 0
    assert [row[0] for row in curve(found)] == [row[0] for row in allocator.curve]


@pytest.mark.parametrize("skipped", [set(), {"free_requested"}, {"free_completed"}])
def test_a_block_whose_free_is_missing_is_held_until_its_address_is_requested_again(skipped):
    allocator = Allocator()
    allocator.skip = skipped
    allocator.free(allocator.malloc(MIB))
    first = allocator.malloc(5000)
    allocator.skip = {"free_requested", "free_completed"}
    allocator.free(first)
    allocator.skip = skipped
    assert allocator.malloc(7000) == first
    found = replayed(allocator.snapshot())
    assert words(found) == {"alloc_without_free": 1}
    assert [row[0] for row in curve(found)][-2:] == [5000, 7000]


@pytest.mark.parametrize("most", [1, 0])
def test_what_only_waits_for_a_stream_is_not_held(most):
    allocator = Allocator(max_entries=most)
    waiting = allocator.malloc(3000)
    allocator.free(waiting, pending=True)
    allocator.malloc(7000)
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())))
    assert view.curve(0).select("requested_bytes", "active_bytes").row(-1) == (7000, 7168 + 3072)
    assert view.curve(0).select("requested_bytes", "active_bytes").row(0)[0] == 7000 * (not most)
    assert held_at(view.allocations, 0, 0)["requested_bytes"].to_list() == [7000]
    states = dict(state_at(view.replay, 0).blocks.select("requested_bytes", "state").iter_rows())
    assert (states[3000], states[7000]) == ("active_pending_free", "active_allocated")


def test_a_size_and_a_state_that_do_not_fit_show():
    snapshot = plain_training()
    trace = snapshot["device_traces"][0]
    next(e for e in trace if e["action"] == "free_requested")["size"] += 1
    block = next(
        b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    )
    block["state"] = "active_pending_free"
    assert words(replayed(snapshot)) == {"other_size": 1, "other_state": 1}


def test_segments_that_do_not_fit_show():
    snapshot = plain_training()
    segments, trace = snapshot["segments"], snapshot["device_traces"][0]
    lost = segments.pop(2)
    kept = segments[0]
    trace.append(
        {"action": "segment_free", "addr": kept["address"], "size": 5, "stream": 0, "frames": []}
    )
    found = words(replayed(snapshot))
    blocks = [b for b in lost["blocks"] if b["state"] != "inactive"]
    assert found.pop("missing_at_snapshot", 0) == len(blocks)
    assert found == {
        "segment_missing_at_snapshot": 1,
        "segment_unexpected_at_snapshot": 1,
        "segment_other_size": 1,
    }


def test_pages_that_are_mapped_twice_show():
    snapshot = PROGRAMS["expandable"]()
    trace = snapshot["device_traces"][0]
    first = next(e for e in trace if e["action"] == "segment_map")
    trace.insert(trace.index(first) + 1, first)
    assert words(replayed(snapshot)) == {"segment_without_free": 1}


def test_whether_the_ring_overflowed():
    told, silent = PROGRAMS["overflowed"](), plain_training()
    assert replayed(told).is_overflowed is True
    del told["allocator_settings"]["trace_alloc_overflowed"]
    assert replayed(told).is_overflowed is True
    assert replayed(silent).is_overflowed is None
    silent["allocator_settings"]["trace_alloc_max_entries"] = 10**6
    assert replayed(silent).is_overflowed is False


def test_absurd_ranges_take_no_memory():
    event = {"action": "segment_map", "addr": 0, "size": 2**62, "stream": 0}
    trace = [{**event, "addr": k, "action": "segment_map"} for k in range(200)]
    found = replayed({"segments": [], "device_traces": [trace]})
    assert found.mismatches > 0
