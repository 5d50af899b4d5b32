"""Arrays in translated functions: what Python does with lists, or a refusal."""

from __future__ import annotations

import inspect
from types import GenericAlias
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.machine import calling
from stepscope.trace.machine.arrays import WRITTEN, Written
from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.functions import kind_of
from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.jit import jit
from stepscope.trace.machine.kinds import UntranslatableError

INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)
BELOW_ZERO = -1


@jit_inline
def total_of(values: npt.NDArray[np.int32], until: int) -> int:
    total = 0
    for index in range(min(until, len(values))):
        total += values[index]
    return total


@jit_inline
def mark(marks: Written[np.bool_], index: int) -> None:
    marks[index] = not marks[index]


@jit
def walk(
    small: npt.NDArray[np.int32],
    marks: Written[np.bool_],
    sums: Written[np.int64],
    is_backwards: bool,
    first: int,
) -> int:
    """Arrays that are read, written, changed in place, passed on and measured."""
    last, seen = len(small) - 1, 0
    for index in range(len(small)):
        place = last - index if is_backwards else index
        before = sums[place - 1] if place > 0 else first
        sums[place] = before + small[place] * total_of(small, place)
        sums[place] -= small[place] if marks[place] and sums[place] > 0 else 1
        sums[last - place] ^= int(small[place])
        if small[place] & 1:
            mark(marks, index)
            seen += 1
    copied = sums
    return seen * 1000 + len(copied) * 10 + len(marks)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**20), 2**20), st.booleans()), max_size=12),
    st.booleans(),
    st.integers(-(2**40), 2**40),
)
def test_elements_are_those_of_python_lists(rows, is_backwards, first) -> None:
    numbers, flags = [number for number, _ in rows], [flag for _, flag in rows]
    marks, sums = np.array(flags, np.bool_), np.zeros(len(rows), np.int64)
    found = walk(np.array(numbers, np.int32), marks, sums, is_backwards, first)
    listed = [0] * len(rows)
    names = {"total_of": total_of, "mark": mark}
    as_python: dict[str, Any] = {}
    source = inspect.getsource(walk.function).replace("@jit\n", "")  # type: ignore[attr-defined]
    exec("from __future__ import annotations\n" + source, names, as_python)
    assert found == as_python["walk"](numbers, flags, listed, is_backwards, first)
    assert marks.tolist() == flags
    assert sums.tolist() == listed


def copier(source: Any, target: Any) -> Any:
    """A function that copies between arrays of two types."""

    def copy(read, written) -> None:
        for index in range(len(read)):
            written[index] = read[index]

    copy.__annotations__ = {"read": npt.NDArray[source], "written": Written[target], "return": None}
    copy.__qualname__ = f"copy_{source.__name__}_{target.__name__}"
    return copy


@pytest.fixture(scope="module")
def copiers() -> dict[Any, Any]:
    pairs = [(np.int64, kind) for kind in INTEGERS] + [(kind, np.int64) for kind in INTEGERS]
    pairs += [(np.bool_, np.bool_), (np.uint64, np.uint64)]
    return {pair: CompiledFunction(copier(*pair)) for pair in pairs}


@settings(deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_elements_of_every_width_and_sign(copiers, values) -> None:
    longs = np.array(values, np.int64)
    for (source, target), copy in copiers.items():
        read = longs.astype(source)
        written = np.zeros(len(values), target)
        copy(read, written)
        assert written.tolist() == read.astype(target).tolist(), (source, target)


def first_of(values: npt.NDArray[np.int64]) -> int:
    return values[0]


def adds_to_first(values: Written[np.int64]) -> int:
    values[0] += 1
    return values[0]


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros(3, np.int32), "contiguous array of int64"),
        (np.zeros(3, ">i8"), "contiguous array of int64"),
        (np.zeros(6, np.int64)[::2], "contiguous array of int64"),
        (np.zeros((2, 2), np.int64), "with one dimension"),
        (np.zeros(25, np.uint8)[1:].view(np.int64), "contiguous array of int64"),
        ([1, 2], "contiguous array of int64"),
        (np.broadcast_to(np.int64(1), 1), "values is read-only"),
    ],
)
def test_arrays_that_are_not_as_declared_are_refused(array, why) -> None:
    with pytest.raises(TypeError, match=why):
        CompiledFunction(adds_to_first)(array)


def test_read_only_arrays_can_be_read() -> None:
    column = np.array([7, 8])
    column.flags.writeable = False
    assert CompiledFunction(first_of)(column) == 7
    with pytest.raises(ValueError, match="argument"):
        CompiledFunction(first_of)(column, column)


def last(values: npt.NDArray[np.int64]) -> int:
    return values[-1]


def before_first(values: npt.NDArray[np.int64]) -> int:
    return values[BELOW_ZERO]


def writes(values: npt.NDArray[np.int64]) -> None:
    values[0] = 1


@jit_inline
def increases(values: Written[np.int64]) -> None:
    values[0] += 1


