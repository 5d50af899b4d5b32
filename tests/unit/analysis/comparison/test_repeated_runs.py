"""A gate over repeated runs: how often it fails identical versions and catches slower ones."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.support.step_records import step_records, write_run

from stepscope.analysis.comparison import repeated_runs
from stepscope.analysis.comparison.gate import (
    CANNOT_TELL,
    DEFAULT_RUNS,
    FAILED,
    PASSED,
    FailOn,
)
from stepscope.analysis.comparison.repeated_runs import (
    ASSUMED,
    EARLIER,
    MOST_RUNS,
    REPEATED,
    ROUNDS,
    RunValues,
    change_of_runs,
    runs_needed,
)
from stepscope.commands.main import cli

PAIRS = 400
STUDENT_95 = functools.cache(repeated_runs.student_95)
QUIRKS = (1.01, 0.99, 1.0, 1.02, 0.98)
"""By what runs of one version differ beside their moments."""


@pytest.fixture(autouse=True)
def _percentiles_once(monkeypatch):
    """Thousands of comparisons ask for the same few percentiles."""
    monkeypatch.setattr(repeated_runs, "student_95", STUDENT_95)


class Simulated:
    """What a condition needs of a comparison."""

    def __init__(self, runs):
        self.runs = runs


def runs_of(medians_ms, quartiles_ms=None):
    values = zip(medians_ms, medians_ms if quartiles_ms is None else quartiles_ms, strict=True)
    return [RunValues("run", 1e6 * median, 1e6 * quartile, 100) for median, quartile in values]


def outcome(before_ms, after_ms, limit="5"):
    found = change_of_runs(runs_of(before_ms), runs_of(after_ms))
    return FailOn.parse(f"regression>{limit}%").check(Simulated(found)).outcome


def quiet(rng, runs):
    return np.exp(rng.normal(0, 0.02, 2 * runs))


def uneven(rng, runs):
    return np.exp(rng.normal(0, 0.15, 2 * runs))


def with_bursts(rng, runs):
    """A quiet machine on which one run in five takes up to three times as long."""
    return quiet(rng, runs) * np.where(rng.random(2 * runs) < 0.2, 1 + 2 * rng.random(2 * runs), 1)


def drifting(rng, runs):
    """A machine that becomes slower or faster all the time, by up to 40%."""
    return quiet(rng, runs) * np.exp(np.linspace(0, rng.uniform(-0.4, 0.4), 2 * runs))


def dependent(rng, runs):
    """Load that lasts: each run resembles the one before."""
    level, levels = 0.0, []
    for _ in range(2 * runs):
        level = 0.8 * level + rng.normal(0, 0.08)
        levels.append(level)
    return np.exp(levels)


def in_turns(times):
    """Which runs of a sequence are whose: before and after, in reverse in every other round."""
    rounds = times.reshape(-1, 2)
    reverse = np.arange(len(rounds)) % 2 == 1
    rounds[reverse] = rounds[reverse, ::-1]
    return rounds[:, 0], rounds[:, 1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", [quiet, uneven, with_bursts, drifting, dependent])
@pytest.mark.parametrize("runs", [2, DEFAULT_RUNS])
def test_of_identical_pairs_at_most_one_in_twenty_fails(machine, runs):
    rng = np.random.default_rng(3)
    failed = 0
    for _ in range(PAIRS):
        before, after = in_turns(10 * machine(rng, runs))
        failed += outcome(before, after) == FAILED
    assert failed / (PAIRS) <= 0.05


@pytest.mark.sampled(5)
@pytest.mark.parametrize("machine", [quiet, uneven, with_bursts, drifting, dependent])
@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (3, 4)])
def test_of_unequally_many_runs_at_most_one_in_twenty_fails(machine, before, after):
    rng = np.random.default_rng(3)
    failed = 0
    for _ in range(PAIRS):
        first, second = in_turns(10 * machine(rng, 6))
        failed += outcome(first[:before], second[:after]) == FAILED
    assert failed / PAIRS <= 0.05


def test_one_wild_run_is_no_regression_and_says_how_many_runs_would_tell():
    steady, wild = [10.0, 10.1, 9.9, 10.05, 9.95], [10.0, 10.1, 13.0, 9.95, 10.05]
    assert outcome(steady, wild) == CANNOT_TELL
    check = FailOn.parse("regression>5%").check(
        Simulated(change_of_runs(runs_of(steady), runs_of(wild)))
    )
    assert check.runs_needed > 5
    # It hides no slowdown of all others either: that is open, too.
    assert outcome(wild, [1.2 * ms for ms in steady]) == CANNOT_TELL


def test_versions_on_a_machine_each_cannot_be_told_from_the_machines():
    def runs(medians_ms, *machines):
        return [
            RunValues("run", 1e6 * ms, 1e6 * ms, 100, one)
            for ms, one in zip(medians_ms, machines, strict=True)
        ]

    def check(a, b):
        return FailOn.parse("regression>5%").check(Simulated(change_of_runs(a, b)))

    fast, slow = [10.0, 10.1, 9.9], [12.0, 12.1, 11.9]
    apart = check(runs(fast, "x", "x", "x"), runs(slow, "y", "y", "y"))
    assert (apart.outcome, apart.runs_needed) == (CANNOT_TELL, None)
    assert "the runs before are of x, those after of y" in apart.reason
    # On one machine, or on several each, their difference is part of what runs differ by.
    assert check(runs(fast, "x", "x", "x"), runs(slow, "x", "x", "x")).outcome == FAILED
    assert check(runs(fast, "x", "y", "z"), runs(slow, "u", "v", "w")).outcome == FAILED
    assert check(runs(fast, "", "", ""), runs(slow, "y", "y", "y")).outcome == FAILED


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.035])
def test_a_slowdown_of_a_tenth_is_caught_on_a_quiet_machine(spread):
    rng = np.random.default_rng(4)
    caught = cleared = 0
    for _ in range(PAIRS):
        before = 10 * np.exp(rng.normal(0, spread, DEFAULT_RUNS))
        after = 10 * np.exp(rng.normal(0, spread, DEFAULT_RUNS))
        caught += outcome(before, 1.1 * after) == FAILED
        cleared += outcome(before, after) == PASSED
    assert caught / (PAIRS) >= 0.9
    if spread <= 0.02:
        assert cleared / (PAIRS) >= 0.9


def test_on_a_busy_machine_the_answer_is_open_and_says_how_many_runs_would_tell():
    rng = np.random.default_rng(5)
    runs = change_of_runs(
        *(runs_of(10 * np.exp(rng.normal(0, 0.15, DEFAULT_RUNS))) for _ in range(2))
    )
    check = FailOn.parse("regression>5%").check(Simulated(runs))
    assert check.outcome == CANNOT_TELL
    assert check.runs_needed > DEFAULT_RUNS
    assert f"about {check.runs_needed:,} runs a side would tell" in check.reason


@pytest.mark.parametrize("spread", [0.03, 0.08])
def test_as_many_runs_as_it_asks_for_tell(spread):
    rng = np.random.default_rng(6)
    known = change_of_runs(
        *(runs_of(10 * np.exp(rng.normal(0, spread, 200) - rng.normal(0, 1e-9))) for _ in range(2))
    )
    needed = runs_needed(change_of_runs(known.a, known.a), 0.05)
    told = sum(
        outcome(*(10 * np.exp(rng.normal(0, spread, needed)) for _ in range(2))) == PASSED
        for _ in range(200)
    )
    assert told / 200 >= 0.82  # nine in ten, less the error of this simulation and of the spread
    assert runs_needed(change_of_runs(known.a, known.a), 1e-6) is None
    assert needed < MOST_RUNS


MEDIANS = st.lists(st.floats(1, 100), min_size=1, max_size=6)


@given(MEDIANS, MEDIANS)
def test_the_interval_holds_the_change_and_turns_over_with_it(before, after):
    there = change_of_runs(runs_of(before), runs_of(after))
    back = change_of_runs(runs_of(after), runs_of(before))
    assert there.step.low_share <= there.step.share <= there.step.high_share
    assert (1 + there.step.share) * (1 + back.step.share) == pytest.approx(1)
    assert (1 + there.step.low_share) * (1 + back.step.high_share) == pytest.approx(1, rel=1e-2)
    one_each = len(before) == len(after) == 1
    assert there.basis == (ASSUMED if one_each else REPEATED)


def test_a_single_run_takes_the_spread_of_the_other_side_or_of_earlier_runs():
    one, several = runs_of([10.0]), runs_of([10.0, 10.2, 9.8, 10.1])
    assert change_of_runs(one, several).step.high_share < 0.1
    alone = change_of_runs(one, one)
    assert alone.basis == ASSUMED
    assert alone.step.high_share == pytest.approx(math.expm1(1.96 * 0.1 * 2**0.5), rel=1e-3)
    known = change_of_runs(one, one, [[10e6, 10.1e6, 9.9e6, 10e6, 10.05e6]])
    assert (known.basis, known.earlier) == (EARLIER, 5)
    assert known.step.high_share < 0.04
    assert change_of_runs(one, one, [[10e6, 10.1e6]]).basis == ASSUMED


def write(folder, name, length_ms, wait_ms=1.0):
    rows = step_records([length_ms] * 30, waits_ms=wait_ms)
    return str(write_run(folder, {0: rows}, name, command=("python", "train.py")))


@pytest.fixture
def versions(tmp_path):
    before = [write(tmp_path, f"old{n}", 10 + 0.1 * n) for n in range(4)]
    same = [write(tmp_path, f"same{n}", 10.05 + 0.1 * n) for n in range(4)]
    slow = [write(tmp_path, f"new{n}", 12 + 0.1 * n, wait_ms=3.0) for n in range(4)]
    return before, same, slow


def compared(*words):
    return CliRunner().invoke(cli, ["compare", *words])


def test_several_runs_of_each_version_are_given_as_a_shell_expands_a_glob(versions):
    before, same, slow = versions
    words = ["--before", *before, "--after", *slow, "--fail-on", "regression>5%"]
    result = compared(*words, "--fail-on", "input>5%", "--format", "json")
    document = json.loads(result.stdout)
    assert [len(document["runs"][side]) for side in "ab"] == [4, 4]
    assert document["step"]["change_share"] == pytest.approx(0.197, abs=0.002)
    assert [check["outcome"] for check in document["checks"]] == [FAILED, FAILED]
    assert "input grew by 20% of the step" in document["failed"]
    result = compared("--after", *same, "--fail-on", "regression>5%", "--before", *before)
    assert result.exit_code == 0, result.output
    assert "4 runs against 4" in result.output
    repeated = [word for path in before for word in ("--before", path)]
    again = compared("--after", *same, *repeated, "--fail-on", "regression>5%")
    assert "4 runs against 4" in again.output


def test_one_run_a_side_fails_only_beyond_what_runs_differ_by(versions, tmp_path):
    before, same, slow = versions
    alone = write(tmp_path / "elsewhere", "one", 12.0)
    unknown = compared(write(tmp_path / "other", "one", 10.0), alone, "--fail-on", "regression>5%")
    assert "one run a side does not show by how much runs of this job differ" in unknown.stderr
    assert "stepscope gate" in unknown.stderr
    # Beside these lie ten more runs of the job, which differ by a fifth: the slow ones, too.
    known = compared(before[0], same[0], "--fail-on", "regression>5%")
    assert "10 earlier runs of this job differ by" in known.stderr
    assert compared(before[0], slow[0]).exit_code == 0


@pytest.mark.parametrize("words", [[], ["a"], ["--before", "a"], ["a", "--after", "b"]])
def test_sides_that_are_missing_or_given_twice_are_an_error_of_usage(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compared(*words).exit_code == 2


def test_rounds_that_take_turns_are_compared_within_each_round():
    """What a round's moments do to both runs is no part of what versions differ by."""
    moments = [1.0, 1.4, 0.8, 1.2, 1.1]
    before = [10.0 * one * noise for one, noise in zip(moments, QUIRKS, strict=True)]
    after = [11.0 * one for one in moments]
    alone = change_of_runs(runs_of(before), runs_of(after))
    found = change_of_runs(runs_of(before), runs_of(after), in_rounds=True)
    differences = np.log(after) - np.log(before)
    half = 2.7764 * differences.std(ddof=1) / math.sqrt(5)
    change = pytest.approx(math.expm1(differences.mean()))
    assert found.step.share == change
    assert alone.step.share == change
    assert found.step.low_share == pytest.approx(math.expm1(differences.mean() - half), rel=0.01)
    assert found.step.high_share == pytest.approx(math.expm1(differences.mean() + half), rel=0.01)
    assert found.basis == ROUNDS
    assert alone.step.low_share < 0 < found.step.low_share
    check = FailOn.parse("regression>5%").check
    assert check(Simulated(alone)).outcome == CANNOT_TELL
    assert check(Simulated(found)).outcome == FAILED
    assert runs_needed(found, 0.05) < runs_needed(alone, 0.05)


