"""Floats in translated functions: bit for bit what Python makes of them."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.machine.arrays import Table, Written, WrittenTable
from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.kinds import UntranslatableError

HALF = 0.5
NOT_BELOW = float("-inf")

anything = st.floats(allow_nan=True, allow_infinity=True)
longs = st.integers(-(2**63), 2**63 - 1)


def calculate(a: float, b: float, n: int, found: Written[np.float64]) -> float:
    """All that floats can do, into `found`, and one of it as the result."""
    found[0] = a + b
    found[1] = a - b
    found[2] = a * b
    found[3] = -a
    found[4] = min(a, b)
    found[5] = max(a, b)
    found[6] = float(n)
    found[7] = a if a < b else b * HALF
    found[8] = a * b + float(n)
    found[8] += 1.0e-3
    total = 0.0
    for _index in range(3):
        total += a
    found[9] = total
    found[10] = max(NOT_BELOW, a)
    return a / b if b != 0.0 else HALF


def compare(a: float, b: float) -> int:
    """A bit for each comparison that holds."""
    found = 1 if a < b else 0
    found |= 2 if a <= b else 0
    found |= 4 if a == b else 0
    found |= 8 if a != b else 0
    found |= 16 if a >= b else 0
    return found | 32 if a > b else found


CALCULATE, COMPARE = CompiledFunction(calculate), CompiledFunction(compare)


def bits(values: Any) -> list[int | str]:
    """Floats as they are in memory; there are many that are no number, and all are alike here."""
    return [
        "nan" if math.isnan(value) else struct.unpack("<q", struct.pack("<d", value))[0]
        for value in values
    ]


@settings(deadline=None, max_examples=300)
@given(anything, anything, longs)
def test_arithmetic_is_pythons(a: float, b: float, n: int) -> None:
    by_python, by_machine = [0.0] * 11, np.zeros(11)
    expected = calculate(a, b, n, by_python)  # type: ignore[arg-type]
    assert bits([CALCULATE(a, b, n, by_machine)]) == bits([expected])
    assert bits(by_machine) == bits(by_python)


@settings(deadline=None, max_examples=300)
@given(anything, anything)
def test_comparisons_are_pythons(a: float, b: float) -> None:
    for left, right in ((a, b), (a, a), (math.nan, b), (0.0, -0.0)):
        assert COMPARE(left, right) == compare(left, right)


def ratio(values: npt.NDArray[np.float64], b: float) -> float:
    return values[0] / b


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_division_by_zero_is_an_error(zero) -> None:
    divide = CompiledFunction(ratio)
    assert divide(np.array([1.0]), 4.0) == 0.25
    assert math.isnan(divide(np.array([1.0]), math.nan))
    with pytest.raises(ZeroDivisionError, match="a division by zero, at line "):
        divide(np.array([1.0]), zero)


def spread(
    shares: Table[np.float64], amounts: npt.NDArray[np.int64], out: WrittenTable[np.float64]
) -> None:
    for row in range(len(amounts)):
        for column in range(3):
            out[row, column] += shares[row, column] * float(amounts[row])


@settings(deadline=None)
@given(st.lists(st.integers(-(2**40), 2**40), max_size=6), st.integers(0, 2**32))
def test_tables_that_are_read_and_written(amounts: list[int], seed: int) -> None:
    shares = np.random.default_rng(seed).random((len(amounts), 3))
    shares.flags.writeable = False
    out = np.ones((len(amounts), 3))
    CompiledFunction(spread)(shares, np.array(amounts, np.int64), out)
    assert (out == 1 + shares * np.array(amounts, np.float64).reshape(-1, 1)).all()


def writes_what_it_reads(values: Table[np.float64]) -> None:
    values[0, 0] = 1.0


def mixes_elements(values: Written[np.float64], number: int) -> None:
    values[0] = number


def depends_on(values: npt.NDArray[np.float64]) -> int:
    return 1 if values[0] else 0


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (writes_what_it_reads, (np.zeros((1, 1)),), "an array that is only read"),
        (mixes_elements, (np.zeros(1), 1), "a signed integer as an element of float64"),
        (depends_on, (np.zeros(1),), "a float as a condition"),
    ],
)
def test_anything_else_is_refused_with_its_place(function: Any, arguments: Any, why: str) -> None:
    with pytest.raises(UntranslatableError) as refused:
        CompiledFunction(function)(*arguments)
    place = f"test_floats.py:{function.__code__.co_firstlineno + 1}: "
    assert place in str(refused.value)
    assert why in str(refused.value)
