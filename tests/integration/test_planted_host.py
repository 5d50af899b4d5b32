"""Real CPU trainings with something planted on the host's side, recorded as people do it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import statistics
import threading
import time
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from tests.support.one_step import check_run  # noqa: E402
from tests.support.trainings import (  # noqa: E402 - they need torch
    BATCH,
    Samples,
    Training,
    loader,
    record_without_schedule,
)

import stepscope  # noqa: E402
from stepscope.advice.diagnosis import diagnose  # noqa: E402
from stepscope.advice.rules.input.input_bound import WORKERS_LABEL  # noqa: E402
from stepscope.opening.reader import open_run  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Loading that waits may have more workers than CPUs.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


WITHIN = 0.1
"""How far a promise may be off."""


def judge(path):
    """The diagnosis of a trace, after the promises that all of them keep."""
    judged = check_run(path) if path.is_dir() else diagnose(open_run(str(path)))
    rank = judged.ranks[0]
    assert rank.partition is not None
    assert sum(part.total_ns for part in rank.partition.parts) == rank.partition.total_ns
    for finding in judged.findings:
        if finding.saving_ns is not None:
            assert finding.predicted_step_ns is not None
            assert finding.predicted_step_ns >= 0
    return judged


def evidence(finding):
    return {one.label: one.value for one in finding.evidence}


def finding_of(judged, rule):
    found = [finding for finding in judged.findings if finding.id == rule]
    assert found, f"{rule} not found: {judged.verdict}"
    return found[0]


# -- loops that nobody annotated ----------------------------------------------------------------


def test_a_loop_without_annotations(tmp_path):
    training = Training()
    path = record_without_schedule(tmp_path / "t.json", lambda: training.loop(loader()))
    trace = stepscope.load(path)
    assert trace.step_source == "16 optimizer steps taken as steps"
    assert (trace.steps["start_ns"][1:] == trace.steps["end_ns"][:-1]).all()
    rank = judge(path).ranks[0]
    # A busy machine may make a start-up or a stall of one of them.
    assert 14 <= rank.partition.steps == len(rank.window_steps) <= 16


def test_accumulation_without_annotations(tmp_path):
    training = Training()
    path = record_without_schedule(
        tmp_path / "t.json", lambda: training.loop(loader(), accumulate=4)
    )
    trace = stepscope.load(path)
    assert trace.step_source == "4 optimizer steps taken as steps"
    fetches = trace.sql(
        "SELECT step, count(*) AS n FROM events WHERE name LIKE 'enumerate(DataLoader)%' "
        "AND step IS NOT NULL GROUP BY step ORDER BY step"
    )
    assert fetches["n"].to_list() == [4, 4, 4, 4]
    rank = judge(path).ranks[0]
    assert 3 <= rank.partition.steps == len(rank.window_steps) <= 4


def test_an_evaluation_between_epochs_is_no_step(tmp_path):
    training = Training()

    def work():
        for _ in range(2):
            training.loop(loader(Samples(8)))
            training.evaluate(loader(Samples(8)))

    trace = stepscope.load(record_without_schedule(tmp_path / "t.json", work))
    assert len(trace.steps) == 16
    gaps = trace.steps["start_ns"][1:] - trace.steps["end_ns"][:-1]
    assert (gaps > 0).to_list() == [number == 7 for number in range(15)]


def test_a_loop_without_loader_and_one_without_training(tmp_path):
    training, batch = Training(), torch.randn(64, 256)
    path = record_without_schedule(tmp_path / "a.json", lambda: training.loop([batch] * 10))
    assert stepscope.load(path).step_source == "10 optimizer steps taken as steps"
    path = record_without_schedule(
        tmp_path / "b.json", lambda: training.evaluate([batch] * 10), with_stack=True
    )
    assert stepscope.load(path).step_source == "10 calls of the module Net_0 taken as steps"
    path = record_without_schedule(tmp_path / "c.json", lambda: training.evaluate([batch] * 10))
    assert stepscope.load(path).steps.is_empty()
    judged = judge(path)
    assert judged.ranks[0].partition.basis.endswith("the whole file as one step")
    assert "forward" in judged.verdict


def test_a_slow_first_step_without_annotations(tmp_path):
    training = Training()

    def work():
        for number, batch in enumerate(loader()):
            training.backward(batch)
            if number == 0:
                time.sleep(1.0)
            training.update()

    trace = stepscope.load(record_without_schedule(tmp_path / "t.json", work))
    wall_ns = (trace.steps["end_ns"] - trace.steps["start_ns"]).to_list()
    assert len(wall_ns) == 16
    assert wall_ns[0] >= 1_000_000_000
    assert statistics.median(wall_ns[1:]) < wall_ns[0] / 3


def test_without_its_wait_a_step_with_accumulation_is_what_the_loop_measures(tmp_path):
    """Every second step has four slow batches; the loop times its steps and its waits itself.

    The others show what the fix gives at best: after a wait the processor is slower, so that a
    planted step stays longer without it.
    """
    planted, without_wait, fixed, off = [], [], [], []
    for number in range(3):
        training = Training()
        slow, fast = iter(loader(Samples(80, delay_s=0.0008))), iter(loader(Samples(80)))
        walls_ns, waits_ns = [], []

        def work(training=training, slow=slow, fast=fast, walls_ns=walls_ns, waits_ns=waits_ns):
            for step in range(20):
                began, waited = time.perf_counter_ns(), 0
                for _ in range(4):
                    asked = time.perf_counter_ns()
                    batch = next(fast if step % 2 else slow)[:4]
                    waited += time.perf_counter_ns() - asked
                    training.backward(batch)
                    time.sleep(0.02)
                training.update()
                walls_ns.append(time.perf_counter_ns() - began)
                waits_ns.append(waited)

        judged = judge(record_without_schedule(tmp_path / f"{number}.json", work))
        finding_of(judged, "input-bound")
        steps = judged.ranks[0].host.steps
        # A busy machine may make a start-up or a stall of one of them.
        assert len(steps["step"]) >= 10
        for step, wall, wait in zip(
            steps["step"], steps["wall_ns"], steps["input_ns"], strict=True
        ):
            # What no event covers of the loop, and of `next`, where others may get the processor.
            assert wait <= waits_ns[step]
            off.append((abs(wall - walls_ns[step]) / wall, (waits_ns[step] - wait) / wall))
            if step % 2:
                fixed.append(wall)
            else:
                planted.append(wall)
                without_wait.append(wall - wait)
    was, promised, is_now = map(statistics.median, (planted, without_wait, fixed))
    print(f"\nslow loader, accumulation, no annotations: off by {promised / is_now - 1:+.1%}")
    walls_off, waits_off = map(statistics.median, zip(*off, strict=True))
    assert walls_off <= 0.01
    assert waits_off <= 0.03
    assert was > 1.3 * is_now
    assert (1 - WITHIN) * is_now <= promised <= 1.3 * is_now


# -- the loader ---------------------------------------------------------------------------------


def test_bursts_of_four_workers_without_annotations(tmp_path):
    training = Training()
    batches = loader(Samples(24, delay_s=0.004), workers=4)
    path = record_without_schedule(tmp_path / "t.json", lambda: training.loop(batches))
    judged = judge(path)
    assert judged.ranks[0].step_source == "24 optimizer steps taken as steps"
    finding = finding_of(judged, "input-bound")
    assert "raise num_workers, to about" in finding.advice
    assert WORKERS_LABEL not in evidence(finding)


def test_bursts_of_four_workers_in_a_record(tmp_path):
    training = Training()
    batches = loader(Samples(20, delay_s=0.02), workers=4)
    with stepscope.Profiler(output_dir=tmp_path, skip_first=1000) as profiler:
        for batch in profiler.watch(batches):
            training.backward(batch)
            training.update()
    (run,) = tmp_path.iterdir()
    finding = finding_of(judge(run), "input-bound")
    told = evidence(finding)
    assert told["loader workers now"] == 4
    assert told[WORKERS_LABEL] > 4
    assert told["share of loading that is work for a CPU"] < 0.5
    assert "from 4 to" in finding.advice


def test_a_queue_that_a_thread_fills_from_a_loader_is_input(tmp_path):
    training, handed = Training(), queue.Queue(maxsize=2)

    def produce():
        for batch in loader(Samples(20, delay_s=0.05)):
            handed.put(batch)
        handed.put(None)

    with stepscope.Profiler(output_dir=tmp_path, skip_first=1000, auto_phases=True) as profiler:
        threading.Thread(target=produce, daemon=True).start()
        while (batch := handed.get()) is not None:
            training.backward(batch)
            training.update()
            profiler.step()
    (run,) = tmp_path.iterdir()
    finding = finding_of(judge(run), "input-bound")
    assert finding.advice.startswith("A thread reads the loader")
    assert evidence(finding)["share of waiting in the step"] > 0.5


class SlowSampler(torch.utils.data.Sampler):
    """Takes its time whenever an epoch begins."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.samples = batches * BATCH

    def __iter__(self):
        time.sleep(0.4)
        return iter(range(self.samples))

    def __len__(self):
        return self.samples


