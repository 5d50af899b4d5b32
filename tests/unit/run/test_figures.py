"""Figures within sentences."""

from __future__ import annotations

from stepscope.run.figures import ranks_in_words


def test_ranks_that_follow_one_another_are_a_range():
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words((3, 2)) == "ranks 2, 3"
    assert ranks_in_words((23, *range(16, 23), 40)) == "ranks 16 to 23, 40"
    assert ranks_in_words(range(0, 20, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, …"
