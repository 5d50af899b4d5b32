"""What functions take: tuples of arrays, arrays of a type that is chosen later, and each other."""

from __future__ import annotations

import sys
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace.machine import build
from stepscope.trace.machine.arrays import Written, WrittenTable
from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.helpers import is_jit_helper, jit_helper
from stepscope.trace.machine.jit import compiled, jit
from stepscope.trace.machine.kinds import UntranslatableError

Number = TypeVar("Number", np.uint32, np.int64)
Table = tuple[npt.NDArray[np.bool_], Written[Number], npt.NDArray[Number]]
STEP = 5


@jit_helper
def weighed(values: npt.NDArray[Number], at: int) -> int:
    """The element before, and a constant."""
    return int(values[at - 1]) * STEP if at > 0 else STEP


@jit_helper
def ends_of(values: npt.NDArray[Number]) -> tuple[int, int, bool]:
    if not len(values):
        return 0, 0, False
    return int(values[0]), int(values[len(values) - 1]), True


@jit_helper
def change(table: Table[Number], at: int) -> None:
    _, sums, values = table
    sums[at] += weighed(values, at)


def add_up(count: int, table: Table[Number], only_chosen: bool) -> int:
    """A tuple that is taken apart, and passed on as a whole; and items that are not kept."""
    chosen, sums, _ = table
    first, last, _ = ends_of(sums)
    for row in range(count):
        if only_chosen and not chosen[row]:
            continue
        change(table, row)
    row = first  # assigned again: the loop has it as well
    return row * 3 + last


@pytest.mark.parametrize("kind", [np.uint32, np.int64])
@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.booleans(), st.integers(0, 2**20)), max_size=9), only=...)
def test_tuples_of_arrays_of_a_chosen_type_are_as_in_python(kind, rows, only: bool) -> None:
    chosen = np.array([mark for mark, _ in rows], np.bool_)
    values = np.array([value for _, value in rows], kind)
    sums, expected = values.copy(), values.copy()
    loop = jit(add_up, np.dtype(kind))
    found = loop(len(rows), (chosen, sums, values), only)
    assert found == add_up(len(rows), (chosen, expected, values), only)
    assert sums.tolist() == expected.tolist()


def test_an_index_outside_an_array_of_a_tuple_raises() -> None:
    one = np.ones(2, np.int64)
    loop = jit(add_up, np.dtype(np.int64))
    with pytest.raises(IndexError, match=r"add_up.int64: an index outside an array"):
        loop(3, (np.ones(3, np.bool_), one, one.copy()), False)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ((np.ones(1, np.bool_), np.ones(1, np.int64)), "table is no tuple of 3"),
        ([np.ones(1, np.bool_), np.ones(1, np.int64), np.ones(1, np.int64)], "table is no tuple"),
        (np.ones(3, np.int64), "table is no tuple of 3"),
        ((np.ones(1), np.ones(1, np.int64), np.ones(1, np.int64)), r"table\[0\] is no contiguous"),
        (
            (np.ones(1, np.bool_), np.ones(1, np.uint32), np.ones(1, np.int64)),
            r"table\[1\] is no contiguous array of int64",
        ),
        (
            (np.ones(1, np.bool_), np.broadcast_to(np.int64(1), 1), np.ones(1, np.int64)),
            r"table\[1\] is read-only",
        ),
    ],
)
def test_tuples_that_are_not_as_declared_are_refused(table, why) -> None:
    with pytest.raises(TypeError, match=why):
        jit(add_up, np.dtype(np.int64))(1, table, False)


@pytest.mark.parametrize("element", [None, np.dtype(np.int32)])
def test_a_type_that_is_not_among_those_to_choose_from_is_refused(element) -> None:
    with pytest.raises(UntranslatableError, match="arrays of ~Number as"):
        jit(add_up, element)(0, (), False)


def lets_write(table: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]) -> None:
    writes(table)


@jit_helper
def writes(table: tuple[npt.NDArray[np.int64], Written[np.int64]]) -> None:
    read, written = table
    written[0] = read[0]


def test_what_may_only_be_read_is_not_passed_on_to_be_written() -> None:
    with pytest.raises(UntranslatableError, match="a call with .*array of int64"):
        CompiledFunction(lets_write)((np.ones(1, np.int64),) * 2)


def test_a_function_that_is_called_stays_a_function_of_python() -> None:
    assert is_jit_helper(weighed)
    assert weighed(np.array([7, 8], np.uint32), 1) == 35
    assert not is_jit_helper(add_up)
    assert not is_jit_helper([])


def unmarked(value: int) -> int:
    return value