def test_a_sampler_that_takes_its_time_at_each_start_needs_no_workers(tmp_path):
    training = Training()
    batches = torch.utils.data.DataLoader(
        Samples(12), batch_size=BATCH, sampler=SlowSampler(12), num_workers=0
    )
    with stepscope.Profiler(output_dir=tmp_path, skip_first=1000) as profiler:
        for _ in range(4):
            for batch in profiler.watch(batches):
                training.backward(batch)
                time.sleep(0.01)
                training.update()
    (run,) = tmp_path.iterdir()
    finding = finding_of(judge(run), "slow-epoch-start")
    assert "in the sampler" in finding.title
    # In each of three epochs; the first one's is start-up.
    assert finding.saving_ns >= 3 * 400_000_000 / 48
    assert "num_workers" not in finding.advice


def test_a_worker_that_sleeps_in_short_epochs_is_seen_to_sleep(tmp_path):
    training = Training()
    batches = loader(Samples(15, delay_s=0.0005), workers=1)
    with stepscope.Profiler(output_dir=tmp_path, skip_first=1000) as profiler:
        for _ in range(8):
            for batch in profiler.watch(batches):
                training.backward(batch)
                training.update()
    (run,) = tmp_path.iterdir()
    finding = finding_of(judge(run), "input-bound")
    told = evidence(finding)
    assert told["share of loading that is work for a CPU"] < 0.5
    assert told[WORKERS_LABEL] > 2
    assert "more workers than CPUs" in finding.advice
    assert "persistent_workers=True" in finding.advice
    assert "from epoch to epoch" in finding.assumption


