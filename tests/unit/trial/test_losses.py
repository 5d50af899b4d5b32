"""Losses of a trial against those of the script as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.opening.trials import CHANGED, CLOSE, REDRAWN, SAME, UNKNOWN, WITHIN_NOISE
from stepscope.trial.measure import compare_losses, why_changed

CURVE = [2.0 / (1 + step) for step in range(40)]


def scaled(curve, share, seed=0):
    rng = np.random.default_rng(seed)
    return [loss * (1 + share * rng.standard_normal()) for loss in curve]


def test_equal_curves_are_the_same():
    found = compare_losses([CURVE], [CURVE, CURVE])
    assert (found.verdict, found.difference, found.noise) == (SAME, 0, 0)
    assert found.compared == 40


def test_rounding_is_close_and_a_different_training_is_changed():
    assert compare_losses([scaled(CURVE, 1e-4)], [CURVE, CURVE]).verdict == CLOSE
    found = compare_losses([scaled(CURVE, 0.05)], [CURVE, CURVE])
    assert found.verdict == CHANGED
    assert found.difference == pytest.approx(0.05, rel=0.4)


def test_a_script_whose_own_runs_differ_sets_the_measure():
    theirs = [scaled(CURVE, 0.1, seed) for seed in (1, 2, 3)]
    assert compare_losses([scaled(CURVE, 0.1, 4)], theirs).verdict == WITHIN_NOISE
    assert compare_losses([[2 * loss for loss in CURVE]], theirs).verdict == CHANGED


@pytest.mark.parametrize("ours", [[], [[]], [[1.0, 1.0]]])
def test_without_losses_nothing_is_known(ours):
    assert compare_losses(ours, [CURVE]).verdict == UNKNOWN


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_breaks_is_changed_and_one_that_was_broken_is_not(bad):
    broken = [*CURVE[:20], *[bad] * 20]
    found = compare_losses([broken], [CURVE, CURVE])
    assert (found.verdict, found.difference) == (CHANGED, None)
    assert compare_losses([broken], [broken, broken]).verdict == SAME


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=30), st.integers(1, 20))
def test_only_what_both_have_is_compared(curve, more):
    longer = curve + [9.0] * more
    assert compare_losses([longer], [curve]).verdict == SAME


def redrawn(curve, **options):
    return compare_losses([curve], [CURVE, CURVE], redraws=True, **options).verdict


def test_other_random_numbers_are_told_from_another_training():
    """Nineteen of twenty curves that differ by chance alone are recognised, and no shifted one."""
    by_chance = [redrawn(scaled(CURVE, 0.05, seed)) for seed in range(200)]
    assert set(by_chance) == {REDRAWN, CHANGED}
    assert by_chance.count(REDRAWN) >= 180
    shifted = [redrawn([1.15 * loss for loss in scaled(CURVE, 0.05, seed)]) for seed in range(200)]
    assert set(shifted) == {CHANGED}


def test_only_fixes_that_draw_again_are_judged_by_the_mean():
    curve = next(c for c in (scaled(CURVE, 0.05, s) for s in range(9)) if redrawn(c) == REDRAWN)
    assert compare_losses([curve], [CURVE, CURVE]).verdict == CHANGED


@pytest.mark.parametrize(
    "curve",
    [
        scaled(CURVE, 0.8),  # too noisy to tell
        [*CURVE[:20], *[math.nan] * 20],
        [0.9 * loss for loss in CURVE],
        CURVE[:3][::-1],  # too few
    ],
)
def test_what_cannot_be_told_is_changed(curve):
    assert redrawn(curve) == CHANGED


def test_why_losses_are_said_to_be_changed_where_a_fix_must_change_single_ones():
    """More workers alone may not look like another training without a word about the reason."""
    noisy = compare_losses([scaled(CURVE, 0.8)], [CURVE, CURVE], redraws=True)
    assert why_changed(noisy, redraws=True) == (
        "random numbers for the data are drawn in another order, and 40 losses do not show that "
        "they are the same on average"
    )
    assert why_changed(noisy, redraws=False) == ""
    assert why_changed(compare_losses([CURVE], [CURVE, CURVE], redraws=True), redraws=True) == ""


def test_what_is_the_same_stays_the_same():
    assert redrawn(CURVE) == SAME
    assert redrawn(scaled(CURVE, 1e-4)) == CLOSE
