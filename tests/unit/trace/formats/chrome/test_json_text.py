"""Strict JSON in the middle of a long text: a piece of it is enough, and nobody may notice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.formats.chrome.tolerant import json_text
from stepscope.trace.formats.chrome.tolerant.json_text import (
    is_cut_short,
    member_texts,
    strict_value,
)

scan_once = json.JSONDecoder().scan_once
BEFORE = '{"a": [1,\n'
BAD = (
    '"a\x01b"',
    '"\\x"',
    "]",
    "",
    "nope",
    '{"a" 1}',
    "[1,, 2]",
    '"never closed',
    "[1, ",
    "1",
    "1.",
)


def outcome(parse, text, at):
    """What parsing gives, or the error's kind and place, and whether more text could repair it."""
    try:
        return parse(text, at)
    except StopIteration as error:
        return "stop", error.value, is_cut_short(error, text)
    except json.JSONDecodeError as error:
        return "error", error.msg, error.pos, is_cut_short(error, text)


VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=40)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=8), inner)),
    max_leaves=12,
)


@given(
    written=st.one_of(VALUES.map(lambda value: json.dumps(value, indent=1)), st.sampled_from(BAD)),
    room=st.integers(-14, 14),
    after=st.sampled_from(["", " ", "\n" * 40, ",\n {}", "]" + " " * 20, "7", '"', " x" * 30]),
)
def test_a_piece_gives_what_the_whole_gives(written, room, after):
    text = BEFORE + written + after
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_PIECE", max(1, len(written) + room))
        assert outcome(strict_value, text, len(BEFORE)) == outcome(scan_once, text, len(BEFORE))


@given(text=st.text(st.sampled_from("ab \n\t\u2003\x1c"), max_size=40), at=st.integers(0, 45))
def test_an_error_near_the_end_may_be_due_to_it(text, at):
    error = json.JSONDecodeError("Expecting value", text, at)
    assert is_cut_short(error, text) == (at > len(text.rstrip()) - 12)


def test_lines_before_a_bad_value_are_not_counted():
    before = "\n" * 100_000
    text = before + '"a\x01b"' + ",1" * 50_000
    with pytest.raises(json.JSONDecodeError) as raised:
        strict_value(text, len(before))
    assert raised.value.pos == len(before) + 2
    assert raised.value.lineno == 1


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(VALUES, st.sampled_from((None, 1)))
def test_texts_of_members_are_those_of_the_object(value, indent):
    text = json.dumps(value, indent=indent)
    found = member_texts(text)
    assert all(member in text for member in found.values())
    expected = list(value.items()) if isinstance(value, dict) else []
    assert [(key, json.loads(member)) for key, member in found.items()] == expected
