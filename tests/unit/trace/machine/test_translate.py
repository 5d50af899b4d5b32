"""Compiled functions do what they do in Python, or are refused with their place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import (
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
    put_word,
    word_at,
)
from stepscope.trace.machine.jit import jit
from stepscope.trace.machine.kinds import UntranslatableError

SEVEN = 7
HIGH = np.uint64(1 << 63)
small = st.integers(-(2**20), 2**20)


@jit
def control(first: int, second: int, third: int) -> int:
    """Loops in loops, with every way out of them."""
    total = steps = 0
    is_even = False
    for number in range(first & 15, (second & 31) + 1):
        if number == SEVEN:
            continue
        left = third
        while True:
            steps += 1
            if not left or steps > 500:
                break
            left = left >> 1 if left > 0 else 0
            if ((left & 3) == 3 and not (steps & 1)) or left in (5, 6):
                total += left
                continue
            total -= 1 if is_even else 2
        number += 100  # does not change the loop
        is_even = (total & 1) == 0
        if total > 10_000 or (total < -10_000 and is_even):
            return -steps
    for _ in range(3):
        total += min(first, second) - max(second, third)
    return total ^ steps if -5 <= first < second else ~total | (steps << 2)


@jit
def strides(first: int, last: int) -> int:
    """Loops that count up by more than one."""
    total = 0
    for number in range(first, last, 3):
        if number & 7 == SEVEN:
            continue
        total = total * 31 + number
        for other in range(number, number + 9, 4):
            total ^= other
    return total


@given(st.integers(-20, 20), st.integers(-20, 20))
def test_steps_are_those_of_python(first: int, last: int) -> None:
    found, expected = strides(first, last), strides.function(first, last)  # type: ignore[attr-defined]
    assert (found - expected) % 2**64 == 0  # numbers wrap


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(small, small, small)
def test_control_flow_is_that_of_python(first: int, second: int, third: int) -> None:
    assert control(first, second, third) == control.function(first, second, third)  # type: ignore[attr-defined]


@jit_inline
def both(first: int, second: int) -> tuple[np.uint64, bool]:
    return np.uint64(first) + np.uint64(second), first > second


@jit
def parts(first: int, second: int, out: int) -> None:
    total, is_more = both(first, second)
    put_long(out, 0, as_long(total // np.uint64(3)))
    put_long(out, 1, as_long(total % np.uint64(10)))
    put_long(out, 2, as_long(total >> np.uint64(60)))
    put_long(out, 3, (first - second) >> 3)
    if is_more != (total > HIGH):
        put_long(out, 4, 1)


any_long = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(any_long, any_long)
def test_numbers_have_64_bits_with_and_without_a_sign(first: int, second: int) -> None:
    out = np.zeros(5, np.int64)
    parts(first, second, out.ctypes.data)
    total = (first + second) % 2**64
    difference = (first - second + 2**63) % 2**64 - 2**63
    signed = [total // 3, total % 10, total >> 60, difference >> 3]
    assert out.tolist()[:4] == signed
    assert out[4] == ((first > second) != (total > 2**63))


@jit
def memory(source: int, target: int) -> int:
    put_byte(target, 1, byte_at(source, 2) + 256)
    put_int(target, 1, int_at(source, 1))
    put_long(target, 1, long_at(source, 1))
    put_word(target, 17, word_at(source, 3))
    return byte_at(source, 0) + int_at(source, 1)


def test_memory_is_read_and_written_at_addresses() -> None:
    source = np.array([0xFF, 2, 3, 4, 0xFE, 0xFF, 0xFF, 0xFF, *range(9, 24)], np.uint8)
    target = np.zeros(32, np.uint8)
    assert memory(source.ctypes.data, target.ctypes.data) == 255 - 2
    expected = bytes([0, 3, 0, 0]) + source[4:16].tobytes() + b"\0" + source[3:11].tobytes()
    assert target.tobytes() == expected.ljust(32, b"\0")


def divides(first: int) -> int:
    return first // 2


def mixes(first: int) -> int:
    return first + as_long(np.uint64(first) + 1)  # type: ignore[operator]


def changes(first: int) -> int:
    value = first
    if first:
        value = first > 2
    return value


def lists(first: int) -> int:
    return [first][0]


def raises(first: int) -> int:
    raise ValueError(first)


def counts_down(first: int) -> int:
    for number in range(first, 0, -1):
        first += number
    return first


def steps_by_a_variable(first: int) -> int:
    for number in range(0, 9, first):
        first += number
    return first


def steps_by_nothing(first: int) -> int:
    for number in range(first, 9, 0):
        first += number
    return first


def calls_others(first: int) -> int:
    return len(str(first))


def single_precision(first: np.float32) -> int:
    return 1


def truncates(first: int) -> int:
    return int(float(first))


def mixes_with_floats(first: int) -> float:
    return first * 0.5


def floors(first: int) -> float:
    return float(first) // 2.0


def returns_another(first: int) -> int:
    return first > 1


@pytest.mark.parametrize(
    ("function", "line", "why"),
    [
        (divides, 1, "FloorDiv of a signed integer and a signed integer"),
        (mixes, 1, "Add of an unsigned integer and a signed integer"),
        (changes, 3, "a truth value for value, which is a signed integer,"),
        (lists, 1, "this expression"),
        (raises, 1, "this statement"),
        (counts_down, 1, "a loop over anything but `range`"),
        (steps_by_a_variable, 1, "a loop over anything but `range`"),
        (steps_by_nothing, 1, "a loop over anything but `range`"),
        (calls_others, 1, "this name"),
        (returns_another, 1, "a truth value as the result"),
        (truncates, 1, "this call"),
        (mixes_with_floats, 1, "Mult of a signed integer and a float"),
        (floors, 1, "FloorDiv of a float and a float"),
    ],
)
def test_anything_else_is_refused_with_its_place(function, line, why) -> None:
    with pytest.raises(UntranslatableError) as refused:
        CompiledFunction(function)(1)
    place = f"test_translate.py:{function.__code__.co_firstlineno + line}: {why}"
    assert place in str(refused.value)


def test_other_types_are_refused() -> None:
    with pytest.raises(UntranslatableError, match="float32"):
        CompiledFunction(single_precision)(1)