def calls_unmarked(value: int) -> int:
    return unmarked(value)


def test_other_functions_are_not_called() -> None:
    with pytest.raises(UntranslatableError, match="this name"):
        CompiledFunction(calls_unmarked)(1)


def calls_weighed(values: npt.NDArray[Number]) -> int:
    return weighed(values, 0)


def test_code_is_compiled_anew_if_a_constant_of_a_called_function_changes(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path))
    made = []
    compile_it = build._compiled

    def noted(function, machine):
        made.append(function.name)
        return compile_it(function, machine)

    monkeypatch.setattr(build, "_compiled", noted)

    def call(kind):
        compiled.cache_clear()
        return jit(calls_weighed, np.dtype(kind))(np.zeros(1, kind))

    assert [call(np.uint32), call(np.uint32), call(np.int64)] == [5, 5, 5]
    monkeypatch.setattr(sys.modules[__name__], "STEP", 9)
    assert call(np.uint32) == 9
    assert [name.rpartition(".")[2] for name in made] == ["uint32", "int64", "uint32"]


@jit_helper
def move(table: WrittenTable[Number], row: int, to: int) -> None:
    table[row, to] += table[to & 1, row]


def mix(table: WrittenTable[Number], row: int, column: int, value: int) -> int:
    """Elements that are read, set, changed in place, and those of a table that is passed on."""
    table[row, column] = table[0, 0] + value
    table[len(table) - 1, 0] = table[row, column] if value & 1 else 7
    if row < 2 and column < 2:
        move(table, row, column)
    return table[row, column] * 10 + len(table)


@pytest.mark.parametrize("kind", [np.uint32, np.int64])
@settings(deadline=None)
@given(
    rows=st.integers(2, 4),
    columns=st.integers(2, 4),
    row=st.one_of(st.integers(-2, 5), st.sampled_from([2**62, -(2**63), 2**63 - 1])),
    column=st.one_of(st.integers(-2, 5), st.sampled_from([2**61, -(2**63), 2**63 - 1])),
    value=st.integers(0, 99),
)
def test_tables_are_as_in_python_and_checked_by_row_and_by_column(
    kind, rows, columns, row, column, value
) -> None:
    around = np.arange(100, 130, dtype=kind)  # what lies around the table
    before = around.copy()
    table = around[7 : 7 + rows * columns].reshape(rows, columns)
    loop = jit(mix, np.dtype(kind))
    if 0 <= row < rows and 0 <= column < columns:
        expected = before[7 : 7 + rows * columns].reshape(rows, columns)
        assert loop(table, row, column, value) == mix(expected, row, column, value)
    else:
        with pytest.raises(IndexError, match="an index outside an array"):
            loop(table, row, column, value)
    assert around.tolist() == before.tolist()


def first_row(table: WrittenTable[np.int64]) -> int:
    return table[0]


def too_many(values: npt.NDArray[np.int64]) -> int:
    return values[0, 0]


def last_column(table: WrittenTable[np.int64]) -> int:
    return table[0, -1]


def passes_a_table(table: WrittenTable[np.int64]) -> None:
    writes((table, table))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (first_row, "1 indices of a written table of int64"),
        (too_many, "2 indices of an array of int64"),
        (last_column, "a negative index"),
        (passes_a_table, r"a call with \(a written table of int64, a written table of int64\)"),
    ],
)
def test_other_uses_of_tables_are_refused(function, why) -> None:
    with pytest.raises(UntranslatableError, match=why):
        CompiledFunction(function)(np.zeros((2, 2), np.int64))


@pytest.mark.parametrize("table", [np.zeros(4, np.int64), np.zeros((2, 4), np.int64)[:, ::2]])
def test_arrays_that_are_no_tables_are_refused(table) -> None:
    with pytest.raises(TypeError, match="no contiguous array of int64 with two dimensions"):
        jit(mix, np.dtype(np.int64))(table, 0, 0, 0)


@jit
def reassigned(values: npt.NDArray[np.int64], often: int) -> int:
    """Variables that are assigned once, but in a loop, and parameters that are assigned."""
    before = often
    total = row = 0
    while often > 0:
        row = often - 1
        often -= 1
        if row < len(values):
            found = values[row]
            total += found
    last = values[row] if row < len(values) else 0
    values_again = values
    return total * 100 + last * 10 + before + len(values_again)


@settings(deadline=None)
@given(st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=5), st.integers(1, 9))
def test_variables_keep_what_was_assigned_last(listed, often) -> None:
    values = np.array(listed, np.int64)
    assert reassigned(values, often) == reassigned.function(listed, often)  # type: ignore[attr-defined]
