"""What a measured ratio says, and which trial is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UsageError
from stepscope.opening.trials import (
    CHANGED,
    HELPS,
    NO_GAIN,
    SAME,
    SLOWER,
    UNCLEAR,
    LossRecord,
    TrialRecord,
)
from stepscope.trial.measure import Ratio
from stepscope.trial.outcome import best_of, is_clear, ratio_verdict, verdict_of


@pytest.mark.parametrize(
    ("ratio", "verdict", "clear"),
    [
        ((0.50, 0.48, 0.52), HELPS, True),
        ((0.50, 0.30, 0.80), HELPS, False),  # by how much is not known yet
        ((0.97, 0.945, 0.995), HELPS, False),  # less than 2% is possible
        ((0.985, 0.97, 0.999), UNCLEAR, False),  # too little to be worth it, or just enough
        ((1.00, 0.99, 1.01), NO_GAIN, True),
        ((1.01, 0.985, 1.20), NO_GAIN, True),
        ((0.95, 0.80, 1.12), UNCLEAR, False),
        ((1.20, 1.10, 1.30), SLOWER, True),
        ((1.014, 1.005, 1.023), NO_GAIN, True),
    ],
)
def test_verdicts(ratio, verdict, clear):
    assert ratio_verdict(Ratio(*ratio)) == verdict
    assert is_clear(Ratio(*ratio)) == clear


@given(st.floats(0.1, 3), st.floats(0, 1), st.floats(0, 1))
def test_nothing_helps_whose_interval_holds_no_change(value, down, up):
    ratio = Ratio(value, value / (1 + down), value * (1 + up))
    if ratio.low <= 1 <= ratio.high:
        assert ratio_verdict(ratio) in (NO_GAIN, UNCLEAR)


def trial(name, ratio, verdict=HELPS, losses=SAME, low=None):
    record = TrialRecord(name, (name,), verdict=verdict, ratio=ratio, losses=LossRecord(losses))
    return replace(record, ratio_low=low)


def test_the_fastest_is_kept_unless_it_changes_the_losses():
    trials = [trial("a", 0.8), trial("b", 0.5, losses=CHANGED), trial("c", 0.9)]
    trials.append(trial("d", 0.4, verdict=UNCLEAR))
    assert best_of(trials).name == "a"
    assert best_of(trials[1:2]) is None
    assert best_of([]) is None


def test_part_of_a_fix_is_kept_if_it_is_as_fast_as_far_as_the_rounds_can_tell():
    whole = trial("loader-workers", 0.6, low=0.5)
    assert (
        best_of([whole, trial("persistent-workers", 0.65, low=0.55)]).name == "persistent-workers"
    )
    assert best_of([whole, trial("persistent-workers", 0.7, low=0.65)]) == whole
    assert best_of([whole, trial("persistent-workers", 0.6, UNCLEAR, low=0.5)]) == whole
    assert best_of([whole, trial("rare-gc", 0.65, low=0.55)]) == whole


def test_conditions(trials_record):
    from stepscope.trial.outcome import GainCheck

    assert "gains 48.0%" in GainCheck.parse("gain>5%").reason(trials_record)
    assert GainCheck.parse("gain > 48.5%").reason(trials_record) is None
    with pytest.raises(UsageError, match="gain>5%"):
        GainCheck.parse("gain<5%")


@pytest.mark.parametrize(
    ("ratio", "low", "high", "told"),
    [
        (0.5, 0.47, 0.53, "a helps: 2.00× as fast, 50% off the step"),
        (
            0.0625,
            0.02,
            0.2,
            "a helps, but how much is uncertain: 5.00× to 50.00× as fast, 80% to 98% off the step",
        ),
        (
            0.8,
            0.64,
            0.98,
            "a helps, but how much is uncertain: 1.02× to 1.56× as fast, 2.0% to 36% off the step",
        ),
    ],
)
def test_a_gain_is_one_number_only_where_it_was_measured_precisely(ratio, low, high, told):
    """On a loaded machine, one number may be many times what a repetition shows."""
    best = replace(trial("a", ratio), ratio_low=low, ratio_high=high)
    assert verdict_of(best, [best], best) == told
