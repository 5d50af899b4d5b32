"""Packed differences are those of the numbers, of any width, with the least and the largest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.parquet import writer
from stepscope.trace.parquet.encodings import as_differences, most_bytes

_TYPES = (np.int32, np.uint32, np.int64, np.uint64)
_BLOCK, _MINIBLOCKS, _IN_MINIBLOCK = 128, 4, 32


def _decoded(data: bytes, bits: int) -> list[int]:
    """Reads packed differences as the format defines them, one bit after another."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def signed() -> int:
        number = varint()
        return number >> 1 if number % 2 == 0 else -(number + 1 >> 1)

    assert (varint(), varint()) == (_BLOCK, _MINIBLOCKS)
    count = varint()
    numbers = [signed()]
    while len(numbers) < count:
        least = signed()
        widths = data[at : at + _MINIBLOCKS]
        at += _MINIBLOCKS
        for width in widths:
            packed = int.from_bytes(data[at : at + 4 * width], "little")
            at += 4 * width
            for index in range(_IN_MINIBLOCK):
                if len(numbers) < count:
                    above = packed >> (index * width) & ((1 << width) - 1)
                    numbers.append(numbers[-1] + least + above)
    assert at == len(data)
    return [number % 2**bits for number in numbers[:count]]


def _assert_encodes(values: np.ndarray[Any, Any]) -> None:
    room = most_bytes(len(values))
    target = np.full(room + 64, 0xA5, np.uint8)
    encoded, limits = as_differences(values, target[:room])
    bits = 8 * values.dtype.itemsize
    assert _decoded(encoded, bits) == [value % 2**bits for value in values.tolist()]
    assert limits == (values.min(), values.max())
    assert all(limit.dtype == values.dtype for limit in limits or ())
    assert (target[room:] == 0xA5).all()


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("width", range(65))
def test_of_any_width(dtype: Any, width: int) -> None:
    """Differences of up to so many bits, on both sides of what fits beside seven others."""
    chance = np.random.default_rng(width)
    bits = 8 * np.dtype(dtype).itemsize
    steps = chance.integers(0, 1 << min(width, bits), 300, dtype=np.uint64, endpoint=width < 64)
    values = np.cumsum(steps).astype(np.uint64 if bits == 64 else np.uint32).view(dtype)
    _assert_encodes(values)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 34, 128, 129, 130, 161, 257])
@pytest.mark.parametrize("dtype", _TYPES)
def test_of_any_length(dtype: Any, count: int) -> None:
    limits = np.iinfo(dtype)
    _assert_encodes(np.resize(np.array([limits.max, limits.min, 0, 7], dtype), count))


@settings(deadline=None)
@given(st.data())
def test_of_any_numbers(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(_TYPES))
    limits = np.iinfo(dtype)
    numbers = st.integers(int(limits.min), int(limits.max)) | st.integers(0, 300)
    _assert_encodes(np.array(data.draw(st.lists(numbers, min_size=1, max_size=300)), dtype))


def test_of_none() -> None:
    encoded, limits = as_differences(np.empty(0, np.int64), np.empty(most_bytes(0), np.uint8))
    assert encoded == bytes([_BLOCK % 128 | 128, _BLOCK // 128, _MINIBLOCKS, 0, 0])
    assert limits is None


@pytest.mark.parametrize(
    ("values", "dtype", "limits"),
    [
        ([5, -7, 3], pl.Int32, ("-7", "5")),
        ([5, 2**32 - 1, 3], pl.UInt32, ("3", str(2**32 - 1))),
        ([5, None, -(2**63)], pl.Int64, (str(-(2**63)), "5")),
        ([5, 2**64 - 1, 3], pl.UInt64, ("3", str(2**64 - 1))),
    ],
)
def test_a_file_tells_the_limits_of_its_columns(
    tmp_path: Path, values: list[int | None], dtype: Any, limits: tuple[str, str]
) -> None:
    file = tmp_path / "table.parquet"
    assert writer.write(pl.DataFrame({"n": pl.Series(values, dtype=dtype)}), file)
    found = duckdb.connect().execute(
        f"SELECT stats_min_value, stats_max_value FROM parquet_metadata('{file}')"
    )
    assert found.fetchall() == [limits]
