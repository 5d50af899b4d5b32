"""The schedule of the experiment, with attempts that take no time and tell what the test wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.trial_machine import CURVE, GC_MS, SILENT, STEP_MS, Machine

from stepscope.errors import UsageError
from stepscope.opening.reader import open_run
from stepscope.opening.trials import (
    CHANGED,
    CRASHED,
    HELPS,
    HUNG,
    NO_GAIN,
    NOT_APPLIED,
    NOT_MEASURED,
    SAME,
    UNCLEAR,
    TrialsRecord,
)
from stepscope.run.manifest import read_record
from stepscope.trial.experiment import LEAST_ROUNDS, MOST_ROUNDS, Experiment, Request, TrialError
from stepscope.trial.fixes import Facts


def by_name(record):
    return {trial.name: trial for trial in record.all_trials}


def test_the_finding_names_the_fix_and_its_promise_is_held_to_what_was_measured(try_on):
    record = try_on(Machine({"rare-gc": STEP_MS - GC_MS}))
    (trial,) = record.trials
    assert (trial.name, trial.verdict, trial.losses.verdict) == ("rare-gc", HELPS, SAME)
    assert trial.findings == ("garbage-collector",)
    assert trial.promised_ratio == pytest.approx(0.6, rel=0.02)
    assert abs(trial.promise_error) < 0.05
    assert trial.ratio_low < 0.6 < trial.ratio_high
    assert record.best == "rare-gc"
    assert record.together is None
    assert "rare-gc helps: 1.6" in record.verdict
    assert any("gc.freeze()" in line for line in trial.lines)
    assert record.baseline.ratio == 1


def test_what_was_measured_is_kept_in_the_run_and_opens_again(try_on):
    machine = Machine({"rare-gc": 12.0})
    record = try_on(machine)
    folder = Path(record.folder)
    assert read_record(folder / "diagnosis" / "trials.json", TrialsRecord) == record
    assert open_run(folder / "diagnosis").trials == record
    assert "hunter2" not in (folder / "diagnosis" / "trials.json").read_text()
    assert open_run(folder / record.trials[0].runs[0]).trials is None
    for trial in (record.baseline, *record.trials):
        assert all((folder / run / "run.json").is_file() for run in trial.runs)
    assert record.processes_s == machine.now == len(machine.names)


def test_what_others_used_of_the_cpus_is_noted_for_each_attempt(try_on):
    shares = (0.01, 0.02, 0.05, 0.06, 0.07)
    machine = Machine({"rare-gc": 12.0}, busy=shares)
    record = try_on(machine)
    assert len(machine.names) == 5
    assert record.busy == shares
    assert try_on(Machine({"rare-gc": 12.0}, busy=(None,))).busy == ()


def test_attempts_beside_busy_programs_do_not_count(try_on):
    """In the first round the fix runs beside other programs, which makes it look slower."""
    machine = Machine({"rare-gc": 12.0}, busy=(0.0, 0.0, 0.6, 0.0))
    machine.steps_ms["rare-gc"] = 12.0
    record = try_on(machine)
    (trial,) = record.trials
    assert trial.verdict == HELPS
    assert trial.ratio == pytest.approx(0.6, rel=0.05)


@pytest.mark.parametrize("with_it_ms", [2.0, 12.0, 20.0, 40.0])
def test_beside_programs_that_stay_busy_the_answer_is_open_whatever_was_measured(
    try_on, with_it_ms
):
    machine = Machine({"rare-gc": with_it_ms}, busy=(0.4,))
    record = try_on(machine)
    (trial,) = record.trials
    assert (trial.verdict, trial.ratio, trial.ratio_low) == (UNCLEAR, None, None)
    assert "other programs used 40% of the CPUs meanwhile" in trial.reason
    assert record.best == ""
    assert record.baseline.step_ns == pytest.approx(STEP_MS * 1e6, rel=0.05)
    assert len(machine.names) == 1 + 2 * 3  # more rounds would tell no more
    assert "other programs used 40% of the CPUs meanwhile" in record.verdict


def test_the_verdict_names_busy_programs_even_if_the_budget_ends_before_a_fix_has_run(try_on):
    machine = Machine({}, busy=(0.4,), wall_s=10.0)
    record = try_on(machine, only=("rare-gc", "threads"), budget_s=25.0)
    assert {trial.verdict for trial in record.trials} == {NOT_MEASURED}
    assert "other programs used 40% of the CPUs meanwhile" in record.verdict


def test_a_diagnosis_beside_busy_programs_promises_nothing(try_on):
    """What others take of a step is part of its findings, and no fix saves that."""
    machine = Machine({"rare-gc": 12.0}, busy=(0.6, 0.0))
    record = try_on(machine, only=("rare-gc",))
    (trial,) = record.trials
    assert (trial.verdict, trial.promised_ratio) == (HELPS, None)
    assert "other programs used 60% of the CPUs during the diagnosis" in trial.promise_basis
    assert trial.promise_basis in record.warnings
    (left,) = try_on(Machine({}, busy=(0.6, 0.0)), only=("threads",)).untried
    assert (left.finding, left.promised_ratio) == ("garbage-collector", None)


def test_an_interval_that_says_nothing_is_not_stated(try_on):
    found = []
    for seed in range(6):
        machine = Machine({"rare-gc": 12.0}, noise=0.6, seed=seed)
        found += try_on(machine, only=("rare-gc",), budget_s=5.0).trials
    hidden = [trial for trial in found if trial.ratio is None]
    assert hidden
    for trial in hidden:
        assert trial.verdict == UNCLEAR
        assert "processes differ too much to compare" in trial.reason
    assert all(one.ratio_high <= 4 * one.ratio_low for one in found if one not in hidden)


def test_rounds_are_reversed_in_turns_and_end_when_the_answer_is_clear(try_on):
    machine = Machine({"rare-gc": 12.0})
    try_on(machine)
    assert machine.names == ["diagnosis", "as-it-is-1", "rare-gc-1", "rare-gc-2", "as-it-is-2"]


def test_rounds_end_at_last_if_the_answer_stays_open(try_on):
    machine = Machine({"rare-gc": 19.5}, noise=0.2)
    record = try_on(machine)
    assert machine.names.count("as-it-is-6") == 1
    assert len(machine.names) == 1 + 2 * MOST_ROUNDS
    assert record.best == ""


def test_a_healthy_script_gets_nothing_and_the_interval_says_so(try_on):
    record = try_on(Machine({}, noise=0.002), only=("rare-gc", "zero-grad-none"))
    assert {trial.verdict for trial in record.trials} == {NO_GAIN}
    assert record.best == ""
    assert record.verdict.startswith("nothing helped: none of the fixes gains more than")
    for trial in record.trials:
        assert trial.ratio_low <= 1.005
        assert trial.ratio_high >= 0.995


def test_fixes_that_help_are_tried_together_and_of_a_group_the_better_one(try_on):
    together = "rare-gc + fused-optimizer"
    machine = Machine(
        {"rare-gc": 14.0, "fused-optimizer": 15.0, "foreach-optimizer": 16.0, together: 9.0}
    )
    record = try_on(machine, only=("rare-gc", "fused-optimizer", "foreach-optimizer"))
    assert record.together.name == together
    assert record.together.ratio == pytest.approx(0.45, rel=0.05)
    assert record.best == together
    assert record.together.promised_ratio is not None  # all findings with a saving are answered
    assert len(record.together.lines) == 3
    assert any(name.startswith("together-") for name in machine.names)


def test_a_combination_is_compared_with_earlier_rounds_if_the_budget_ends(try_on):
    """After the diagnosis and two rounds of 13 s in all, one more attempt of 1 s fits at most."""
    slow = {f"as-it-is-{number}": 4.0 for number in range(1, 7)}
    steps_ms = {"rare-gc": 14.0, "threads": 15.0, "rare-gc + threads": 9.0}
    machine = Machine(steps_ms, slow=slow)
    record = try_on(machine, only=("rare-gc", "threads"), budget_s=14.0)
    assert machine.names[-1] == "together-3"
    assert machine.now == 14
    assert record.together.ratio == pytest.approx(0.45, rel=0.05)
    assert record.together.processes == 1
    assert record.best == "rare-gc + threads"


def test_a_combination_that_is_worse_is_not_the_one_to_keep(try_on):
    machine = Machine({"rare-gc": 14.0, "threads": 15.0, "rare-gc + threads": 18.0})
    record = try_on(machine, only=("rare-gc", "threads"))
    assert record.together.verdict == HELPS
    assert record.best == "rare-gc"


def test_a_fix_that_changes_the_losses_is_marked_and_not_kept(try_on):
    losses = {"rare-gc": tuple(1.5 * loss for loss in CURVE)}
    record = try_on(Machine({"rare-gc": 12.0}, losses=losses))
    assert (record.trials[0].verdict, record.trials[0].losses.verdict) == (HELPS, CHANGED)
    assert record.best == ""
    assert record.verdict == "nothing helped without changing the losses"


@pytest.mark.parametrize("problem", [CRASHED, NOT_APPLIED])
def test_a_fix_that_fails_is_an_answer_and_ends_only_its_own_rounds(try_on, problem):
    machine = Machine({"threads": 12.0}, failures={"rare-gc": problem})
    record = try_on(machine, only=("rare-gc", "threads"))
    trials = by_name(record)
    assert (trials["rare-gc"].verdict, trials["rare-gc"].reason) == (problem, "because")
    assert machine.names.count("rare-gc-1") == 1
    assert not any(name.startswith("rare-gc-2") for name in machine.names)
    assert record.best == "threads"


def test_the_budget_ends_the_rounds_and_what_had_no_turn_says_so(try_on):
    machine = Machine({"rare-gc": 12.0, "threads": 12.0}, wall_s=10.0)
    record = try_on(machine, only=("rare-gc", "threads"), budget_s=35.0)
    assert machine.now <= 35.0
    trials = by_name(record)
    assert trials["rare-gc"].verdict == HELPS
    assert trials["threads"].verdict == NOT_MEASURED
    assert "budget" in trials["threads"].reason
    assert max(machine.limits[1:]) <= 25.0


def test_a_budget_that_cannot_suffice_says_what_would(try_on):
    record = try_on(
        Machine({}, wall_s=10.0), only=("rare-gc", "threads", "fused-optimizer"), budget_s=70.0
    )
    (warning,) = record.warnings
    assert "a budget of 70 s does not suffice for 2 rounds of 4 processes of 10 s" in warning
    assert "--budget 108s would" in warning
    with pytest.raises(TrialError, match="--budget 60s would"):
        try_on(Machine({}, wall_s=10.0), budget_s=12.0)
    with pytest.raises(TrialError, match="did not do 40 steps within the budget of 5 s"):
        try_on(Machine({}, wall_s=10.0), budget_s=5.0)
    assert try_on(Machine({}, wall_s=10.0), budget_s=500.0).warnings == ()


def test_an_attempt_that_the_budget_cuts_short_does_not_count_as_hung(try_on):
    machine = Machine({"rare-gc": 12.0}, noise=0.1, wall_s=10.0, slow={"rare-gc-2": 30.0})
    record = try_on(machine, budget_s=50.0)
    (trial,) = record.trials
    assert (trial.processes, trial.reason) == (1, "the budget was spent")
    assert trial.ratio is not None
    assert record.processes_s == machine.now == record.total_s == 50.0
    hung = try_on(Machine({}, wall_s=10.0, slow={"rare-gc-2": 100.0}), budget_s=500.0).trials[0]
    assert hung.verdict == HUNG


def test_a_process_may_take_three_times_as_long_as_usual(try_on):
    machine = Machine({"rare-gc": 12.0}, wall_s=10.0)
    try_on(machine, budget_s=10_000)
    assert machine.limits[1:] == [35.0] * (2 * LEAST_ROUNDS)


def test_a_script_that_fails_as_it_is_cannot_be_tried(try_on):
    with pytest.raises(TrialError, match="unchanged script cannot be measured: because") as caught:
        try_on(Machine({}, failures={"as it is": CRASHED}))
    assert caught.value.exit_code == 3


def test_a_script_that_fails_once_in_a_while_keeps_what_was_measured(try_on):
    record = try_on(Machine({"rare-gc": 19.0}, noise=0.2, failures={"as-it-is-3": CRASHED}))
    assert record.baseline.step_ns == pytest.approx(STEP_MS * 1e6, rel=0.5)
    assert (record.baseline.processes, record.baseline.reason) == (2, "because")
    assert record.trials[0].ratio is not None


def test_findings_without_a_fix_are_listed_with_their_advice(try_on):
    record = try_on(Machine({}), only=("tf32",))
    assert [one.verdict for one in record.trials] == [NOT_APPLIED]
    assert [one.finding for one in record.untried] == ["garbage-collector"]
    assert "gc.freeze" in record.untried[0].advice
    assert record.untried[0].promised_ratio == pytest.approx(0.6, rel=0.02)
    assert record.verdict.startswith("nothing to try")


def test_fixes_that_were_asked_for_whatever_the_findings(try_on):
    asked = try_on(Machine({}, noise=0.002, seed=4), only=("compile", "tf32"))
    assert by_name(asked)["tf32"].verdict == NOT_APPLIED
    assert by_name(asked)["tf32"].reason == "no GPU is in use"
    assert by_name(asked)["compile"].processes


def test_a_fix_that_does_not_apply_is_named_only_where_its_finding_has_no_other(tmp_path):
    def refused(findings, **more):
        asked = Experiment(Request(("python",), tmp_path, **more), SILENT, tmp_path, 0.0)
        found = asked._chosen(Facts(findings=frozenset(findings), threads=8, cpus=2))[1]
        return [one.name for one in found]

    assert refused({"busy-cpus"}) == []  # fewer threads can be tried
    assert refused({"busy-cpus"}, only=("cpu-affinity",)) == ["cpu-affinity"]


def test_names_are_checked(tmp_path):
    with pytest.raises(UsageError, match="no fix 'gc'"):
        Request(("python",), tmp_path, only=("gc",))
