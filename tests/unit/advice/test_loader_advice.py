"""How many workers a loader is told to have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.step_records import MS, step_records

from stepscope.advice.loader_advice import LoaderFacts, advise, facts_of
from stepscope.advice.rules import input_bound
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.record.summary import summarise_steps
from stepscope.run.manifest import LoaderRecord


def test_two_cpus_are_not_told_forty_workers():
    facts = LoaderFacts(workers=0, has_workers=False, cpus=2, cpu_share=0.98)
    found = advise(facts, 41 * MS, 40 * MS)
    assert found.workers == 1
    assert found.alone_ns == 40 * MS
    assert "there are only 2 CPUs" in found.advice
    assert "cost so much less" in found.assumption


def test_one_worker_that_keeps_up_is_not_told_to_be_too_few():
    """1.4 ms of loading beside 18.6 ms of work: a spare worker has no CPU, and is not needed."""
    facts = LoaderFacts(workers=0, has_workers=False, cpus=2, cpu_share=1.0)
    found = advise(facts, 20 * MS, round(1.4 * MS))
    assert found.workers == 1
    assert found.alone_ns is None
    assert "keep up" not in found.advice
    assert found.assumption.startswith("1 worker prepares batches")


def test_loading_that_waits_may_have_more_workers_than_cpus():
    facts = LoaderFacts(workers=0, has_workers=False, cpus=2, cpu_share=0.02)
    found = advise(facts, 50 * MS, 40 * MS)
    assert found.workers == 5
    assert found.alone_ns is None
    assert "more workers than CPUs" in found.advice


def test_two_workers_are_not_told_two_workers():
    facts = LoaderFacts(workers=2, has_workers=True, cpus=16, cpu_share=0.9)
    found = advise(facts, 30 * MS, 20 * MS)
    assert found.workers == 7  # each takes 60 ms for a batch, and a step takes 10
    assert "from 2 to 7" in found.advice


def test_workers_that_take_all_cpus_are_to_do_less():
    facts = LoaderFacts(workers=4, has_workers=True, cpus=4, cpu_share=0.95)
    found = advise(facts, 30 * MS, 20 * MS)
    assert found.workers == 4
    assert "already take the 4 CPUs" in found.advice


def test_a_trace_that_shows_workers_but_not_how_many():
    found = advise(LoaderFacts(has_workers=True), 30 * MS, 20 * MS)
    assert found.workers is None
    assert "3.0 times" in found.advice


@given(
    now=st.integers(0, 64),
    cpus=st.integers(1, 128) | st.none(),
    share=st.floats(0, 1) | st.none(),
    wait=st.integers(1, 99),
)
def test_there_are_never_fewer_workers_than_now_and_never_a_needless_crowd(now, cpus, share, wait):
    facts = LoaderFacts(now, now > 0, cpus, share)
    found = advise(facts, 100 * MS, wait * MS)
    assert found.workers is not None
    assert found.workers >= max(1, now)
    if cpus is not None and facts.burns_cpu:
        assert found.workers <= max(1, now, cpus - 1)
    if found.alone_ns is not None:
        assert 100 * MS - wait * MS <= found.alone_ns


@pytest.mark.parametrize(
    ("workers", "kept"), [(True, LoaderFacts(None, True)), (False, LoaderFacts(0, False))]
)
def test_a_trace_tells_whether_there_are_workers(workers, kept):
    t = GpuTrace(device_name=None)
    for _ in range(3):
        with t.step():
            t.data_wait(ms(5), workers=workers)
            t.op("aten::linear").python(ms(5))
    assert facts_of(Subject(0, window=WindowView(t.load()))) == kept


def test_the_record_tells_workers_cpus_and_what_loading_uses():
    summary = summarise_steps(step_records([50] * 20, waits_ms=40, cpu_ms=48, wait_cpu_ms=38))
    loader = LoaderRecord(workers=0, cpus=8, local_ranks=4)
    (finding,) = input_bound.find(Subject(0, summary, loader=loader))
    told = {evidence.label: evidence.value for evidence in finding.evidence}
    assert told["loader workers now"] == 0
    assert told["CPUs for this rank"] == 2
    assert told["share of loading that is work for a CPU"] == 0.95
    assert told[input_bound.WORKERS_LABEL] == 1
    assert told["step with these workers alone"] == 40 * MS


def test_the_share_of_workers_comes_from_the_manifest():
    summary = summarise_steps(step_records([50] * 20, waits_ms=40, cpu_ms=9))
    loader = LoaderRecord(workers=2, cpus=2, worker_cpu_share=0.03)
    facts = facts_of(Subject(0, summary, loader=loader))
    assert facts == LoaderFacts(2, True, 2, 0.03)
