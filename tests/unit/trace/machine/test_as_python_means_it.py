"""What is translated means what Python means; anything else is refused, with its place."""

# ruff: noqa: A001, B007, F823, F841, RET503, RET504 - the faults that are refused

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.random_loops import Program, random_program

import stepscope
from stepscope.trace.machine import instructions
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.helpers import jit_helper
from stepscope.trace.machine.kinds import UntranslatableError

Longs = npt.NDArray[np.int64]
name = 10
BIG = 2**63
WORD = 2**64 - 1


@jit_helper
def touch(values: Written[np.int64]) -> int:
    values[0] = 77
    return 5


def local_later(values: Longs) -> int:
    total = 0
    for i in range(len(values)):
        if i > 0:
            total += name
        name = values[i]
    return total


def called_local(values: Longs) -> int:
    for len in range(3):
        values[0]
    return len(values)  # type: ignore[operator]


def assigned_in_one_branch(values: Longs) -> int:
    if values[0] > 5:
        late = values[0]
    return late


def assigned_in_a_loop(values: Longs) -> int:
    for i in range(len(values)):
        late = i
    return late


def counter_after_a_loop(values: Longs) -> int:
    for i in range(len(values)):
        values[0]
    return i


def assigned_after_a_break(values: Longs) -> int:
    while True:
        if values[0] > 3:
            break
        late = values[0]
    return late


def not_kept(values: Longs) -> int:
    for _ in range(3):
        values[0]
    _ = 7
    return _


def falls_off(values: Longs) -> int:
    if values[0] > 5:
        return values[0]


def falls_off_a_loop(values: Longs) -> int:
    while True:
        if values[0] > 5:
            break
        return 1


def large_constant(values: Longs) -> int:
    return 1 if values[0] < BIG else 0


def shifted_too_far(values: Longs) -> int:
    return values[0] << 64


def calls_later(values: Written[np.int64]) -> int:
    return 1 if 10 < 3 < touch(values) else 0


def goes_on_after_in(values: Longs) -> bool:
    return values[0] in (1, 2) == 3


def number_of_or(values: Longs) -> bool:
    found = values[0] or values[1] > 3
    return found


def with_keywords(values: Longs) -> int:
    return max(values[0], values[1], key=len)


def recursive(values: Longs) -> int:
    return recursive_helper(values)


@jit_helper
def recursive_helper(values: Longs) -> int:
    return 1 if values[0] > 3 else recursive_helper(values)


def closed_over(values: Longs) -> int:
    return values[0]


def make(name):
    def inner(values: Longs) -> int:
        return values[0] + name

    return inner


REFUSED = {
    local_later: "name, which may have no value here,",
    called_local: "this name",
    assigned_in_one_branch: "late, which may have no value here,",
    assigned_in_a_loop: "late, which may have no value here,",
    counter_after_a_loop: "i, which may have no value here,",
    assigned_after_a_break: "late, which may have no value here,",
    not_kept: "_, which may have no value here,",
    falls_off: "an end without a result",
    falls_off_a_loop: "an end without a result",
    large_constant: "a number of more than 64 bits",
    shifted_too_far: "a shift by 64",
    calls_later: "this in the later parts of a comparison",
    goes_on_after_in: "a comparison that goes on after `in`",
    number_of_or: "a signed integer as a result of and or or",
    with_keywords: "this call",
    recursive: "functions that call themselves",
    make(1): "name, which may have no value here,",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_python_means_otherwise_is_refused(function) -> None:
    with pytest.raises(UntranslatableError, match=REFUSED[function]):
        CompiledFunction(function)(np.array([1, 2]))


def first(values: Longs, number: int, share: float, *, is_on: bool) -> float:
    return float(values[0] + number) * share if is_on else share


def flagged(values: Longs, number: int, share: float, is_on: bool) -> float:
    return float(values[0] + number) * share if is_on else share


FLAGGED = CompiledFunction(flagged)


@pytest.mark.parametrize(
    "arguments",
    [(3, 0.5, True), (np.int32(3), np.float32(0.5), np.False_), (True, 2, True),
     (np.uint64(2**62), -0.0, True), (-(2**63), 1.0, True)],
)  # fmt: skip
def test_arguments_that_are_exactly_numbers_are_taken(arguments) -> None:
    values = np.array([0])
    assert FLAGGED(values, *arguments) == flagged([0], *(map(_plain, arguments)))


def _plain(argument):
    return argument.item() if isinstance(argument, np.generic) else argument


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2.7, 0.5, True), TypeError),
        (("3", 0.5, True), TypeError),
        ((None, 0.5, True), TypeError),
        ((2**63, 0.5, True), OverflowError),
        ((-(2**63) - 1, 0.5, True), OverflowError),
        ((2**64 + 3, 0.5, True), OverflowError),
        ((np.uint64(2**63), 0.5, True), OverflowError),
        ((1, "0.5", True), TypeError),
        ((1, 2**53 + 1, True), OverflowError),
        ((1, 0.5, 1), TypeError),
        ((1, 0.5, "yes"), TypeError),
    ],
)
def test_arguments_that_are_something_else_are_refused(arguments, error) -> None:
    with pytest.raises(error):
        FLAGGED(np.array([0]), *arguments)


class Doubled(np.ndarray):
    def __getitem__(self, at):
        return 2 * super().__getitem__(at)


