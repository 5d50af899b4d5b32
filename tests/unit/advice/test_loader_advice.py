"""How many workers a loader is told to have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.step_records import MS, step_records

from stepscope.advice.evidence.loader_advice import LoaderFacts, advise, facts_of
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.rules.input import input_bound
from stepscope.advice.rules.input.input_bound import find_input_bound
from stepscope.advice.rules.input.slow_epoch_start import find_slow_epoch_start
from stepscope.advice.rules.steps.uneven import find_uneven_steps
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


@pytest.mark.parametrize("keeps", [False, True, None])
def test_more_workers_are_to_be_kept_where_each_epoch_starts_them_anew(keeps):
    facts = LoaderFacts(workers=1, has_workers=True, cpus=2, cpu_share=0.03, keeps_workers=keeps)
    found = advise(facts, 24 * MS, 22 * MS)
    assert found.workers == 13
    assert ("persistent_workers=True" in found.advice) is (keeps is False)
    assert ("live on from epoch to epoch" in found.assumption) is (keeps is False)


def test_loading_that_waits_may_have_several_workers_on_a_single_cpu():
    """As of a rank that shares two CPUs with another one, and reads from a slow disk."""
    facts = LoaderFacts(workers=0, has_workers=False, cpus=1, cpu_share=0.045)
    found = advise(facts, 59 * MS, 47 * MS)
    assert found.workers == 5
    assert not found.needs_cheaper
    computes = advise(replace(facts, cpu_share=0.9), 59 * MS, 47 * MS)
    assert computes.workers == 1
    assert "there is only 1 CPU, and the training needs it" in computes.advice


def test_workers_that_take_all_cpus_are_to_do_less():
    facts = LoaderFacts(workers=4, has_workers=True, cpus=4, cpu_share=0.95)
    found = advise(facts, 30 * MS, 20 * MS)
    assert found.workers == 4
    assert "already take the 4 CPUs" in found.advice


def test_the_training_itself_needs_a_cpu():
    facts = LoaderFacts(workers=1, has_workers=True, cpus=2, cpu_share=0.95)
    found = advise(facts, 30 * MS, 20 * MS)
    assert found.workers == 1
    assert found.advice.startswith(
        "The training takes one of the 2 CPUs, and the loader's 1 worker already takes the other:"
    )


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
    (finding,) = find_input_bound(Subject(0, summary, loader=loader))
    told = {evidence.label: evidence.value for evidence in finding.evidence}
    assert told["loader workers now"] == 0
    assert told["CPUs for this rank"] == 2
    assert told["share of loading that is work for a CPU"] == 0.95
    assert told[input_bound.WORKERS_LABEL] == 1
    assert told["step with these workers alone"] == 40 * MS


@pytest.mark.parametrize(
    ("cpus", "cpu_ms", "devices", "is_at_most"),
    [(2, 48, (), True), (8, 48, (), True), (256, 48, (), False), (2, 48, ("H200",), False),
     (2, 12, (), False)],
)  # fmt: skip
def test_workers_that_take_cpus_from_the_training_save_at_most_the_wait(
    cpus, cpu_ms, devices, is_at_most
):
    """10 of 50 ms are waits. On 8 CPUs two workers may cost 40 / 3 ms, on 256 a 42nd of that."""
    steps = step_records([50] * 20, waits_ms=10, cpu_ms=cpu_ms, wait_cpu_ms=9 if cpu_ms > 12 else 1)
    loader = LoaderRecord(workers=0, cpus=cpus)
    subject = Subject(0, summarise_steps(steps), loader=loader, job_devices=devices)
    (finding,) = find_input_bound(subject)
    assert finding.is_upper_bound is is_at_most
    assert ("computes on the same CPUs" in finding.advice) is is_at_most


def made_in_the_loop(cpu_ms: float, queued_ms: float = 0.0, cpus: int | None = 2) -> Subject:
    """Steps of 50 ms, 40 of which the loop spends in its own phase "data"."""
    columns = {"cpu_ms": cpu_ms, "queued_ms": queued_ms, "phases_ms": {"data": 40.0}}
    return Subject(0, summarise_steps(step_records([50.0] * 20, **columns)), job_cpus=cpus)


@pytest.mark.parametrize("queued_ms", [0.0, 20.0])
def test_batches_that_the_loop_computes_itself_get_no_more_workers_than_cpus(queued_ms):
    computed = made_in_the_loop(48.0 - queued_ms, queued_ms)
    (finding,) = find_input_bound(computed)
    told = {evidence.label: evidence.value for evidence in finding.evidence}
    assert told["CPUs for this rank"] == 2
    assert told[input_bound.WORKERS_LABEL] == 1
    assert finding.is_upper_bound
    assert "there are only 2 CPUs" in finding.advice
    assert "waits for storage" not in finding.advice


@pytest.mark.parametrize(
    "waiting", [made_in_the_loop(9.0), made_in_the_loop(29.0), made_in_the_loop(48.0, cpus=None)]
)
def test_batches_that_the_loop_may_only_wait_for_are_not_limited_by_cpus(waiting):
    """With 29 of 50 ms on a CPU, 10 may be the rest of the step and 19 of 40 the input's."""
    (finding,) = find_input_bound(waiting)
    told = {evidence.label: evidence.value for evidence in finding.evidence}
    assert told[input_bound.WORKERS_LABEL] == 5
    assert not finding.is_upper_bound


