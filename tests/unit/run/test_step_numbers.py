"""Numbers of steps in words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.run.figures import step_ranges


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([3], "step 3"),
        ([3, 4], "steps 3, 4"),
        ([3, 4, 5, 9], "steps 3 to 5, 9"),
        ([0, 2**60], f"steps 0, {2**60}"),
        ([*range(0, 16, 2)], "steps 0, 2, 4, 6, 8, 10, 12, 14"),
        ([*range(0, 3000, 2)], "1,500 steps between 0 and 2998"),
    ],
)
def test_in_words(steps, words):
    assert step_ranges(steps) == words


@given(st.sets(st.integers(0, 40), min_size=2, max_size=40))
def test_a_list_tells_each_step_and_no_other(steps):
    words = step_ranges(sorted(steps))
    if (told := re.fullmatch(r"([\d,]+) steps between (\d+) and (\d+)", words)) is not None:
        assert [int(number) for number in told.groups()] == [len(steps), min(steps), max(steps)]
        return
    listed = set()
    for part in words.removeprefix("steps ").split(", "):
        first, _, last = part.partition(" to ")
        listed |= set(range(int(first), int(last or first) + 1))
    assert listed == steps
