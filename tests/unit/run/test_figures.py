"""Figures within sentences."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from stepscope.run.figures import rank_names, rank_range_names, shortened_list


def test_ranks_that_follow_one_another_are_a_range():
    assert rank_names([3]) == "rank 3"
    assert rank_names((3, 2)) == "ranks 2, 3"
    assert rank_names((23, *range(16, 23), 40)) == "ranks 16 to 23, 40"
    assert rank_names(range(0, 20, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more"


@given(st.sets(st.integers(0, 60), min_size=1))
def test_the_ranks_named_and_the_number_of_the_others_are_all_ranks(numbers):
    words = rank_names(numbers)
    named, _, more = words.partition(" and ")
    ends = [re.findall(r"\d+", part) for part in named.split(", ")]
    told = {rank for end in ends for rank in range(int(end[0]), int(end[-1]) + 1)}
    others = int(more.removesuffix(" more")) if more else 0
    assert told <= numbers
    assert len(told) + others == len(numbers)
    assert words.startswith("ranks " if len(numbers) > 1 else "rank ")


def test_a_range_of_ranks_costs_nothing_however_long():
    assert rank_range_names([(0, 0)]) == "rank 0"
    assert rank_range_names([(0, 1), (7, 2**40)]) == "ranks 0, 1, 7 to 1099511627776"
    ranges = [(10 * place, 10 * place + place) for place in range(10)]
    # The parts that are named are 0, 10, 11, 20 to 22, …, 60 to 66; 30 ranks are left.
    assert rank_range_names(ranges).endswith("60 to 66 and 27 more")


def test_of_many_names_the_first_are_told_and_how_many_more_there_are():
    assert shortened_list(["a", "b"], 2) == "a, b"
    assert shortened_list(["a", "b", "c", "d"], 2) == "a, b and 2 more"