def test_arrays_with_other_elements_than_memory_has_are_refused() -> None:
    with pytest.raises(TypeError, match="no contiguous array"):
        FLAGGED(np.array([3]).view(Doubled), 1, 0.5, True)
    with pytest.raises(TypeError, match="no contiguous array"):
        FLAGGED(np.ma.masked_array([3], [True]), 1, 0.5, True)


def counted(values: Longs) -> int:
    count = 0
    for _ in range(values[0], values[1], 3):
        count += 1
        if count > 100:
            return -1
    return count


def shifted(values: Longs, by: int) -> int:
    return (values[0] << by) ^ (values[0] >> by)


def divided(values: npt.NDArray[np.uint64]) -> int:
    return np.int64(values[0] // values[1] + values[0] % values[1])


LIMITS = (-(2**63), -(2**63) + 4, -1, 0, 1, 5, 2**63 - 5, 2**63 - 2, 2**63 - 1)


def test_a_range_ends_where_python_ends_it() -> None:
    loop = CompiledFunction(counted)
    for start in LIMITS:
        for stop in LIMITS:
            expected = min(len(range(start, stop, 3)), 101) if start < stop else 0
            assert loop(np.array([start, stop])) == (-1 if expected > 100 else expected)


def test_a_shift_of_any_size_is_pythons() -> None:
    loop = CompiledFunction(shifted)
    for value in LIMITS:
        for by in (0, 1, 31, 63, 64, 65, 127, 128, 2**40, 2**63 - 1):
            left = value << min(by, 200)
            expected = (left ^ (value >> by)) & (2**64 - 1)
            assert loop(np.array([value]), by) & (2**64 - 1) == expected
        with pytest.raises(ValueError, match="a shift by a negative number, at line "):
            loop(np.array([value]), -1)


def test_a_division_by_zero_does_not_end_the_process() -> None:
    loop = CompiledFunction(divided)
    assert loop(np.array([17, 5], np.uint64)) == 5
    with pytest.raises(ZeroDivisionError, match="at line "):
        loop(np.array([17, 0], np.uint64))


def words(values: Longs) -> int:
    return np.int64(np.uint64(WORD) >> np.uint64(1)) + values[0]


def test_words_may_be_larger_than_signed_numbers() -> None:
    assert CompiledFunction(words)(np.array([0])) == 2**63 - 1


def test_who_uses_addresses_is_listed_with_the_reason() -> None:
    package = Path(stepscope.__file__).parent
    listed = re.findall(r"^`([a-z_/.]+)`$", instructions.__doc__ or "", re.MULTILINE)
    users = [
        path.relative_to(package / "trace").as_posix()
        for path in package.rglob("*.py")
        if "trace.machine.instructions import" in path.read_text("utf-8")
        and path.parent != package / "trace" / "machine"
    ]
    assert len(users) > 10
    assert all(any(user.startswith(place) for place in listed) for user in users), users
    assert all(any(user.startswith(place) for user in users) for place in listed)


# -- programs at random ----------------------------------------------------------------------------


def check(seed: int, folder: Path) -> bool:
    """Whether a program was translated; if so, it does what Python does."""
    program: Program = random_program(seed)
    function, reference = program.load(folder)
    loop = CompiledFunction(function)
    was_translated = False
    for numbers, arguments in program.inputs():
        expected = program.outcome(reference, numbers, arguments)
        try:
            found = program.outcome(loop, numbers, arguments)
        except UntranslatableError:
            return False
        was_translated = True
        assert found == expected, f"seed {seed}: {numbers} {arguments}\n{program.text}"
    return was_translated


def check_all(seeds: range, folder: Path) -> None:
    accepted = sum(check(seed, folder) for seed in seeds)
    assert accepted > len(seeds) * 0.3  # or else this tests nothing


def test_random_programs_do_what_python_does_or_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path))
    check_all(range(60), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_random_programs_do_what_python_does_or_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path))
    first_seed = int(os.environ.get("STEPSCOPE_SEED", "1000"))
    check_all(range(first_seed, first_seed + 10_000), tmp_path)


# -- code that is kept -----------------------------------------------------------------------------

SWAPPED = """
import numpy as np, numpy.typing as npt
def high(a: npt.NDArray[np.int64]) -> int:
    return max(a[0], a[1])
def low(a: npt.NDArray[np.int64]) -> int:
    return min(a[0], a[1])
"""
RUNS_ON = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from stepscope.trace.machine.jit import jit
import swapped
if sys.argv[2:]:
    with open(sys.argv[1] + "/swapped.py", "w") as file:
        file.write(sys.argv[2])
a = np.array([1, 2])
print(jit(swapped.low)(a), jit(swapped.high)(a))
"""


def test_an_upgrade_under_a_running_process_leaves_no_wrong_code(tmp_path) -> None:
    (tmp_path / "swapped.py").write_text(SWAPPED)
    other = SWAPPED.replace("max", "@").replace("min", "max").replace("@", "min") + "# other"
    environment = os.environ | {"STEPSCOPE_COMPILED": str(tmp_path / "kept")}

    def low_and_high(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", RUNS_ON, str(tmp_path), *words],
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    assert low_and_high(other) == "1 2"
    assert low_and_high() == "2 1"
    assert low_and_high(SWAPPED) == "2 1"
    assert low_and_high() == "1 2"
