"""Who is accused on machines whose processes lose their CPU now and then."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.blame.beyond_chance import is_beyond_chance, is_more_often

MS = 1e6
NOTABLE_NS = 0.5 * MS
JOBS = 400


def disturbed(seed, steps, ranks, chance):
    """Excess of healthy ranks: a little jitter, and losing the CPU for 4 ms on average."""
    random = np.random.default_rng(seed)
    lost = (random.random((steps, ranks)) < chance) * random.exponential(4 * MS, (steps, ranks))
    return np.clip(random.normal(0, 0.1 * MS, (steps, ranks)) + lost, 0, None)


def stragglers(excess):
    """Ranks beyond chance, of those with enough excess to matter."""
    enough = np.flatnonzero(excess.mean(axis=0) > NOTABLE_NS)
    return [int(rank) for rank in enough if is_beyond_chance(excess, rank, NOTABLE_NS)]


@pytest.mark.parametrize("chance", [0.05, 0.15, 0.4])
@pytest.mark.parametrize(("steps", "ranks"), [(8, 4), (8, 8), (20, 4)])
def test_few_healthy_jobs_accuse_anybody(steps, ranks, chance):
    false = sum(bool(stragglers(disturbed(seed, steps, ranks, chance))) for seed in range(JOBS))
    assert false <= 0.08 * JOBS


@pytest.mark.parametrize("steps", [3, 8, 20])
def test_a_rank_that_is_always_slower_is_accused(steps):
    found = 0
    for seed in range(JOBS):
        excess = disturbed(seed, steps, 4, 0.05)
        excess[:, 1] += 20 * MS
        found += stragglers(excess) == [1]
    assert found >= (0.95 if steps == 3 else 0.97) * JOBS


@pytest.mark.parametrize("paused", [1, 2])
@pytest.mark.parametrize("steps", [5, 8, 20])
def test_one_odd_step_does_not_excuse_a_rank_that_is_late_in_all_others(steps, paused):
    """Whether the late rank pauses in it or another one does."""
    found = 0
    for seed in range(JOBS):
        excess = disturbed(seed, steps, 4, 0.05)
        excess[:, 1] += 20 * MS
        excess[seed % steps, paused] += 300 * MS
        found += stragglers(excess) == [1]
    assert found >= 0.97 * JOBS


def test_a_pause_of_another_rank_excuses_nobody_however_late_ranks_differ_from_step_to_step():
    """Of eight ranks the others' mean moves by an eighth of a pause: hardly more than the rank."""
    excess = np.zeros((5, 8))
    excess[:, 2] = np.array([16.76, 17.32, 16.0, 18.65, 15.42]) * MS
    excess[1, 7] = 59.9 * MS
    assert stragglers(excess) == [2]


@pytest.mark.parametrize(("least_ms", "expected"), [(40, [3]), (10, [])])
def test_of_three_steps_a_pause_of_another_rank_excuses_nobody_who_is_far_behind(
    least_ms, expected
):
    """What remains is two steps, which must leave no doubt."""
    excess = np.full((3, 8), 2 * MS)
    excess[:, 3] = np.array([21, 58, least_ms]) * MS
    excess[0, 5] = 21 * MS
    assert stragglers(excess) == expected


def test_what_remains_without_the_odd_step_must_matter():
    excess = disturbed(0, 8, 4, 0.0)
    excess[:, 2] += 0.4 * MS
    excess[3, 2] += 500 * MS
    assert not is_beyond_chance(excess, 2, NOTABLE_NS)
    excess[:, 2] += 0.4 * MS
    assert is_beyond_chance(excess, 2, NOTABLE_NS)


def test_a_rank_with_long_pauses_in_some_steps_is_accused():
    found = 0
    for seed in range(JOBS):
        excess = disturbed(seed, 8, 4, 0.05)
        excess[[2, 6], 1] += 60 * MS
        found += is_beyond_chance(excess, 1)
    assert found >= 0.97 * JOBS


def test_one_long_pause_is_no_accusation():
    excess = disturbed(0, 8, 4, 0.0)
    excess[3, 2] += 500 * MS
    assert not is_beyond_chance(excess, 2)


def test_what_disturbs_all_ranks_accuses_none():
    excess = disturbed(0, 8, 4, 0.0)
    excess += 10 * MS * np.arange(8)[:, None]
    excess[:, 3] += 0.5 * MS
    assert not is_beyond_chance(excess, 3)


def test_of_two_steps_a_rank_has_too_much_in_both():
    assert is_beyond_chance(np.array([[9.0, 1.0, 1.0], [3.0, 1.0, 1.0]]), 0)
    assert not is_beyond_chance(np.array([[9.0, 1.0, 1.0], [0.0, 1.0, 1.0]]), 0)
    assert not is_beyond_chance(np.array([[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]]), 0)


def test_a_rank_alone_is_compared_with_nobody():
    assert is_beyond_chance(np.array([[1.0], [1.0], [1.0]]), 0)


@pytest.mark.parametrize(
    ("here", "elsewhere", "expected"),
    [
        ((8, 8), (0, 8), True),
        ((5, 8), (1, 8), False),
        ((20, 80), (3, 240), True),
        ((2, 8), (60, 240), False),
        ((3, 8), (0, 0), True),
        ((8, 8), (8, 8), False),
    ],
)
def test_slow_transfers_elsewhere_excuse_a_link(here, elsewhere, expected):
    assert is_more_often(*here, *elsewhere) is expected