@pytest.mark.parametrize(
    ("slower", "outcome", "least", "most"), [(0, FAILED, 0.0, 0.05), (0.1, FAILED, 0.9, 1.0)]
)
def test_how_often_rounds_fail_under_a_machine_that_drifts(slower, outcome, least, most):
    rng = np.random.default_rng(11)
    failed = 0
    for _ in range(PAIRS):
        moments = dependent(rng, DEFAULT_RUNS)[:DEFAULT_RUNS]
        runs = [moments * np.exp(rng.normal(0, 0.02, DEFAULT_RUNS)) for _ in range(2)]
        found = change_of_runs(
            runs_of(10 * runs[0]), runs_of(10 * (1 + slower) * runs[1]), in_rounds=True
        )
        failed += FailOn.parse("regression>5%").check(Simulated(found)).outcome == outcome
    assert least <= failed / PAIRS <= most


def test_a_slowdown_of_all_steps_shows_in_the_quicker_ones_where_medians_tell_nothing():
    uneven_ms, even_ms = [10.0, 14.0, 11.0, 9.0, 13.0], [9.0, 9.1, 8.9, 9.0, 9.1]
    slower_ms = [11.5, 11.0, 13.5, 12.0, 10.5]
    before, after = runs_of(uneven_ms, even_ms), runs_of(slower_ms, [1.1 * one for one in even_ms])
    found = change_of_runs(before, after, in_rounds=True)
    assert found.step.low_share < 0 < found.step.high_share
    assert found.quartile.share == pytest.approx(0.1)
    check = FailOn.parse("regression>5%").check(Simulated(found))
    assert check.outcome == FAILED
    assert "the lower quartile of the steps grew by 10%" in check.reason
    assert change_of_runs(before, after).quartile is None


def test_what_only_the_slower_steps_do_passes_by_no_quartile():
    """Every other step is slower: the quicker half says nothing of it, and the medians decide."""
    before, after = runs_of([10.0] * 5, [9.0] * 5), runs_of([11.0] * 5, [9.0] * 5)
    check = FailOn.parse("regression>5%").check
    outcome = check(Simulated(change_of_runs(before, after, in_rounds=True)))
    assert outcome.outcome == FAILED
    assert outcome.reason.startswith("the step grew by 10%")
    uneven = runs_of([9.0, 12.0, 10.0, 13.0, 9.5], [9.0] * 5)
    open_one = check(Simulated(change_of_runs(before, uneven, in_rounds=True)))
    assert open_one.outcome == CANNOT_TELL
