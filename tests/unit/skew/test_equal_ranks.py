"""Nobody is late by chance alone: equal ranks pass as equal, whatever set of them is looked at."""

from __future__ import annotations

import math
import random

import pytest

from stepscope.skew.equal_ranks import LIMIT, beta, chance_of, student_tail


def _sets_accused(ranks: int, steps: int, seed: int, memory: float, spread: float) -> bool:
    """Whether the rank that comes last most often, or the two that do, seem late by more."""
    dice = random.Random(seed)
    now = [0.0] * ranks
    positions = []
    for _ in range(steps):
        now = [memory * one + dice.gauss(0, 1) for one in now]
        positions.append([one + spread * dice.paretovariate(2) for one in now])
    last = [0] * ranks
    for row in positions:
        last[row.index(max(row))] += 1
    order = sorted(range(ranks), key=lambda place: -last[place])
    for late in ([order[0]], order[:2]):
        if max(chance_of(positions, place, late) for place in late) <= LIMIT:
            return True
    return False


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("ranks", "steps"), [(3, 12), (4, 51), (4, 3), (16, 3), (16, 30)])
@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_equal_ranks_are_hardly_ever_accused(ranks, steps, memory):
    """Whatever the pauses of single steps, and though steps in a row are alike."""
    jobs = 200
    wrong = sum(_sets_accused(ranks, steps, seed, memory, seed % 3) for seed in range(jobs))
    # Twelve steps that are nearly one do not show that they are.
    assert wrong <= (0.11 if steps == 12 else 0.02) * jobs


def test_a_rank_that_is_always_last_is_beyond_chance():
    dice = random.Random(1)
    positions = [[dice.gauss(1.5 if place == 2 else 0, 1) for place in range(8)] for _ in range(50)]
    assert chance_of(positions, 2, [2]) <= LIMIT
    assert chance_of(positions, 3, [2, 3]) > LIMIT


def test_three_equal_steps_tell_a_rank_that_is_far_behind():
    positions = [[0.0, 0.1, 0.05, 9.0], [0.1, 0.0, 0.07, 9.1], [0.02, 0.1, 0.0, 8.9]]
    assert chance_of(positions, 3, [3]) <= LIMIT
    assert chance_of(positions[:2], 3, [3]) == 1.0


def test_three_steps_of_unsteady_ranks_tell_nothing():
    positions = [[0.0, 3.0, 1.0, 4.0], [2.0, 0.0, 3.0, 9.0], [1.0, 5.0, 0.0, 6.0]]
    assert chance_of(positions, 3, [3]) > LIMIT


@pytest.mark.parametrize(("t", "freedom", "chance"), [(2.228, 10, 0.025), (6.965, 2, 0.01)])
def test_students_t(t, freedom, chance):
    assert student_tail(t, freedom) == pytest.approx(chance, rel=0.001)


@pytest.mark.parametrize(("events", "cases"), [(36, 51), (5, 5), (1, 20)])
def test_the_beta_function_is_the_binomial_tail(events, cases):
    whole = sum(math.comb(cases, k) for k in range(events, cases + 1)) / 2**cases
    assert beta(events, cases - events + 1, 0.5) == pytest.approx(whole, rel=1e-9)
