"""The picture of memory over time, against what the plain allocator's events say."""

from __future__ import annotations

import pickle

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from tests.support.allocator import MIB, Allocator
from tests.support.allocator_programs import PROGRAMS as DRAWN
from tests.support.allocator_programs import SETTINGS, Program
from tests.support.page_data import blocks_of, data_of
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import (
    PROGRAMS,
    SCHEMAS,
    Frames,
    out_of_memory,
    plain_training,
    two_devices,
)

from stepscope.commands.main import cli
from stepscope.memory.questions.over_time import COLUMNS, MOST_LINES, over_time
from stepscope.memory.questions.totals import totals
from stepscope.memory.view import MemoryView


def viewed(snapshot):
    return MemoryView(loaded(pickle.dumps(snapshot)))


def place(picture, at):
    return (at - picture.start) // picture.step


def assert_adds_up(picture):
    sums = [sum(values) for values in zip(*(band for _, band in picture.bands), strict=True)]
    assert (sums or [0] * len(picture.allocated_bytes)) == list(picture.allocated_bytes)
    assert len(picture.allocated_bytes) <= COLUMNS
    assert picture.peak.allocated_bytes == max(picture.allocated_bytes)
    assert picture.allocated_bytes[place(picture, picture.peak.at)] == max(picture.allocated_bytes)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_bands_add_up_and_no_peak_is_lost(program, schema):
    view = viewed(SCHEMAS[schema](PROGRAMS[program]()))
    picture, numbers = over_time(view), totals(view)
    assert_adds_up(picture)
    assert picture.peak.allocated_bytes == numbers.peak_allocated_bytes
    assert max(picture.reserved_bytes or picture.allocated_bytes) == numbers.peak_reserved_bytes
    assert picture.failures == numbers.out_of_memory


@settings(max_examples=settings.default.max_examples // 3)
@given(DRAWN, SETTINGS)
def test_each_column_has_the_most_of_its_events_or_what_held_before(steps, chosen):
    allocator = Allocator(total=1000 * MIB, settings=chosen)
    Program(allocator).run(steps)
    picture = over_time(viewed(allocator.snapshot()))
    assert_adds_up(picture)
    if not allocator.events:
        return
    origin = allocator.events[0]["time_us"] * 1000
    held, reserved, column = 0, 0, 0
    expected = [[] for _ in picture.allocated_bytes]
    before = [(0, 0)] * len(expected)
    for event, (_, allocated, _, taken) in zip(allocator.events, allocator.curve, strict=True):
        at = place(picture, event["time_us"] * 1000 - origin)
        before[column + 1 : at + 1] = [(held, reserved)] * (at - column)
        held, reserved, column = allocated, taken, at
        expected[at].append((allocated, taken))
    for number, values in enumerate(expected):
        most = [max(one) for one in zip(*(values or [before[number]]), strict=True)]
        shown = picture.reserved_bytes or picture.allocated_bytes
        assert [picture.allocated_bytes[number], shown[number]] == most


def test_a_failed_request_is_where_the_history_ends():
    view = viewed(out_of_memory())
    picture = over_time(view)
    (failed,) = picture.failed
    assert failed.event == view.out_of_memory(0)["event"][-1]
    assert place(picture, failed.at) == len(picture.allocated_bytes) - 1


def test_the_device_asked_for_is_drawn():
    view = viewed(two_devices())
    pictures = {device: over_time(view, device) for device in view.devices}
    assert {one.device for one in pictures.values()} == {"GPU 0", "GPU 1"}
    for device, picture in pictures.items():
        assert picture.peak.allocated_bytes == view.peak_bytes(device)


def test_reserved_bytes_are_not_drawn_where_segments_are_missing():
    snapshot = plain_training()
    assert over_time(viewed(snapshot)).reserved_bytes is not None
    events = snapshot["device_traces"][0]
    requests = [event for event in events if event["action"] == "segment_alloc"]
    events[:] = [event for event in events if event["action"] != "segment_alloc"]
    snapshot["segments"].clear()
    assert requests
    assert over_time(viewed(snapshot)).reserved_bytes is None


@pytest.mark.parametrize("verb", ["memory", "report"])
def test_the_page_of_a_snapshot_has_the_picture_with_its_peak(tmp_path, verb):
    path, page = tmp_path / "snapshot.pickle", tmp_path / "page.html"
    path.write_bytes(pickle.dumps(plain_training()))
    result = CliRunner().invoke(cli, [verb, str(path), "-o", str(page)])
    assert result.exit_code == 0, result.output
    (drawn,) = blocks_of(data_of(page.read_text("utf-8")), "memory")
    picture = over_time(viewed(plain_training()))
    assert drawn["allocated"] == list(picture.allocated_bytes)
    assert drawn["reserved"] == list(picture.reserved_bytes)
    assert drawn["peak"] == [picture.peak.at, picture.peak.allocated_bytes]
    assert drawn["caption"].startswith("The peak of GPU 0: ")


def test_a_prediction_draws_no_recorded_history(tmp_path):
    path, page = tmp_path / "snapshot.pickle", tmp_path / "page.html"
    path.write_bytes(pickle.dumps(plain_training()))
    result = CliRunner().invoke(cli, ["memory", str(path), "shard", "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert blocks_of(data_of(page.read_text("utf-8")), "memory") == []


def test_without_categories_the_bands_are_lines_which_add_up():
    allocator = Allocator()
    for number in range(30):
        allocator.malloc((1 + number % 12) * MIB, frames=Frames()(f"model.py:{number % 12}:run"))
    picture = over_time(viewed(allocator.snapshot()))
    assert_adds_up(picture)
    assert picture.lines == MOST_LINES
    names = [name for name, _ in picture.bands]
    assert len(names) == MOST_LINES + 1
    assert names[-1] == "other lines"
    assert names[0].startswith("model.py:")


def test_known_categories_stay_the_bands():
    picture = over_time(viewed(plain_training()))
    assert not picture.lines
    assert "activation" in dict(picture.bands)
