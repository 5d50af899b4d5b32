"""Values come back as they were, with their types; nothing else is read or written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.store.values import UnfitError, from_json, to_json


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
    counts: dict[int | None, int]
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
    st.dictionaries(st.none() | numbers, numbers, max_size=3),
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
    text = json.dumps(to_json(Tree, tree))
    assert text.isascii()
    back = from_json(Tree, json.loads(text))
    assert back == tree
    assert repr(back) == repr(tree)  # which tells 1, 1.0 and True apart
    assert list(back.counts) == list(tree.counts)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0])
def test_numbers_that_json_does_not_have_come_back(value: float) -> None:
    back = from_json(float, json.loads(json.dumps(to_json(float, value))))
    assert repr(back) == repr(value)


class Odd(str):
    """A text that would come back as another type."""


@dataclass(frozen=True)
class Taller(Leaf):
    more: int = 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 1.0), (int, True), (float, True), (str, Odd("a")), (float, np.float64(1)),
        (int, np.int64(1)), (int | None, "1"), (tuple[int, ...], [1]), (tuple[int, str], (1,)),
        (dict[str, int], {1: 1}), (Leaf, Taller("a", 1, 1)), (Leaf, {"name": "a"}), (Any, [1]),
        (Any, Colour.RED), (Any, b""), (Colour, "red"), (Path, "a"), (bytes, "a"), (object, 1),
        (list[int], [1]), (type, int),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_not_written(kind: Any, value: object) -> None:
    with pytest.raises(UnfitError):
        to_json(kind, value)


LEAF = {"name": "a", "size": 1.0, "value": [0, 1], "path": [1, None]}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (int, 1.0), (int, True), (int, "1"), (int, None), (bool, 1), (str, 1), (float, "1"),
        (int | None, None), (int | None, [2, 1]), (int | None, [-1, 1]), (int | None, [True, None]),
        (int | None, [0]), (int | None, [0, None]), (tuple[int, ...], {"0": 1}),
        (tuple[int, str], [1]), (tuple[int, str], [1, "a", 1]), (dict[str, int], {"a": 1}),
        (dict[str, int], [["a"]]), (dict[str, int], [[["a"], 1]]), (dict[str, int], 7),
        (Leaf, []), (Leaf, {}), (Leaf, LEAF | {"more": 1}), (Leaf, LEAF | {"name": 1}),
        (Leaf, LEAF | {"path": [0, 1]}), (Colour, "green"), (Colour, []), (bytes, "a"),
        (bytes, "ü"), (bytes, 1), (Any, {"a": 1}),
        (object, 1), (type, "int"), (list[int], [1]),
    ],
)  # fmt: skip
def test_a_text_that_describes_no_such_value_is_refused(kind: Any, found: object) -> None:
    assert from_json(Leaf, LEAF) == Leaf("a", 1.0, 1)
    with pytest.raises(UnfitError):
        from_json(kind, found)
