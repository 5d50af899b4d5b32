"""Pickles of plain values are read exactly; anything else is refused before it does anything."""

from __future__ import annotations

import collections
import os
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UnreadableInputError
from stepscope.fleet.hangs.plain_pickle import read_plain_pickle

numbers = st.one_of(
    st.integers(-(2**64), 2**64 - 1), st.floats(allow_nan=False), st.booleans(), st.none()
)
leaves = st.one_of(numbers, st.text(), st.binary())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(-5, 5)), inner),
    ),
)


@given(value=values, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back(value, protocol):
    data = pickle.dumps(value, protocol=protocol)
    try:
        found = read_plain_pickle(data)
    except UnreadableInputError as error:
        # Before protocol 3 bytes are written as a call of a codec.
        assert protocol < 3
        assert "GLOBAL" in str(error)
        assert b"_codecs" in data or b"builtin" in data
    else:
        assert found == value
        assert repr(found) == repr(value)


def test_shared_and_circular_values_stay_so():
    shared = [1]
    found = read_plain_pickle(pickle.dumps([shared, shared]))
    assert found[0] is found[1]
    circle: list[object] = []
    circle.append(circle)
    found = read_plain_pickle(pickle.dumps(circle))
    assert found[0] is found


class Hostile:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_hostile_pickles_are_refused_and_nothing_runs(tmp_path, protocol):
    mark = tmp_path / "ran"
    for value in (
        Hostile(os.system, f"touch {mark}"),
        [1, {"entries": Hostile(Path.touch, mark)}],
        collections.OrderedDict(a=1),
    ):
        with pytest.raises(UnreadableInputError, match="may run code"):
            read_plain_pickle(pickle.dumps(value, protocol=protocol), "dump")
    assert not mark.exists()


@given(value=values, data=st.data())
def test_damage_is_an_error_of_ours(value, data):
    whole = pickle.dumps(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(UnreadableInputError):
        read_plain_pickle(whole[:cut])
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_plain_pickle(bytes(damaged))
    except UnreadableInputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "data", [b"", b".", b"(.", b"garbage", b"K\x01K\x02.", b"h\x07.", b"N(u.", b"e."]
)
def test_what_is_no_pickle_is_said(data):
    with pytest.raises(UnreadableInputError):
        read_plain_pickle(data)


def shared_pairs(depth):
    """A tuple of two equal tuples, and so on: hashing it takes 2**depth steps."""
    return b"".join(b"j" + struct.pack("<I", number) + b"\x86\x94" for number in range(depth))


@pytest.mark.parametrize("tuples", [shared_pairs(60), b"\x85" * 300_000])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"}", b"K\x01s"),  # SETITEM
        (b"}(", b"K\x01u"),  # SETITEMS
        (b"(", b"K\x01d"),  # DICT
        (b"\x8f(", b"\x90"),  # ADDITEMS
        (b"(", b"\x91"),  # FROZENSET
    ],
)
def test_what_takes_for_ever_to_hash_is_no_key(tuples, before, after):
    data = b"\x80\x04)\x94" + before + b")" + tuples + after + b"."
    with pytest.raises(UnreadableInputError, match="a tuple as a key"):
        read_plain_pickle(data)


@pytest.mark.parametrize("number", [2**64, -(2**64) - 1, 10**4000])
def test_numbers_that_no_table_can_hold_are_refused(number):
    with pytest.raises(UnreadableInputError, match="byte .* more than 64 bits"):
        read_plain_pickle(pickle.dumps([number]))