# -- compilation --------------------------------------------------------------------------------


@pytest.mark.parametrize("with_stack", [False, True])
def test_compiling_and_calling_what_was_compiled(tmp_path, monkeypatch, with_stack):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    training, batch = Training(), torch.randn(64, 256)
    training.model = torch.compile(training.model, backend="aot_eager")

    def work():
        training.loop([batch] * 6)

    cold = judge(record_without_schedule(tmp_path / "cold.json", work, with_stack=with_stack))
    compiled = finding_of(cold, "compilation-in-window")
    assert compiled.steps == (0,)
    assert evidence(compiled)["share of the window"] > 0.5
    # The step that compiles is a start-up, and no part of the steady step.
    assert 0 not in cold.ranks[0].window_steps
    assert cold.ranks[0].partition.of("compilation") == 0
    path = record_without_schedule(tmp_path / "warm.json", work, with_stack=with_stack)
    warm = judge(path)
    assert "compilation-in-window" not in {finding.id for finding in warm.findings}
    assert warm.ranks[0].host.partition.of("compilation") == 0
    if with_stack:
        names = stepscope.load(path).names.collect()["name"]
        assert names.str.contains("torch/_dynamo/eval_frame.py", literal=True).any()


# -- the machine --------------------------------------------------------------------------------


