"""speedscope's format, as its documentation describes it, checked on what we write.

The reader refuses a whole file for one frame that closes out of order or one moment that goes back.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.export.selection import Selection, cut
from stepscope.export.to_speedscope import write_speedscope
from stepscope.trace.load import load

TEXT = str
NUMBER = (int, float)
FILE = {"$schema": TEXT, "shared": dict, "profiles": list}
FILE_MAY = {"name": TEXT, "exporter": TEXT, "activeProfileIndex": int}
FRAME, FRAME_MAY = {"name": TEXT}, {"file": TEXT, "line": NUMBER, "col": NUMBER}
PROFILE = {
    "type": TEXT,
    "name": TEXT,
    "unit": TEXT,
    "startValue": NUMBER,
    "endValue": NUMBER,
    "events": list,
}
EVENT = {"type": TEXT, "frame": int, "at": NUMBER}
UNITS = {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}
LARGEST_EXACT = 2**53


def check_keys(thing, required, optional=None):
    """All required keys, none but the known ones, each of its type."""
    assert required.keys() <= thing.keys()
    known = {**required, **(optional or {})}
    assert thing.keys() <= known.keys()
    for key, value in thing.items():
        assert isinstance(value, known[key]), (key, value)
        assert not isinstance(value, bool)


def check_file(document):
    """Whether speedscope would accept a file of evented profiles; returns the frames opened."""
    check_keys(document, FILE, FILE_MAY)
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    check_keys(document["shared"], {"frames": list})
    frames = document["shared"]["frames"]
    for frame in frames:
        check_keys(frame, FRAME, FRAME_MAY)
    if "activeProfileIndex" in document:
        assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    return sum(check_profile(profile, len(frames)) for profile in document["profiles"])


def check_profile(profile, frames):
    """Frames that open and close like brackets, at moments that never go back."""
    check_keys(profile, PROFILE)
    assert profile["type"] == "evented"
    assert profile["unit"] in UNITS
    assert profile["startValue"] <= profile["endValue"] < LARGEST_EXACT
    now, stack, opened = profile["startValue"], [], 0
    for event in profile["events"]:
        check_keys(event, EVENT)
        assert 0 <= event["frame"] < frames
        assert now <= event["at"] <= profile["endValue"]
        now = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
            opened += 1
        else:
            assert event["type"] == "C"
            assert stack.pop() == event["frame"]
    assert stack == []
    return opened


def exported(trace, selection=None):
    """What is written, and how many slices it says that these are."""
    pieces: list[bytes] = []
    number = write_speedscope(cut(trace, selection or Selection()), pieces.append)
    return json.loads(b"".join(pieces)), number


def test_a_training_is_in_the_format_with_every_slice(trace):
    document, number = exported(trace)
    assert check_file(document) == number == len(trace.events.collect())


def test_a_cut_is_in_the_format_too(trace):
    document, number = exported(trace, Selection(steps=(1,)))
    assert check_file(document) == number
    assert 0 < number < len(trace.events.collect())


@given(
    slices=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 30),
            st.integers(0, 20),
            st.sampled_from(["aten::mm", "train.py(10): forward", "", '"\\</script>', "\u202e\0"]),
        ),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=30, deadline=None)
def test_slices_of_any_kind_are_in_the_format_and_none_is_lost(tmp_path_factory, slices):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": lane, "ts": start, "dur": dur}
        for lane, start, dur, name in slices
    ]
    path = tmp_path_factory.mktemp("slices") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    document, number = exported(load(path))
    assert check_file(document) == number == len(slices)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("unit", "hours"),
        ("type", "flame"),
        ("endValue", -1),
        ("startValue", None),
        ("events", [{"type": "O", "frame": 0, "at": 0}]),
        ("events", [{"type": "C", "frame": 0, "at": 0}]),
        ("events", [{"type": "O", "frame": 10**6, "at": 0}, {"type": "C", "frame": 0, "at": 0}]),
    ],
)
def test_the_check_sees_what_is_wrong(trace, change, value):
    document, _ = exported(trace)
    document["profiles"][0][change] = value
    with pytest.raises((AssertionError, IndexError)):
        check_file(document)
