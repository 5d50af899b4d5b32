"""Values come back as they were, with their types; nothing else is read or written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.store.memo import UnfitError, decode, encode


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Leaf:
    name: str
    size: float
    value: int | float | str
    path: Path | None = None


@dataclass(frozen=True)
class Tree:
    leaf: Leaf | None
    leaves: tuple[Leaf, ...]
    pair: tuple[str, int]
    counts: dict[int, int]
    named: dict[str, Leaf]
    data: bytes
    is_tall: bool
    colour: Colour
    cells: tuple[tuple[Any, ...], ...]
    either: Leaf | tuple[int, ...] | None = None


numbers = st.integers(-(2**70), 2**70)
reals = st.floats(allow_nan=False)
words = st.text(st.characters(codec=None), max_size=8)
plain = st.none() | st.booleans() | numbers | reals | words
leaves = st.builds(
    Leaf,
    words,
    reals | numbers,
    numbers | reals | words,
    st.none() | st.builds(Path, st.from_regex(r"\A/?[a-zü \udc80]{1,9}(/[b-d]{1,3})*\Z")),
)
trees = st.builds(
    Tree,
    st.none() | leaves,
    st.lists(leaves, max_size=3).map(tuple),
    st.tuples(words, numbers),
    st.dictionaries(numbers, numbers, max_size=3),
    st.dictionaries(words, leaves, max_size=2),
    st.binary(max_size=20),
    st.booleans(),
    st.sampled_from(Colour),
    st.lists(st.lists(plain, max_size=3).map(tuple), max_size=3).map(tuple),
    st.none() | leaves | st.lists(numbers, max_size=3).map(tuple),
)


@settings(deadline=None, max_examples=30)
@given(trees)
def test_a_value_comes_back_with_its_types(tree: Tree) -> None:
    text = encode(tree)
    assert text.isascii()
    back = decode(Tree, text)
    assert back == tree
    assert repr(back) == repr(tree)  # which tells 1, 1.0 and True apart
    assert list(back.counts) == list(tree.counts)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0])
def test_numbers_that_json_does_not_have_come_back(value: float) -> None:
    back = decode(float, encode(value))
    assert repr(back) == repr(value)


@dataclass(frozen=True)
class Taller(Leaf):
    more: int = 0


@pytest.mark.parametrize("value", [np.int64(1), object(), {1, 2}, int, {("a",): 1}])
def test_a_value_of_another_type_is_not_written(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_what_differs_in_a_frame_differs_in_what_is_written_of_it() -> None:
    values = ([1, 2], [1, 3], [1.0, 2.0], [1, None])
    texts = {encode(pl.DataFrame({"a": one})) for one in values}
    assert len(texts) == 4
    with pytest.raises(UnfitError):
        decode(pl.DataFrame, texts.pop())


LEAF = {"name": "a", "size": 1.0, "value": 1, "path": None}


def described(**changed: object) -> list[object]:
    return ["Leaf", LEAF | changed]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (int, 1.0), (int, True), (int, "1"), (int, None), (bool, 1), (str, 1), (float, "1"),
        (int | None, "1"), (int | None, []), (tuple[int, ...], {"0": 1}), (tuple[int, ...], ["1"]),
        (tuple[int, str], [1]), (tuple[int, str], [1, "a", 1]), (dict[str, int], {"a": "1"}),
        (dict[int, int], {"a": 1}), (dict[str, int], [["a", 1]]), (dict[str, int], 7),
        (Leaf, []), (Leaf, {}), (Leaf, LEAF), (Leaf, ["Tree", LEAF]), (Leaf, ["Leaf", []]),
        (Leaf, described(more=1)), (Leaf, described(name=1)), (Leaf, described(path=0)),
        (Leaf, ["Taller", LEAF | {"more": 1}]), (Colour, "green"), (Colour, []), (bytes, "a"),
        (bytes, "ü"), (bytes, 1), (Any, {"a": 1}),
        (object, 1), (type, "int"), (list[int], [1]),
    ],
)  # fmt: skip
def test_a_text_that_describes_no_such_value_is_refused(kind: Any, found: object) -> None:
    assert decode(Leaf, json.dumps(described())) == Leaf("a", 1.0, 1)
    with pytest.raises(UnfitError):
        decode(kind, json.dumps(found))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nothing"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(UnfitError):
        decode(int, text)