def test_batches_of_a_generator_that_computes_get_no_more_workers_than_cpus():
    summary = summarise_steps(step_records([50] * 20, waits_ms=40, cpu_ms=48, wait_cpu_ms=38))
    facts = facts_of(Subject(0, summary, job_cpus=4))
    assert (facts.cpus, facts.cpu_share) == (4, 0.95)
    assert advise(facts, 50 * MS, 40 * MS).workers == 3


def test_waiting_for_a_cpu_is_no_work_of_the_loader():
    """A loader that sleeps 64 of 84 ms, on CPUs so busy that each sample waits for one."""
    busy = {"waits_ms": 224, "wait_cpu_ms": 160, "cpu_ms": 20, "queued_ms": 350}
    loader = LoaderRecord(workers=0, cpus=2, local_ranks=1)
    crowded = facts_of(Subject(0, summarise_steps(step_records([438] * 20, **busy)), loader=loader))
    assert crowded.cpu_share == pytest.approx(160 * 20 / 370 / (64 + 160 * 20 / 370), abs=1e-3)
    assert crowded.burns_cpu is False
    assert advise(crowded, 438 * MS, 224 * MS).workers == 3
    quiet = {"waits_ms": 66, "wait_cpu_ms": 2, "cpu_ms": 20, "queued_ms": 0}
    free = facts_of(Subject(0, summarise_steps(step_records([84] * 20, **quiet)), loader=loader))
    assert free.cpu_share == pytest.approx(2 / 66, abs=1e-3)


def test_the_share_of_workers_comes_from_the_manifest():
    summary = summarise_steps(step_records([50] * 20, waits_ms=40, cpu_ms=9))
    loader = LoaderRecord(workers=2, cpus=2, worker_cpu_share=0.03)
    facts = facts_of(Subject(0, summary, loader=loader))
    assert facts == LoaderFacts(2, True, 2, 0.03, record=loader)


def restarting(persistent=False, starts=5, wait_ms=1.0, *, workers_ms=100, first_ms=400, workers=2):
    """100 steps of 20 ms: in four, workers end, others start, and their first batch comes."""
    durations, waits, changed = [20.0] * 100, [wait_ms] * 100, [0.0] * 100
    for step in (20, 40, 60, 80):
        waits[step] = wait_ms + workers_ms + first_ms
        durations[step], changed[step] = 20 + workers_ms + first_ms, workers_ms
    summary = summarise_steps(step_records(durations, waits_ms=waits, workers_ms=changed))
    loader = LoaderRecord(workers=workers, cpus=8, is_persistent=persistent, starts=starts)
    return Subject(0, summary, loader=loader)


def test_workers_that_start_anew_in_each_epoch_are_to_be_kept():
    (finding,) = find_slow_epoch_start(restarting())
    assert find_input_bound(restarting()) == []  # 1 ms of 20: nothing that workers could shorten
    assert "starts its workers anew" in finding.title
    assert finding.advice.startswith("Keep the loader's workers")
    assert "persistent_workers=True" in finding.advice
    assert "num_workers" not in finding.advice
    # Of the first batch, two workers may need two steps of 20 ms: the middle. Whole epochs count.
    assert finding.saving_ns == 4 * (100 + 400 - 20) * MS // 80
    assert finding.steps == (20, 40, 60, 80)
    told = {evidence.label: evidence.value for evidence in finding.evidence}
    assert told["ending and starting workers"] == 100 * MS
    assert told["wait beyond other steps', each time"] == 500 * MS
    assert find_uneven_steps(restarting()) == []


