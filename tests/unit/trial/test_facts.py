"""What the diagnosis says to the fixes: promises, and what takes them away."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules.input import slow_epoch_start
from stepscope.analysis.record.step_patterns import EpochStarts
from stepscope.run.manifest import LoaderRecord
from stepscope.trial.facts import facts_of
from stepscope.trial.fixes import FIXES, Facts

STEP_NS = 100_000_000


def diagnosis(saving_ns, *evidence):
    """One slow start of an epoch. Of its saving, what keeping the workers saves is evidence."""
    finding = Finding(
        id="slow-epoch-start",
        title="each epoch begins with a wait",
        severity=Severity.HIGH,
        rank=0,
        saving_ns=saving_ns,
        saving_reason="" if saving_ns else "not recorded",
        assumption="",
        predicted_step_ns=None if saving_ns is None else STEP_NS - saving_ns,
        evidence=evidence,
        steps=(),
        advice="",
    )
    shown = SimpleNamespace(step_ns=STEP_NS, steps=None)
    return SimpleNamespace(findings=[finding], run=SimpleNamespace(ranks=[]), shown=shown)


def kept(nanoseconds):
    return Evidence(slow_epoch_start.KEPT_LABEL, nanoseconds, "ns")


@pytest.mark.parametrize(
    ("saving_ns", "evidence", "ratio"),
    [
        (60_000_000, (kept(40_000_000),), 0.6),  # the rest is the sampler's
        (40_000_000, (kept(40_000_000),), 0.6),
        (60_000_000, (), None),
        (None, (), None),
    ],
)
def test_workers_that_live_on_promise_what_starting_them_costs(saving_ns, evidence, ratio):
    facts = facts_of(diagnosis(saving_ns, *evidence), {})
    assert facts.workers_kept_ratio == (None if ratio is None else pytest.approx(ratio))
    plan = FIXES["persistent-workers"].plan(
        Facts(loader_workers=2, workers_kept_ratio=facts.workers_kept_ratio)
    )
    assert plan.promised_ratio == facts.workers_kept_ratio


def test_a_worker_that_was_timed_says_what_stays_of_an_epochs_start():
    found = diagnosis(20_000_000, kept(20_000_000))
    starts = EpochStarts(
        steps=(8, 16), excess_wait_ns=800_000_000, workers_ns=300_000_000, others_ns=100_000_000
    )
    found.shown.steps = SimpleNamespace(steps=range(16), epoch_starts=starts)
    rank = SimpleNamespace(manifest=SimpleNamespace(loader=LoaderRecord(workers=2)))
    found.run.ranks = [rank]
    facts = facts_of(found, {"worker_batch_ns": 50_000_000})
    # Of 800 ms, the two first batches stay: 100 ms. Without a time for them, 20 ms were certain.
    assert facts.workers_kept_ratio == pytest.approx(1 - (700 / 16) / 100)
    assert not facts.is_kept_ratio_bound
    assert "seen to need" in FIXES["persistent-workers"].plan(facts).promise_basis
    assert facts_of(found, {}).workers_kept_ratio == pytest.approx(0.8)


def test_workers_are_no_more_than_the_cpus_where_their_use_was_not_measured():
    plan = FIXES["loader-workers"].plan
    many = Facts(loader_workers=2, workers_advised=4, cpus=2)
    assert plan(many) == "its loader has 2 workers already"
    # Workers that mostly wait were measured to do so.
    assert plan(replace(many, loader_cpu_share=0.1)).value == 4


def test_in_doubt_nothing_is_promised():
    facts = facts_of(diagnosis(60_000_000, kept(40_000_000)), {}, "others were busy")
    assert (facts.workers_kept_ratio, facts.promises) == (None, {})
    assert facts.findings == {"slow-epoch-start"}


@pytest.mark.parametrize(("zeroes", "is_planned"), [(True, True), (None, True), (False, False)])
def test_gradients_that_are_dropped_already_need_no_process(zeroes, is_planned):
    facts = facts_of(diagnosis(None), {"zeroes_gradients": zeroes})
    assert isinstance(FIXES["zero-grad-none"].plan(facts), str) != is_planned
