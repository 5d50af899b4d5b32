"""One step that takes far longer than all others: its cause is named, and stands above symptoms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, Length, ms, us
from tests.support.planted import dump, job, products
from tests.support.ranks_that_wait import meet, write_ranks
from tests.support.step_records import MS, step_records

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.evidence.specific_causes import GREW_BY, GREW_MOST, stalls_in_order
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules import RULES
from stepscope.advice.rules.host.interruptions import ADVICE
from stepscope.advice.rules.steps.uneven import find_stalled_step
from stepscope.analysis.record.summary import summarise_steps
from stepscope.opening.reader import open_run
from stepscope.report.findings import findings_alike

RANKS, STEPS, STALLED = 3, 8, 5
PAUSES = {
    "garbage collection": lambda t: t.gc_pause(ms(40)),
    "host, cause not recorded": lambda t: t.python(ms(40)),
    "allocation": lambda t: t.malloc(1 << 30, ms(40)),
}


def rank_that_pauses(late: int, pause) -> list[GpuTrace]:
    """Ranks that meet once in each step; one of them pauses once."""

    def build(rank: int, length: Length) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=RANKS, device=rank, memory_bytes=80 << 30)
        t.memory(55 << 30)
        for step in range(STEPS):
            with t.step():
                products(t, 8)
                t.sync()
                if rank == late and step == STALLED:
                    pause(t)
                products(t, 1)
                t.wait_collective(t.collective("all_reduce", 64 << 20, length))
                t.sync()
        return t

    return meet(build, RANKS, us(300))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("late", range(RANKS))
@pytest.mark.parametrize("part", PAUSES)
def test_the_rank_that_pauses_stands_above_those_that_wait_for_it(tmp_path, part, late):
    """The report shows it first, and those that wait for it as one finding below."""
    traces = rank_that_pauses(late, PAUSES[part])
    diagnosis = diagnose(open_run(write_ranks(traces, tmp_path / "job")))
    about = [one for one in diagnosis.findings if one.steps == (STALLED,)]
    cause, *symptoms = about
    assert (cause.id, cause.rank) == ("stalled-step", late)
    # 8.4 ms of products, 0.3 ms of exchange and what the host takes to notice; 40 ms more.
    usual_ns = sum(w.end_ns - w.start_ns for w in traces[late].work if w.step == 2)
    seen = {item.label: item.value for item in cause.evidence}
    assert seen["lost in it"] == pytest.approx(ms(40), rel=0.01)
    assert seen["the others, their median"] == pytest.approx(usual_ns, rel=0.05)
    assert seen[GREW_MOST] == f"idle: {part}"
    assert seen[GREW_BY] == pytest.approx(ms(40), rel=0.01)
    assert cause.title.endswith(f"times as long as the others, mostly in {part}")
    assert (cause.advice == ADVICE) is (part == "garbage collection")
    assert {one.rank for one in symptoms} == set(range(RANKS)) - {late}
    assert {one.id for one in symptoms} == {"stalled-step", "abnormal-collective"}
    assert cause.placed.endswith(f"because they wait for rank {late}")
    assert f"mostly in {part} (stalled-step" in diagnosis.verdict
    # In the steady steps, nobody waits.
    assert not {one.id for one in diagnosis.findings} & {"late-rank", "rank-waiting"}
    groups = findings_alike(diagnosis.findings, diagnosis.shown.rank)
    shown = [(group[0].id, {one.rank for one in group}) for group in groups if group[0].steps]
    others = set(range(RANKS)) - {late}
    assert shown == [
        ("stalled-step", {late}), ("abnormal-collective", others), ("stalled-step", others),
    ]  # fmt: skip


def test_pauses_in_each_step_stand_above_the_host_that_cannot_hide_them(tmp_path):
    """Without its waits for the GPU, the host would run ahead, and save as much."""

    def build(rank: int, length: Length) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=RANKS, device=rank)
        for _ in range(STEPS):
            with t.step():
                products(t, 8)
                t.sync()
                if rank == 1:
                    t.gc_pause(ms(3))
                products(t, 1)
                t.wait_collective(t.collective("all_reduce", 64 << 20, length))
                t.sync()
        return t

    job_of_three = write_ranks(meet(build, RANKS, us(300)), tmp_path / "job")
    diagnosis = diagnose(open_run(job_of_three))
    order = [(one.id, one.rank) for one in diagnosis.findings]
    assert order[0] == ("garbage-collector", 1)
    assert set(order[1:3]) == {("synchronisation", 1), ("late-rank", 1)}
    assert diagnosis.findings[0].saving_ns == pytest.approx(ms(3), rel=0.01)
    assert diagnosis.verdict.startswith("garbage-collector")


def alone(tmp_path, t: GpuTrace) -> Diagnosis:
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(dump(t))
    return diagnose(open_run(str(path)))


@pytest.mark.parametrize(("compiled_ms", "is_told"), [(120, True), (460, False)])
def test_a_stall_that_is_mostly_compiling_is_told_by_findings_about_that(
    tmp_path, compiled_ms, is_told
):
    def body(t: GpuTrace, step: int) -> None:
        if step == 4:
            with t.annotate("_compile.compile_inner (dynamo_timed)"):
                t.python(ms(compiled_ms))
            t.python(ms(500 - compiled_ms))
        products(t)

    found = {one.id for one in alone(tmp_path, job(body, steps=8)).findings}
    assert ("stalled-step" in found) is is_told
    assert "compilation-in-window" in found


@pytest.mark.parametrize(("lost_ms", "is_found"), [(26, False), (29, True)])
def test_a_stall_counts_from_three_steps_on(tmp_path, lost_ms, is_found):
    """Steps of 9.3 ms: from 18.6 ms more it is a stall, from 27.9 ms more a finding."""

    def body(t: GpuTrace, step: int) -> None:
        t.python(ms(lost_ms) if step == 4 else 0)
        products(t)
        t.sync()

    found = {one.id for one in alone(tmp_path, job(body, steps=8)).findings}
    assert ("stalled-step" in found) is is_found


def in_record(durations_ms: list[float], gc_ms: list[float]) -> list[Finding]:
    records = [
        replace(record, gc_ns=round(pause * MS))
        for record, pause in zip(step_records(durations_ms), gc_ms, strict=True)
    ]
    return find_stalled_step(Subject(0, summarise_steps(records)))


@pytest.mark.parametrize(("paused_ms", "is_cause"), [(290, True), (160, True), (140, False)])
def test_the_record_names_the_garbage_collector_if_it_explains_most_of_a_stall(paused_ms, is_cause):
    (finding,) = in_record([10.0] * 12 + [310.0] + [10.0] * 12, [0] * 12 + [paused_ms] + [0] * 12)
    seen = {item.label: item.value for item in finding.evidence}
    assert (finding.steps, seen["lost in it"]) == ((12,), 300 * MS)
    assert seen["measured by"] == "step record"
    assert seen.get(GREW_BY) == (paused_ms * MS if is_cause else None)
    assert ("mostly in garbage collection" in finding.title) is is_cause
    assert (finding.advice == ADVICE) is is_cause


PARTS = ("exposed communication", "waiting for communication", "idle: garbage collection", None)
SEVERITIES = list(Severity)


@st.composite
def findings(draw) -> list[Finding]:
    """Findings about steps that stall, and others, in any order."""
    found = []
    for rank in range(draw(st.integers(1, 4))):
        for step in range(draw(st.integers(0, 2))):
            part = draw(st.sampled_from(PARTS))
            evidence = () if part is None else (Evidence(GREW_MOST, part, "text"),)
            found.append(("stalled-step", rank, (step,), evidence))
            if draw(st.booleans()):
                found.append(("abnormal-collective", rank, (step,), ()))
        found.append(("low-gpu-utilisation", rank, (), ()))
    return [
        Finding(
            id=rule, title="", severity=draw(st.sampled_from(SEVERITIES)), rank=rank,
            saving_ns=None, saving_reason="not known", assumption="", predicted_step_ns=None,
            evidence=evidence, steps=steps, advice="",
        )
        for rule, rank, steps, evidence in draw(st.permutations(found))
    ]  # fmt: skip


def _part(one: Finding) -> str | None:
    return next((str(item.value) for item in one.evidence), None)


@given(findings())
def test_only_stalls_with_a_cause_move_and_only_above_what_waits(found):
    assert set(RULES) >= {one.id for one in found}
    placed = stalls_in_order(found)
    moved = [one for one in placed if one.placed]
    assert all(_part(one) == "idle: garbage collection" for one in moved)
    where = {(one.id, one.rank, one.steps): place for place, one in enumerate(placed)}
    still = [one for one in found if (one.id, one.rank, one.steps) not in
             {(m.id, m.rank, m.steps) for m in moved}]  # fmt: skip
    assert [one for one in placed if not one.placed] == still
    for cause in found:
        if _part(cause) != "idle: garbage collection":
            continue
        step = cause.steps
        causes = {o.rank for o in found if o.steps == step and _part(o) == _part(cause)}
        waiting = [
            one
            for one in found
            if one.steps == step
            and one.rank not in causes
            and (one.id == "abnormal-collective" or "communication" in (_part(one) or ""))
        ]
        now = placed[where[cause.id, cause.rank, step]]
        assert bool(now.placed) is bool(waiting)
        for one in waiting:
            assert where[cause.id, cause.rank, step] < where[one.id, one.rank, step]
        severities = [SEVERITIES.index(one.severity) for one in (cause, *waiting)]
        assert SEVERITIES.index(now.severity) == min(severities)
