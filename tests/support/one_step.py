"""What must hold for the answers about any trace: one step, parts that add up, true savings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.rank.summary import RankSummary
from stepscope.analysis.critical_path import critical_path
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.questions import ask_all, question
from stepscope.analysis.selection.partition import INPUT
from stepscope.analysis.steps import step_table
from stepscope.analysis.what_if import WhatIfTable, what_if_table
from stepscope.opening.reader import open_run
from stepscope.trace.arrays import intervals
from stepscope.trace.model import Trace
from stepscope.trace.paths import resolve_traces

_OF_THE_GPU = {
    "all GPU work",
    "communication",
    "computation on the GPU",
    "copies and fills",
    "waiting for the GPU",
}
_GPU_FINDINGS = {
    "exposed-communication",
    "exposed-copies",
    "full-precision-matmuls",
    "poor-overlap",
    "slow-matmuls",
    "tensor-cores-unused",
}
"""Findings whose fix leaves the host as it is."""


def check_trace(trace: Trace, diagnosis: Diagnosis) -> None:
    """Check all answers about one trace, whose diagnosis was made from its file alone."""
    shown = diagnosis.shown
    what_if, critical = what_if_table(trace), critical_path(trace)
    step_ns = shown.step_ns
    assert step_ns is not None
    assert what_if.step_ns == step_ns
    assert critical.step_ns == step_ns
    if len(trace.steps):
        assert step_table(trace).step_ns == step_ns
    if len(critical.scope.steps) == 1 or len(trace.device_steps["device"].unique()) == 1:
        count = max(1, len(critical.scope.steps))
        once = critical.causes.filter(pl.col("cause") == HostCause.ONE_OFF.word)["total_ns"].sum()
        if once:  # the step leaves out the idle time of calls that come once, the path has all
            assert critical.total_ns - once <= count * step_ns <= critical.total_ns
        else:
            assert critical.total_ns == pytest.approx(count * step_ns, abs=count)
    check_diagnosis(diagnosis)
    least_ns = min(step_ns, host_alone_ns(trace, what_if.scope.steps))
    for row in what_if.causes.iter_rows(named=True):
        assert 0 <= row["saving_ns"] <= step_ns
        assert row["step_ns"] + row["saving_ns"] == step_ns
        assert row["step_ns"] >= least_ns or row["without"] not in _OF_THE_GPU
    for finding in diagnosis.findings:
        if finding.id in _GPU_FINDINGS and finding.predicted_step_ns is not None:
            assert finding.predicted_step_ns >= least_ns


def host_alone_ns(trace: Trace, steps: tuple[int, ...]) -> int:
    """What the host at least needs for a step by itself: its thread's time outside all calls.

    Calls of the runtime, of any thread, may wait for the GPU; nothing else on the host does.
    """
    mine = trace.steps.filter(pl.col("step").is_in(list(steps)))
    if mine.is_empty():
        return 0
    begin, end = int(mine["start_ns"].min()), int(mine["end_ns"].max())
    end -= steady_steps(trace).tail_ns
    calls = (
        trace.events.filter(pl.col("category").is_in(["runtime", "driver"]))
        .select("start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .collect()
    )
    inside = intervals.merge(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    waited = intervals.covered(inside, np.array([begin]), np.array([end]))
    return (end - begin - int(waited.sum())) // len(mine)


def check_run(path: Path) -> Diagnosis:
    """Check that all answers about a run state the step of its record; gives its diagnosis."""
    diagnosis = diagnose(open_run(str(path)))
    check_diagnosis(diagnosis)
    if all(rank.window is None for rank in diagnosis.ranks):
        return diagnosis
    traces = resolve_traces((str(path),))
    ranks = {rank.rank: rank for rank in diagnosis.ranks}
    for name in ("steps", "what-if", "critical-path", "timeline"):
        asked = ask_all(question(name), traces)
        for trace, answer in zip(traces, asked.answers, strict=True):
            rank, result = ranks[trace.rank], answer.result
            if rank.steps is None:
                assert result.scope.recorded is None
                continue
            recorded = result.scope.recorded
            assert recorded.run_step_ns == rank.step_ns
            # The report takes the slow steps of a cycle of the record for steady, too.
            if steady_steps(trace.open()).steps == rank.window_steps:
                assert recorded.window_step_ns == (
                    rank.window_step_ns if rank.window_steps else None
                )
            assert recorded.is_scaled == (name == "what-if")
            if name != "timeline":
                assert result.step_ns == rank.step_ns
            if name == "what-if":
                _check_what_if(result, rank)
    return diagnosis


def _check_what_if(result: WhatIfTable, rank: RankSummary) -> None:
    for row in result.causes.iter_rows(named=True):
        assert 0 <= row["saving_ns"] <= result.step_ns
        assert row["step_ns"] + row["saving_ns"] == result.step_ns
        if row["without"] == INPUT and rank.steps is not None:
            assert row["saving_ns"] <= rank.steps.wait_ns
            if rank.device is None:
                assert row["saving_ns"] == rank.steps.wait_ns


def check_diagnosis(diagnosis: Diagnosis) -> None:
    """Check that the parts of each rank add up to its step, and that no saving exceeds it."""
    for rank in diagnosis.ranks:
        step_ns, partition = rank.step_ns, rank.partition
        assert step_ns is not None
        assert partition is not None
        assert sum(part.total_ns for part in partition.parts) == partition.total_ns
        assert partition.total_ns == pytest.approx(
            partition.steps * step_ns, abs=max(1, partition.steps)
        )
        savings = [one.saving_ns for one in rank.findings if one.saving_ns is not None]
        for finding in rank.findings:
            if finding.saving_ns is not None and finding.predicted_step_ns is not None:
                assert 0 <= finding.saving_ns <= step_ns
                assert finding.saving_ns + finding.predicted_step_ns == step_ns
            if finding.id == "exposed-copies" and rank.recorded_partition is not None:
                window = rank.recorded_partition
                # Those from pageable memory are another finding's.
                exposed_ns = window.of("exposed copies") / max(1, window.steps)
                assert finding.evidence[0].value <= exposed_ns + 1
        assert (rank.together_ns is None) == (not savings)
        if rank.together_ns is not None:
            assert max(savings) <= rank.together_ns <= min(step_ns, sum(savings))
