"""The labelled set: every planted bottleneck is found, and nothing that was not planted."""

from __future__ import annotations

from functools import partial

import pytest
from tests.support import planted as planted_module
from tests.support.gpu_trace import GpuTrace
from tests.support.planted import SCENARIOS, dump

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.advice.rules import RULES
from stepscope.opening.reader import open_run

OF_THE_RECORD = {
    "slow-epoch-start",
    "late-rank",
    "slow-phase",
    "uneven-steps",
    "busy-cpus",
    "throttled-gpu",
    "work-outside-steps",
}
"""Rules of the step record or of sampled metrics: test_rules.py, test_rank_skew.py,
test_throttled_gpu.py and test_work_outside_steps.py have their cases."""

OF_RANKS_WITH_RECORDS = {"imbalance"}
"""Rules of several steps of all ranks: test_accusations.py has their cases."""

OF_A_PIPELINE = {"pipeline-bubble", "uneven-stages"}
"""Rules of ranks that send to each other: test_pipelines.py has their cases."""

WHERE_NOTHING_ELSE_EXPLAINS_IT = {"low-gpu-utilisation"}
"""Rules that stand back wherever another finding says the same: test_one_off_costs.py has cases."""

OF_THE_SNAPSHOT = {
    "activations-dominate",
    "memory-fragmented",
    "memory-leak",
    "one-tensor-dominates",
    "optimizer-state-dominates",
    "out-of-memory",
    "python-memory-leak",
    "reserved-without-bound",
}
"""Rules of the memory snapshot alone, or of tracemalloc: test_memory_rules.py has their cases."""


@pytest.fixture(scope="module")
def judged(judge) -> dict[str, Diagnosis]:
    return {scenario.name: judge(scenario.name)[1] for scenario in SCENARIOS}


@pytest.mark.long
def test_precision_and_recall_are_one(judged, capsys):
    right = wrong = missed = 0
    complaints = []
    for scenario in SCENARIOS:
        found = {finding.id for finding in judged[scenario.name].findings}
        right += len(found & scenario.expected)
        wrong += len(found - scenario.expected)
        missed += len(scenario.expected - found)
        if found != scenario.expected:
            complaints.append(f"{scenario.name}: {sorted(found)}, not {sorted(scenario.expected)}")
    precision, recall = right / (right + wrong), right / (right + missed)
    with capsys.disabled():
        print(
            f"\nrules on {len(SCENARIOS)} labelled traces: precision {precision:.3f}, "
            f"recall {recall:.3f}"
        )
    assert not complaints, "\n".join(complaints)
    assert (precision, recall) == (1.0, 1.0)


@pytest.mark.slow
def test_the_same_is_found_on_amd(tmp_path, monkeypatch):
    """HIP's names, one stream for computation, copies that say nothing of pinned memory."""
    on_amd = partial(GpuTrace, vendor="amd", device_name="AMD Instinct MI300X")
    monkeypatch.setattr(planted_module, "GpuTrace", on_amd)
    path = tmp_path / "trace.pt.trace.json"
    differing = {}
    for scenario in SCENARIOS:
        path.write_bytes(dump(scenario.build()))
        found = {finding.id for finding in diagnose(open_run(str(path))).findings}
        if found != scenario.expected:
            differing[scenario.name] = found
    # There is no TF32 to be on: products of floats take matrix cores at full precision.
    assert differing == {"TF32": {"full-precision-matmuls"}}


def test_every_rule_has_a_positive_and_a_negative_case():
    planted = set().union(*(scenario.expected for scenario in SCENARIOS))
    elsewhere = OF_THE_RECORD | OF_A_PIPELINE | OF_THE_SNAPSHOT | WHERE_NOTHING_ELSE_EXPLAINS_IT
    elsewhere |= OF_RANKS_WITH_RECORDS
    assert planted | elsewhere == set(RULES)
    for rule in planted:
        assert any(rule not in scenario.expected for scenario in SCENARIOS)


def test_every_finding_keeps_its_promises_in_form(judged):
    findings: list[Finding] = [f for d in judged.values() for f in d.findings]
    for finding in findings:
        assert finding.evidence
        assert finding.advice
        if finding.saving_ns is None:
            assert finding.saving_reason
        else:
            assert finding.saving_ns > 0
            assert finding.assumption
            assert finding.predicted_step_ns is not None
            assert finding.predicted_step_ns >= 0


def test_a_fused_optimizer_on_a_cpu_is_promised_to_take_a_fifth(judged):
    (finding,) = judged["unfused optimizer on a CPU"].findings
    # 10 ms that are planted, 1 ms of the optimizer that every such step has, and the calls.
    assert finding.saving_ns == pytest.approx(0.8 * 11_000_000, rel=0.1)
    assert {one.label for one in finding.evidence} >= {"operators per optimizer step"}


def test_foreach_on_a_cpu_is_promised_less_and_not_advised(judged):
    """There, a foreach operator calls one operator per tensor: only a fused one helps."""
    (finding,) = judged["foreach optimizer on a CPU"].findings
    # 10.8 ms that are planted with the time of 200 operators, and 1 ms as above.
    assert finding.saving_ns == pytest.approx(0.65 * 11_800_000, rel=0.1)
    assert "foreach" not in finding.advice


def test_the_partition_of_every_judged_trace_adds_up(judged):
    for diagnosis in judged.values():
        partition = diagnosis.ranks[0].partition
        assert partition is not None
        assert sum(part.total_ns for part in partition.parts) == partition.total_ns


def test_what_takes_time_per_step_is_part_of_a_step_that_the_finding_states(judged):
    parts = 0
    for name, diagnosis in judged.items():
        shown_ns = {rank.rank: rank.step_ns or 0 for rank in diagnosis.ranks}
        for finding in diagnosis.findings:
            times = {one.label: one.value for one in finding.evidence if one.unit == "ns"}
            stated = [value for label, value in times.items() if label.startswith("mean step")]
            longest = max([shown_ns.get(finding.rank, 0), *stated])
            for label, value in times.items():
                parts += "per step" in label
                assert "per step" not in label or value <= longest, (name, finding.id, label)
    assert parts > 50
