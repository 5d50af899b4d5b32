"""What sets a rank apart, against a plain reading of the definition."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from stepscope.advice.job.imbalance import odd_parts
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.partition import Part, Partition

NAMES = ("compute", "idle: input", "idle: Python")


@st.composite
def partitions(draw):
    made = []
    for rank in range(draw(st.integers(1, 6))):
        names = draw(st.lists(st.sampled_from(NAMES), unique=True))
        parts = tuple(Part(name, draw(st.integers(0, 5)) * 1_000) for name in names)
        total_ns = sum(part.total_ns for part in parts)
        basis = draw(st.sampled_from(["trace", "record"]))
        made.append((rank, Partition(parts, total_ns, draw(st.integers(1, 3)), basis)))
    return made


@given(partitions())
def test_each_part_is_compared_with_the_median_of_the_other_ranks(made):
    limits = Thresholds()
    expected = set()
    for rank, mine in made:
        others = [other for number, other in made if number != rank and other.basis == mine.basis]
        for part in mine.parts if others else ():
            usual = round(statistics.median_high(one.of(part.name) / one.steps for one in others))
            taken = round(part.total_ns / mine.steps)
            least = max(1, limits.odd_rank_share * mine.total_ns / mine.steps)
            if taken >= limits.odd_rank_factor * usual and taken - usual >= least:
                expected.add((rank, part.name, taken, usual))
    assert set(odd_parts(made, limits).iter_rows()) == expected


def test_of_three_ranks_two_that_wait_alike_do_not_stand_apart():
    """In backward both wait for the third, whose input is slow."""
    late = Partition((Part("input", 18_000), Part("backward", 7_000)), 25_000, 1, "record")
    waiting = Partition((Part("input", 300), Part("backward", 24_700)), 25_000, 1, "record")
    odd = odd_parts([(0, waiting), (1, late), (2, waiting)], Thresholds())
    assert odd.rows() == [(1, "input", 18_000, 300)]