def lets_write(values: npt.NDArray[np.int64]) -> None:
    increases(values)


def mixes_types(values: Written[np.int64]) -> None:
    values[0] = values[1] > 2


def looks_ahead(values: npt.NDArray[np.int64], at: int) -> bool:
    return 0 <= at < values[at]


def asks_an_array(values: npt.NDArray[np.int64]) -> int:
    return 1 if values else 2


def compares(values: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> bool:
    return values == others


def slices(values: npt.NDArray[np.int64]) -> int:
    return values[:2][0]


def picks(values: npt.NDArray[np.int64], at: np.uint64) -> int:
    return values[at]


def indexes_numbers(value: int) -> int:
    return value[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (last, "a negative index"),
        (before_first, "a negative index"),
        (writes, "an assignment to an array that is only read"),
        (lets_write, "a call with an array of int64"),
        (mixes_types, "a truth value as an element of int64"),
        (looks_ahead, "this in the later parts of a comparison"),
        (asks_an_array, "an array of int64 as a condition"),
        (compares, "Eq of an array of int64 and an array of int64"),
        (slices, "this expression"),
        (picks, "an unsigned integer instead of a signed integer"),
        (indexes_numbers, "an element of a signed integer"),
    ],
)
def test_anything_else_is_refused_with_its_place(function, why) -> None:
    with pytest.raises(UntranslatableError) as refused:
        CompiledFunction(function)(*(np.zeros(3, np.int64),) * 2)
    place = f"test_arrays.py:{function.__code__.co_firstlineno + 1}: {why}"
    assert place in str(refused.value)


def single_precision(values: npt.NDArray[np.float32]) -> int:
    return len(values)


def test_other_elements_are_refused() -> None:
    with pytest.raises(UntranslatableError, match="arrays of float32"):
        CompiledFunction(single_precision)(np.zeros(1, np.float32))


def test_arrays_are_known_where_numpy_names_them_by_an_alias() -> None:
    """Since numpy 2.5, `NDArray` is an alias of PEP 695: its origin is the alias, not `ndarray`."""
    element = TypeVar("element", bound=np.generic)

    class Alias:
        __value__ = np.ndarray[tuple[Any, ...], np.dtype[element]]

    named = GenericAlias(Alias, (np.int32,))
    plain = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]
    assert kind_of(named) == kind_of(plain) == kind_of(npt.NDArray[np.int32])
    assert kind_of(Annotated[named, WRITTEN]) == kind_of(Written[np.int32]) != kind_of(named)


def test_without_source_code_functions_of_arrays_run_as_python(monkeypatch) -> None:
    def no_source(_function: object) -> None:
        raise OSError("could not get source code")

    monkeypatch.setattr(calling, "machine_code_of", no_source)
    assert CompiledFunction(adds_to_first)(np.array([4])) == 5
    with pytest.raises(OSError, match="source"):
        CompiledFunction(lambda: 1)()


@jit_inline
def put(values: Written[np.int32], at: int, value: int) -> None:
    values[at] = value


@jit
def take(values: npt.NDArray[np.int64], at: int) -> tuple[int, int]:
    return at, values[at]


@jit
def move(values: npt.NDArray[np.int64], read: int, targets: Written[np.int32], written: int) -> int:
    """Reads in a function that is called, and writes in one that is inlined."""
    at, value = take(values, read)
    put(targets, written, value)
    return at + 1


@jit
def fill(targets: Written[np.int32], until: int) -> None:
    for index in range(until):
        targets[index] += index


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(getattr(function, "function", function))
    return first + next(number for number, line in enumerate(lines) if text in line)


@settings(deadline=None)
@given(
    st.integers(0, 3),
    st.one_of(st.integers(-4, 6), st.sampled_from([2**63 - 1, -(2**63), 2**61, 2**32])),
    st.one_of(st.integers(-4, 6), st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**31)])),
)
def test_an_index_outside_an_array_raises_and_touches_nothing(length, read, written) -> None:
    around = np.arange(100, 110, dtype=np.int32)  # what lies around the array that is written to
    targets, values = around[3 : 3 + length], np.arange(length, dtype=np.int64)
    before = around.copy()
    wrong = None
    if not 0 <= read < length:
        wrong = take, "values[at]"
    elif not 0 <= written < length:
        wrong = put, "values[at]"
    if wrong:
        with pytest.raises(IndexError, match=f"move: .* at line {line_of(*wrong)}$"):
            move(values, read, targets, written)
    else:
        assert move(values, read, targets, written) == read + 1
        before[3 + written] = values[read]
    assert around.tolist() == before.tolist()


def test_a_loop_that_runs_too_far_ends_where_its_array_does() -> None:
    around = np.zeros(6, np.int32)
    fill(around[:4], 4)
    with pytest.raises(IndexError, match=r"fill: an index outside an array"):
        fill(around[:4], 2**40)
    assert around.tolist() == [0, 2, 4, 6, 0, 0]
