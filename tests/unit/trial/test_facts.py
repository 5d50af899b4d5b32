"""What the diagnosis says to the fixes: promises, and what takes them away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules import slow_epoch_start
from stepscope.trial.facts import facts_of
from stepscope.trial.fixes import FIXES, Facts

STEP_NS = 100_000_000


def diagnosis(saving_ns, *evidence):
    """One slow start of an epoch. Of its saving, what keeping the workers saves is evidence."""
    finding = Finding(
        id=slow_epoch_start.ID,
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
    shown = SimpleNamespace(step_ns=STEP_NS)
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


def test_in_doubt_nothing_is_promised():
    facts = facts_of(diagnosis(60_000_000, kept(40_000_000)), {}, "others were busy")
    assert (facts.workers_kept_ratio, facts.promises) == (None, {})
    assert facts.findings == {slow_epoch_start.ID}


@pytest.mark.parametrize(("zeroes", "is_planned"), [(True, True), (None, True), (False, False)])
def test_gradients_that_are_dropped_already_need_no_process(zeroes, is_planned):
    facts = facts_of(diagnosis(None), {"zeroes_gradients": zeroes})
    assert isinstance(FIXES["zero-grad-none"].plan(facts), str) != is_planned
