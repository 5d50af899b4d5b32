"""Compiled code finds the texts of columns where Polars has them."""

from __future__ import annotations

import ctypes

import numpy as np
import polars as pl
import pytest

from stepscope.trace.arrays.arrow_columns import strings_of
from stepscope.trace.arrays.kept_arrays import KEEPER
from stepscope.trace.parquet.text import INLINE_BYTES, VIEW_BYTES, text_views

_LONG = "a text that does not fit into a view"


def _texts_of(column: pl.Series) -> list[list[str]]:
    """Reads what the views refer to, array by array."""
    found = []
    arrays = text_views(column)
    assert arrays is not None
    for array in arrays:
        texts = []
        for row in range(array.count):
            view = array.views + row * VIEW_BYTES
            length, _, buffer, offset = (ctypes.c_uint32 * 4).from_address(view)
            start = view + 4 if length <= INLINE_BYTES else int(array.buffers[buffer]) + offset
            texts.append(ctypes.string_at(start, length).decode())
        found.append(texts)
    return found


@pytest.mark.parametrize(
    "texts", [[], ["short"], ["", "twelve bytes", "thirteen byte", _LONG, "ö" * 20]]
)
def test_all_texts_are_found(texts: list[str]) -> None:
    found = _texts_of(pl.Series(texts, dtype=pl.String))
    assert [text for part in found for text in part] == texts


def test_parts_and_slices_are_found() -> None:
    first, second = pl.Series([f"{_LONG} {n}" for n in range(9)]), pl.Series(["b", _LONG])
    column = pl.concat([first, second], rechunk=False)[3:-1]
    assert _texts_of(column) == [[f"{_LONG} {n}" for n in range(3, 9)], ["b"]]


def test_nulls_have_views_too() -> None:
    column = pl.Series([_LONG, None, "b"])
    arrays = text_views(column)
    assert arrays is not None
    assert [array.count for array in arrays] == [3]


def test_other_layouts_are_refused() -> None:
    assert text_views(pl.Series([1, 2])) is None


def test_nothing_is_kept_longer_than_needed() -> None:
    KEEPER.drop_released()
    before = len(KEEPER)
    data = np.frombuffer(_LONG.encode(), np.uint8)
    views = np.array([[len(data), int.from_bytes(_LONG[:4].encode(), "little"), 0, 0]], np.uint32)
    column = strings_of("text", data, views, np.array([1], np.uint8))
    arrays = text_views(column)
    assert arrays is not None
    assert int(next(arrays).buffers[0]) == data.ctypes.data  # not copied
    KEEPER.drop_released()
    assert len(KEEPER) == before + 1
    del column, arrays
    KEEPER.drop_released()
    assert len(KEEPER) == before