def test_workers_that_are_kept_are_not_to_be_kept():
    (finding,) = find_slow_epoch_start(restarting(persistent=True))
    assert finding.saving_ns is None
    assert "persistent_workers" not in finding.advice


def test_waits_of_all_steps_come_first_where_they_are_most():
    both = restarting(wait_ms=10, workers_ms=100, first_ms=30)
    (finding,) = find_input_bound(both)
    assert finding.title == "the step waits for its input"
    assert finding.advice.startswith("Raise num_workers from 2 to 5")  # as without the restarts
    # In 4 of the 80 steps an epoch begins, whose first batch nobody can have prepared.
    assert finding.saving_ns == pytest.approx(10 * MS * 76 / 80, rel=0.01)
    (at_start,) = find_slow_epoch_start(both)
    assert at_start.saving_ns == 4 * (100 + 30 // 2) * MS // 80  # whole epochs count


@pytest.mark.parametrize(("epoch", "is_known"), [(3, False), (4, False), (5, True), (20, True)])
def test_workers_that_make_one_batch_of_an_epoch_do_not_show_that_they_keep_up(epoch, is_known):
    """Their first batch takes 60 ms longer: without a second one, nobody knows why."""
    starts = [step % epoch == 0 for step in range(10 * epoch)]
    waits = [100 if begins else 0 for begins in starts]
    records = step_records(
        [5 + wait for wait in waits],
        waits_ms=waits,
        workers_ms=[40 if begins else 0 for begins in starts],
    )
    found = summarise_steps(records).epoch_starts
    of_workers_ns = 40 * MS * len(found.steps)
    assert (found.kept_workers_save(4) > of_workers_ns) is is_known


def test_the_first_start_of_workers_is_paid_once():
    records = step_records([220] + [20] * 9, waits_ms=[201] + [1] * 9, workers_ms=[150] + [0] * 9)
    summary = summarise_steps(records)
    assert summary.epoch_starts.steps == ()


@given(
    durations=st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(0, 900)), min_size=5
    ),
    workers=st.integers(1, 64),
)
def test_keeping_workers_never_saves_more_than_was_waited_where_they_start(durations, workers):
    """Each step: work, wait, and how much of the wait started workers."""
    records = step_records(
        [1 + work + wait for work, wait, _ in durations],
        waits_ms=[wait for _, wait, _ in durations],
        workers_ms=[min(wait, changed) for _, wait, changed in durations],
    )
    summary = summarise_steps(records)
    saved_ns = summary.epoch_starts.kept_workers_save(workers)
    steps = {record.step: record for record in records}
    there = [steps[step] for step in summary.epoch_starts.steps]
    assert 0 <= saved_ns <= sum(record.data_wait_ns for record in there)
    loader = LoaderRecord(workers=workers, is_persistent=False, starts=9)
    for finding in find_input_bound(Subject(0, summary, loader=loader)):
        assert finding.saving_ns <= sum(steps[s].data_wait_ns for s in summary.steps)


def test_an_iterable_dataset_must_be_divided_before_it_gets_workers():
    for workers in (0, 2):
        facts = LoaderFacts(workers, workers > 0, 16, 0.9, record=LoaderRecord(is_iterable=True))
        first_sentence = advise(facts, 30 * MS, 20 * MS).advice.split(". ")[0]
        assert "IterableDataset" in first_sentence
        assert "get_worker_info" in first_sentence
        assert (
            "IterableDataset"
            not in advise(LoaderFacts(workers, workers > 0, 16, 0.9), 30, 20).advice
        )


def epochs(*, work_ms=20, wait_ms=0.3, start_ms=1500, sampler_ms=1499, loader=None):
    """Four epochs of 12 steps, of which each begins with a wait."""
    starts = [start_ms if step % 12 == 0 else 0 for step in range(48)]
    sampler = [sampler_ms if step % 12 == 0 else 0 for step in range(48)]
    waits = [wait_ms + start for start in starts]
    durations = [work_ms + wait for wait in waits]
    records = step_records(durations, waits_ms=waits, starts_ms=waits, sampler_ms=sampler)
    for record, start in zip(records, starts, strict=True):
        object.__setattr__(record, "epoch_start_ns", record.data_wait_ns if start else 0)
    return Subject(0, summarise_steps(records), loader=loader or LoaderRecord(workers=0, cpus=8))


def test_no_worker_shortens_what_the_sampler_takes():
    subject = epochs()
    assert find_input_bound(subject) == []
    (finding,) = find_slow_epoch_start(subject)
    assert finding.title == "each epoch begins with a wait of 1.50 s, in the sampler"
    assert "More workers do not help" in finding.advice
    assert "num_workers" not in finding.advice
    count = len(subject.steps.steps)
    assert finding.saving_ns == pytest.approx(3 * 1499 * MS / count, rel=0.01)


