"""Events of the usual form are read as the strict parser reads them, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.chrome_traces import LAYOUTS, Digits, dump, kernel, operator, write

from stepscope.trace.formats.chrome.rows import Event
from stepscope.trace.formats.chrome.tolerant.event_json import read_strictly
from stepscope.trace.formats.chrome.tolerant.event_members import usual_event
from stepscope.trace.problems import Problems

KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "s", "bp", "sf", "args", "x")
PIECES = (
    "{",
    "}",
    '"',
    ",",
    ":",
    " ",
    "\n",
    "\\",
    "\ud800",
    "0",
    "-",
    ".5",
    "e3",
    "[",
    "]",
    "null",
)
words = st.sampled_from(
    ["X", "", "stream 7", '"', "\\", "},{", "\u00e9", "\x00", "\ud800", "args", '"args": {']
)
numbers = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,7})?", fullmatch=True).map(Digits),
    st.sampled_from(["1e3", "00", "1.", "9" * 40, "0." + "1" * 40]).map(Digits),
)
identifiers = st.one_of(st.integers(-2, 2**64 + 1), st.none(), words)
arguments = st.dictionaries(
    st.sampled_from(
        ["correlation", "External id", "external id", "device", "stream", "bytes", "}"]
    ),
    st.one_of(identifiers, st.lists(words, max_size=2), st.just({"args": {}})),
    max_size=4,
)
values = st.one_of(words, numbers, st.none(), st.booleans(), arguments)
members = st.one_of(
    st.tuples(st.sampled_from(["ph", "cat", "name", "s", "bp"]), words),
    st.tuples(st.sampled_from(["ts", "dur", "id"]), numbers),
    st.tuples(st.sampled_from(["pid", "tid"]), st.one_of(words, numbers)),
    st.tuples(st.just("args"), arguments),
    st.tuples(st.sampled_from(KEYS), values),
)
spaces = st.sampled_from(["", "", " ", "\n    "])


@st.composite
def objects(draw: st.DrawFn) -> str:
    """A JSON object, or nearly one, whose keys may be there twice."""
    ascii_only = draw(st.booleans())

    def text_of(value: Any) -> str:
        return dump(value, ensure_ascii=ascii_only)

    listed = [
        f'{draw(spaces)}"{key}"{draw(spaces)}:{draw(spaces)}{text_of(value)}{draw(spaces)}'
        for key, value in draw(st.lists(members, max_size=9))
    ]
    return "{" + ",".join(listed) + draw(spaces) + "}"


def agrees(text: str) -> Event | None:
    """Asserts that what is read is what the strict parser reads; returns it."""
    problems, others = Problems(), Problems()
    found = usual_event(text, 0, problems)
    if found is None:
        assert not problems
        return None
    assert found == read_strictly(text, 0, True, others)
    assert problems.frame().equals(others.frame())
    return found[0]


@given(objects(), st.sampled_from(["", ",", "]", "}", '"']))
def test_any_object_is_read_as_by_the_strict_parser(text: str, after: str) -> None:
    agrees(text + after)


@given(objects(), st.integers(0, 300), st.sampled_from(PIECES), st.integers(0, 3))
def test_so_is_one_that_is_damaged(text: str, place: int, piece: str, length: int) -> None:
    at = 1 + place % len(text)
    agrees(text[:at] + piece + text[at + length :])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_recorders_write_is_of_the_usual_form(layout: str) -> None:
    plain: list[dict[str, Any]] = [
        operator(),
        kernel("7.5", args={"External id": 4, "stream": 7, "device": 0, "grid": [4, 1, 1]}),
        {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": "2", "args": {}, "ts": 1},
        {"ph": "s", "id": 5, "pid": 1, "tid": 2, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 5, "pid": 1, "tid": 2, "ts": 6, "cat": "ac2g", "name": "b", "bp": "e"},
    ]
    for event in plain:
        text = write([event], layout, "bare-array").decode()
        found = agrees(text[text.index("{") :])
        assert found is not None
        assert (found.phase, found.name, found.pid) == (
            event["ph"],
            event["name"],
            str(event["pid"]),
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"ph": "X", "ph": "i"}', "i"),
        ('{"ph": "X", "args": {"ph": "i"}}', "X"),
        ('{"args": {}, "ph": "X"}', "X"),
        ('{"ph": "X", "args": {}, "ph": "i"}', "i"),
        ('{"ph": "X", "args": {}, "args": {}}', None),
        ('{"ph": "X",}', None),
        ('{,"ph": "X"}', None),
        ('{"ph": "X" "name": "a"}', None),
        ('{"ph": "X", "args": {},}', None),
        ('{"ph": "X", "other": 1}', None),
        ('{"ph": "X", "ts": 01}', None),
        ('{"ph": "X", "name": "a\\n"}', None),
        ('{"ph": "X"', None),
    ],
)
def test_other_forms_are_left_to_others(text: str, expected: str | None) -> None:
    found = agrees(text)
    assert (found.phase if found else None) == expected


def test_members_without_end_are_left_to_others() -> None:
    text = json.dumps({"ph": "X"})[:-1] + ', "s": "t"' * 10_000 + "}"
    assert agrees(text) is None
