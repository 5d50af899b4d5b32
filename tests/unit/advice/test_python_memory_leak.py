"""A leak that tracemalloc saw is a finding, with its places; steady and uneven memory is none."""

from __future__ import annotations

import pytest

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Severity
from stepscope.advice.rules import RULES
from stepscope.advice.rules.memory.windows import find_python_memory_leak
from stepscope.analysis.record.python_memory import read_python_memory

HEAD = (
    "Memory of Python objects as counted by tracemalloc.\n\n    step     at end     peak  bytes\n"
)


def table(ends, places=(), incomplete=()):
    lines = [
        f"{step:>8} {size:>16,} {size + 5:>16,}" + ("  (incomplete)" if step in incomplete else "")
        for step, size in enumerate(ends, start=10)
    ]
    lines += ["", "Change over the window: +1 bytes, +1 bytes per step", ""]
    for each, place in places:
        lines.append(f"{each * 5:>+16,} {each:>+16,} {3:>+10,} {each * 9:>16,}  {place}")
        lines.append(f"{'':>62}  called from /u/outer.py:3")
    lines.append(f"{5:>+16,} {1:>+16,} {3:>+10,} {9:>16,}  12 other locations")
    return HEAD + "\n".join(lines) + "\n"


def found_in(tmp_path, text):
    path = tmp_path / "python_memory.txt"
    path.write_text(text)
    return find_python_memory_leak(Subject(0, python_memory=read_python_memory(path)))


def test_a_leak_is_found_with_its_places(tmp_path):
    ends = [9_000_000, *(10_000_000 + 2_000_000 * k for k in range(5))]
    places = [
        (300_000, "/u/log.py:9"),
        (1_700_000, "/u/train.py:4  kept.append(x)"),
        (-5, "/u/a.py:1"),
    ]
    (found,) = found_in(tmp_path, table(ends, places))
    assert RULES[found.id] is find_python_memory_leak
    assert found.title.endswith("/u/train.py:4  kept.append(x)")
    assert found.severity is Severity.HIGH
    told = {one.label: one.value for one in found.evidence}
    assert told == {
        "left behind by each step": 2_000_000,
        "of it at /u/train.py:4  kept.append(x)": 1_700_000,
        "of it at /u/log.py:9": 300_000,
        "held at the end of the window": 18_000_000,
    }
    assert found.steps == tuple(range(10, 16))


LIBRARY = "/env/lib/python3.11/site-packages/numpy/_core/numeric.py:232  a = empty(shape, dtype)"


@pytest.mark.parametrize(
    ("caller", "title", "asks"),
    [
        (
            "/u/train.py:3",
            "/u/train.py:3, in numpy/_core/numeric.py:232  a = empty(shape, dtype)",
            False,
        ),
        ("<frozen abc>:119", "numpy/_core/numeric.py:232  a = empty(shape, dtype)", True),
    ],
)
def test_a_line_of_a_library_is_named_with_the_one_that_calls_it(tmp_path, caller, title, asks):
    text = table([2_000_000 * k for k in range(6)], [(1_700_000, LIBRARY)])
    (found,) = found_in(tmp_path, text.replace("/u/outer.py:3", caller))
    assert found.title == f"every step leaves Python objects behind at {title}"
    assert ("tracemalloc_frames=8" in found.advice) is asks


@pytest.mark.parametrize(
    "ends",
    [
        [5_000_000] * 6,
        [0, 5_000_000, 5_000_100, 5_000_200, 5_000_300],
        [0, 1_000_000, 3_000_000, 2_000_000, 4_000_000, 3_000_000],
        [0, 1_000_000, 2_000_000],
        [0, 9_000_000, 9_000_000, 9_000_000, 18_000_000, 18_000_000],
    ],
)
def test_what_does_not_grow_in_each_step_is_no_leak(tmp_path, ends):
    assert found_in(tmp_path, table(ends)) == []


def test_a_step_that_was_not_completed_does_not_count(tmp_path):
    ends = [1_000_000 * k for k in range(6)]
    (found,) = found_in(tmp_path, table(ends, incomplete=(15,)))
    assert found.steps[-1] == 14
    assert found_in(tmp_path, table(ends, incomplete=(13, 14, 15))) == []


def test_a_damaged_or_missing_file_is_nothing(tmp_path):
    assert read_python_memory(tmp_path / "missing") is None
    assert found_in(tmp_path, "no table\n\x00" + "9" * 5000) == []
    assert find_python_memory_leak(Subject(0)) == []