def test_what_only_the_first_batch_costs_promises_nothing():
    (finding,) = find_slow_epoch_start(epochs(sampler_ms=0))
    assert finding.title.endswith("for the first batch")
    assert finding.saving_ns is None


def test_waits_of_two_kinds_have_two_findings():
    subject = epochs(wait_ms=60, start_ms=300, sampler_ms=290)
    (ordinary,) = find_input_bound(subject)
    (at_start,) = find_slow_epoch_start(subject)
    count = len(subject.steps.steps)
    assert ordinary.saving_ns == pytest.approx(60 * MS * (count - 3) / count, rel=0.01)
    told = {evidence.label: evidence.value for evidence in ordinary.evidence}
    assert told[input_bound.WORKERS_LABEL] == 4  # 60 ms beside 20, whatever an epoch's start takes
    assert at_start.saving_ns == pytest.approx(3 * 290 * MS / count, rel=0.01)


def test_nobody_can_prepare_batches_of_an_iterator_made_in_every_step():
    records = step_records([50] * 20, waits_ms=30, starts_ms=30, sampler_ms=20)
    subject = Subject(0, summarise_steps(records), loader=LoaderRecord(workers=0, cpus=8))
    (finding,) = find_slow_epoch_start(subject)
    assert finding.saving_ns == pytest.approx(20 * MS, rel=0.06)
    assert find_input_bound(subject) == []


def test_what_was_not_measured_is_not_said_as_fact():
    """One worker and two CPUs: whether it sleeps or computes decides, and nobody knows."""
    found = advise(LoaderFacts(1, True, 2, None), 23 * MS, 21 * MS)
    assert "take" not in found.advice.split("num_workers")[0]
    assert "was not measured" in found.advice
    assert found.workers > 1
    sleeping = advise(LoaderFacts(1, True, 2, 0.05), 23 * MS, 21 * MS)
    assert sleeping.advice.startswith("Raise num_workers from 1 to")
    assert sleeping.workers == 13


def test_a_batch_that_is_made_sooner_than_it_is_received_needs_no_worker():
    batch = LoaderRecord(batch_bytes=64 * 3072, batch_tensors=2)
    in_memory = LoaderFacts(0, False, 8, 1.0, record=batch)
    found = advise(in_memory, 5 * MS, MS)
    assert found.workers is None
    assert found.advice.startswith("Workers would not help")
    assert found.no_saving
    decoding = advise(in_memory, 50 * MS, 40 * MS)
    assert decoding.workers == 5
    assert decoding.transfer_ns == in_memory.transfer_ns > MS // 2


def test_input_bound_promises_no_saving_where_workers_do_not_help():
    summary = summarise_steps(step_records([5] * 20, waits_ms=1, cpu_ms=5, wait_cpu_ms=1))
    loader = LoaderRecord(workers=0, cpus=8, batch_bytes=200_000, batch_tensors=2)
    (finding,) = find_input_bound(Subject(0, summary, loader=loader))
    assert finding.saving_ns is None
    assert finding.changes is None


def test_workers_get_no_more_memory_than_there_is():
    batch = LoaderRecord(batch_bytes=64 << 20, batch_tensors=1)
    facts = LoaderFacts(0, False, 64, 0.9, record=replace(batch, shared_memory_bytes=256 << 20))
    found = advise(facts, 1000 * MS, 900 * MS)
    assert found.workers == 2
    assert "/dev/shm" in found.advice
    assert "128 MiB of shared memory" in found.advice
    tight = replace(facts, record=replace(batch, shared_memory_bytes=64 << 20))
    none = advise(tight, 1000 * MS, 900 * MS)
    assert none.workers is None
    assert "--shm-size" in none.advice
    own = replace(batch, memory_bytes=3 << 30, worker_bytes=1 << 30)
    heavy = replace(facts, workers=2, has_workers=True, record=own)
    assert advise(heavy, 1000 * MS, 900 * MS).workers == 4


def test_a_thread_that_reads_the_loader_is_one_worker():
    facts = LoaderFacts(0, False, 16, 0.05, record=LoaderRecord(is_beside=True))
    found = advise(facts, 85 * MS, 68 * MS)
    assert found.workers == 6  # 85 ms for a batch, and 17 for the rest of the step
    assert found.advice.startswith("A thread reads the loader")
