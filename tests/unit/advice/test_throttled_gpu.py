"""What the finding about a throttled GPU promises, says and advises, from figures by hand."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import ms

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rules.communication.ranks import find_throttled_gpu
from stepscope.analysis.record.metrics import GpuClock, SlowClock
from stepscope.skew.rank_skew import ARRIVALS, RankSkew, RankWait

STEP_NS, COMPUTE_NS = ms(100), ms(80)


def clock(reasons=(), celsius=None, watts=None) -> SlowClock:
    """At 1,200 of 1,600 MHz."""
    return SlowClock(GpuClock("NVIDIA H100", 40, 1200, watts, celsius, tuple(reasons)), 3, 1600)


def skew(late: tuple[int, ...], wait_ns: int, saving_ns: int) -> RankSkew:
    waits = tuple(RankWait(rank, 0 if rank in late else wait_ns, 0) for rank in range(4))
    return RankSkew(
        basis=ARRIVALS, is_device=True, steps=10, step_ns=STEP_NS, late=late, wait_ns=wait_ns,
        saving_ns=saving_ns, last_share=1.0, error_ns=0, ranks=waits, course=None,
    )  # fmt: skip


def found(slow: SlowClock | None = None, meeting: RankSkew | None = None, **more) -> Finding:
    about = {"shown_step_ns": STEP_NS, "shown_compute_ns": COMPUTE_NS, **more}
    (finding,) = find_throttled_gpu(Subject(2, slow_clock=slow or clock(), skew=meeting, **about))
    return finding


def test_no_lower_clock_is_no_finding():
    assert find_throttled_gpu(Subject(2, skew=skew((2,), ms(30), ms(30)))) == []


@pytest.mark.parametrize(
    ("meeting", "saving_ns", "severity"),
    [
        # At its peers' clock 80 ms of kernels take three quarters: 20 ms less.
        (skew((2,), ms(30), ms(30)), ms(20), Severity.HIGH),
        # The next rank is the last from 12 ms on.
        (skew((2,), ms(30), ms(12)), ms(12), Severity.HIGH),
        (skew((2,), ms(10), ms(9)), ms(9), Severity.MEDIUM),
        # Others wait, but for another rank; or hardly; or nothing is known.
        (skew((1,), ms(30), ms(30)), None, Severity.LOW),
        (skew((2,), ms(3), ms(3)), None, Severity.LOW),
        (None, None, Severity.LOW),
    ],
)
def test_it_saves_what_its_clock_costs_as_far_as_others_wait_for_it(meeting, saving_ns, severity):
    finding = found(meeting=meeting)
    assert finding.title == "the GPU of rank 2 is throttled: 1200 MHz, 75% of its peers' 1600 MHz"
    assert (finding.saving_ns, finding.severity) == (saving_ns, severity)
    if saving_ns is None:
        assert (finding.predicted_step_ns, finding.assumption) == (None, "")
        assert finding.saving_reason == "no other rank is known to wait for this one"
    else:
        assert finding.predicted_step_ns == STEP_NS - saving_ns
        assert "in proportion to the clock, and the others stay as they are" in finding.assumption


def test_without_a_trace_nobody_knows_how_long_its_kernels_take():
    meeting = skew((2,), ms(30), ms(30))
    assert found(meeting=meeting, shown_compute_ns=None).saving_ns is None
    assert found(meeting=meeting, shown_step_ns=None).saving_ns is None


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ((2, 3), "rank 3, late as well, comes earlier, too; the others stay as they are"),
        ((0, 2, 3), "ranks 0, 3, late as well, come earlier, too; the others stay as they are"),
    ],
)
def test_of_several_late_ranks_the_others_must_come_earlier_too(late, words):
    assert found(meeting=skew(late, ms(30), ms(30))).assumption.endswith(words)


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ((("sw_thermal_slowdown", 0.9), ("sw_power_cap", 0.2)), "It is too hot"),
        ((("sw_power_cap", 0.9), ("hw_thermal_slowdown", 0.2)), "Power limits it"),
        ((("hw_power_brake_slowdown", 0.5),), "Power limits it"),
        ((("applications_clocks_setting", 1.0),), "Its clocks were set lower"),
        ((("hw_slowdown", 0.5),), "Look at `nvidia-smi"),
        ((), "Look at `nvidia-smi"),
    ],
)
def test_the_remedy_goes_by_the_most_frequent_reason(reasons, words):
    finding = found(clock(reasons))
    assert finding.advice.startswith(words)
    assert finding.advice.endswith("leave this GPU or its machine out of the job.")
    seen = {one.label: one.value for one in finding.evidence}
    for reason, share in reasons:
        assert seen[f"samples with {reason.replace('_', ' ')}"] == share


def test_what_was_not_sampled_is_not_told():
    labels = {one.label for one in found().evidence}
    assert not labels & {"highest temperature, in °C", "mean power, in W"}
    seen = {one.label: one.value for one in found(clock(celsius=91.6, watts=433.4)).evidence}
    assert seen["highest temperature, in °C"] == 92
    assert seen["mean power, in W"] == 433
    assert seen["share of its peers' clock"] == 0.75