def burn(cpu):
    os.sched_setaffinity(0, {cpu})
    while True:
        pass


@contextmanager
def cpu_shared_with(count):
    """One CPU and one thread for this process, and so many others that take the CPU, too."""
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    context = multiprocessing.get_context("spawn")
    burners = [context.Process(target=burn, args=(cpu,), daemon=True) for _ in range(count)]
    threads = torch.get_num_threads()
    try:
        os.sched_setaffinity(0, {cpu})
        torch.set_num_threads(1)
        for burner in burners:
            burner.start()
        time.sleep(2.0)
        yield
    finally:
        for burner in burners:
            if burner.pid is not None:
                burner.kill()
                burner.join()
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(threads)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_other_processes_that_take_the_cpu(tmp_path):
    training, batch = Training(), torch.randn(64, 256)
    with (
        cpu_shared_with(3),
        stepscope.Profiler(
            output_dir=tmp_path, skip_first=10, wait=10, warmup=1, active=3, repeat=1
        ) as profiler,
    ):
        for _ in range(60):
            training.backward(batch)
            training.update()
            profiler.step()
    (run,) = tmp_path.iterdir()
    judged = judge(run)
    finding = finding_of(judged, "busy-cpus")
    assert evidence(finding)["share of the step"] > 0.4
    assert judged.verdict.startswith("busy-cpus")
    assert "cpu-bound-python" not in {one.id for one in judged.findings}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_a_sleep_while_other_processes_take_the_cpu(tmp_path):
    training, batch = Training(), torch.randn(64, 256)
    with (
        cpu_shared_with(2),
        stepscope.Profiler(
            output_dir=tmp_path, skip_first=5, wait=5, warmup=1, active=4, repeat=1
        ) as profiler,
    ):
        for _ in range(30):
            training.backward(batch)
            time.sleep(0.1)
            training.update()
            profiler.step()
    (run,) = tmp_path.iterdir()
    finding = finding_of(judge(run), "cpu-bound-python")
    if finding.title.startswith("the training thread sleeps"):
        assert finding.saving_ns == pytest.approx(0.1e9, rel=WITHIN)
    else:  # The machine gave it a CPU more often than not: then Python itself is looked at.
        assert finding.saving_ns > 0.09e9


def test_pauses_of_the_garbage_collector(tmp_path):
    """Every second step collects; the others tell what a step without it takes."""
    # A collection leaves the caches cold for the step after it: steps are long enough to bear that.
    training, batch = Training(), torch.randn(512, 256)
    kept = [[number] for number in range(400_000)]
    with stepscope.Profiler(output_dir=tmp_path, skip_first=1000) as profiler:
        for number in range(40):
            training.backward(batch)
            training.update()
            if number % 2:
                gc.collect()
            profiler.step()
    assert len(kept) == 400_000
    (run,) = tmp_path.iterdir()
    judged = judge(run)
    finding = finding_of(judged, "garbage-collector")
    records = open_run(str(run)).ranks[0].steps[2:]
    mean_ns = statistics.mean(record.dur_ns for record in records)
    without_ns = statistics.median(record.dur_ns for record in records if not record.step % 2)
    collecting_ns = statistics.median(record.dur_ns for record in records if record.step % 2)
    assert collecting_ns > 1.5 * without_ns
    assert finding.saving_ns < mean_ns
    # The mean of the steps without a collection, not their median: the promise is a mean, too.
    is_now = statistics.mean(record.dur_ns for record in records if not record.step % 2)
    off = finding.predicted_step_ns / is_now - 1
    print(
        f"\ngarbage collector: {mean_ns / 1e6:.1f} ms, predicted "
        f"{finding.predicted_step_ns / 1e6:.1f} ms, measured {is_now / 1e6:.1f} ms, off by "
        f"{abs(off):.1%}"
    )
    assert abs(off) <= WITHIN
