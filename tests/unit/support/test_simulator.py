"""The simulator against answers worked out by hand. Nothing of the product runs here."""

from __future__ import annotations

import ast
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import simulator
from tests.support.simulator import (
    Program,
    fixes,
    questions,
    random_program,
    simulate,
    steady_step_ns,
    with_workers,
    write_job,
    write_run,
    write_trace,
)
from tests.support.simulator.fixes import cheap_launches, quicker, with_body
from tests.support.simulator.machine import BETWEEN_STEPS_NS
from tests.support.simulator.program import (
    COPY,
    MS,
    US,
    Collective,
    Collector,
    Copy,
    Free,
    Graph,
    Kernels,
    Late,
    Loader,
    Machine,
    Malloc,
    Once,
    OnThread,
    Python,
    Read,
    Recording,
    Synchronize,
    WaitForCollectives,
)

MACHINE = Machine(call_ns=4 * US, event_call_ns=2 * US, latency_ns=5 * US, wake_ns=2 * US)
BUSY = Kernels(100, 100 * US)
"""10 ms of the GPU, 1.1 ms of the host."""
SLOW_HOST = Kernels(100, 5 * US, before_ns=50 * US, after_ns=6 * US)
"""0.5 ms of the GPU, 6 ms of the host."""


def steady(*body, **more) -> float:
    return steady_step_ns(Program(body, machine=MACHINE, **more))


def test_a_busy_gpu_takes_the_sum_of_its_kernels():
    assert steady(BUSY) == 10 * MS
    assert steady(BUSY, Python(8 * MS)) == 10 * MS  # beside the GPU


def test_a_slow_host_takes_the_sum_of_its_operators():
    assert steady(SLOW_HOST) == 100 * (50 + 4 + 6) * US + BETWEEN_STEPS_NS
    with_gaps = replace(SLOW_HOST, gap_ns=10 * US)
    assert steady(with_gaps) == 100 * (50 + 4 + 6 + 10) * US + BETWEEN_STEPS_NS
    assert steady(SLOW_HOST, Python(3 * MS)) == 9 * MS + BETWEEN_STEPS_NS


def test_backward_runs_after_forward_on_the_host_and_hands_over_twice():
    there = steady(OnThread((SLOW_HOST,), handover_ns=50 * US))
    assert there == 6 * MS + 100 * US + BETWEEN_STEPS_NS


def test_a_full_queue_holds_the_host_up_without_costing_anything():
    body = (Kernels(3000, 30 * US, "fp32", before_ns=2 * US, after_ns=2 * US),)
    program = Program(body, machine=MACHINE, recording=Recording(first=4, steps=3))
    assert steady_step_ns(program) == 90 * MS
    assert steady_step_ns(with_body(program, quicker("fp32"))) == 45 * MS
    assert steady_step_ns(cheap_launches(program)) == 90 * MS
    # The host alone needs 8 µs for each.
    alone = replace(program, machine=replace(MACHINE, queue=10**9))
    first = simulate(alone).steps[0]
    assert first.end_ns - first.start_ns == 24 * MS + BETWEEN_STEPS_NS
    # With a bounded queue, its launching calls fill the rest of the step.
    last = simulate(program).steps[6]
    assert last.end_ns - last.start_ns == pytest.approx(90 * MS, rel=1e-3)
    in_calls = sum(entry[5] - entry[4] for entry in simulate(program).log if entry[0] == "kernel")
    recorded = {entry[2] for entry in simulate(program).log if entry[0] == "step"}
    assert in_calls / len(recorded) == pytest.approx((90 - 12) * MS, rel=1e-3)


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_at_most_so_many_launches_wait(depth):
    machine = replace(MACHINE, queue=depth)
    program = Program((BUSY,), machine=machine, recording=Recording(first=2, steps=2))
    kernels = [entry for entry in simulate(program).log if entry[0] == "kernel"]
    for number, (*_, called_end, _, _, _, _) in enumerate(kernels):
        waiting = sum(start > called_end for *_, start, _ in kernels[:number])
        assert waiting <= depth
    assert steady_step_ns(program) == 10 * MS


def test_reading_a_loss_costs_what_the_host_does_until_the_next_launch():
    # 10 ms of GPU work; then the host reads, goes on, and launches: nothing overlaps.
    read = steady(BUSY, Read(in_call=True))
    wake, after_read, first_launch, latency = 2, 1, 9, 5  # µs
    assert read == (10_000 + 1.5 + wake + after_read + 20 + first_launch + latency) * US
    assert steady(BUSY, Read(waits=False)) == 10 * MS + 1_500
    assert steady(BUSY, Read(), Python(3 * MS)) == pytest.approx(read + 3 * MS, abs=5 * US)
    every_other = steady(BUSY, Read(every=2), Python(3 * MS))
    assert every_other == pytest.approx((read + 3 * MS + 10 * MS) / 2, abs=20 * US)


def test_synchronising_the_device_waits_for_all_streams_and_a_stream_for_its_own():
    beside = Kernels(1, 15 * MS, stream=COPY)
    whole = steady(BUSY, beside, Synchronize(whole_device=True))
    own = steady(BUSY, beside, Synchronize(whole_device=False))
    assert whole > own >= 15 * MS
    assert steady(BUSY, beside, Synchronize(waits=False)) == 15 * MS


def test_a_pageable_copy_blocks_and_a_pinned_one_does_not():
    for in_call in (False, True):
        copy = Copy(1 << 20, 2 * MS, is_pinned=False, is_blocking=True, in_call=in_call)
        blocked = steady(copy, SLOW_HOST)
        assert blocked == pytest.approx(2 * MS + 6 * MS, rel=0.01)
        pinned = steady(replace(copy, is_pinned=True, is_blocking=False), SLOW_HOST)
        assert pinned == pytest.approx(6 * MS, rel=0.01)


def test_a_copy_on_its_own_stream_runs_beside_the_step_before():
    one = steady(Copy(1 << 20, 3 * MS), BUSY)
    assert one == 13 * MS
    assert steady(Copy(1 << 20, 3 * MS, stream=COPY), BUSY) == 10 * MS


def test_freeing_memory_waits_until_the_device_is_idle():
    freed = steady(BUSY, Free(300 * US), Malloc(500 * US))
    first_launch, latency = 9, 5
    assert freed == (10_000 + 300 + 500 + 20 + first_launch + latency) * US
    assert steady(BUSY, Malloc(500 * US)) == 10 * MS


def test_a_pause_costs_what_the_host_is_not_ahead():
    assert steady(BUSY, Collector(5 * MS)) == 10 * MS
    assert steady(SLOW_HOST, Collector(5 * MS)) == 11 * MS + BETWEEN_STEPS_NS
    assert steady(SLOW_HOST, Collector(6 * MS, every=3)) == 8 * MS + BETWEEN_STEPS_NS
    # The host gains 8.9 ms in a step, and the queue holds ten steps.
    assert steady(BUSY, Collector(20 * MS, every=4)) == 10 * MS
    small_queue = replace(MACHINE, queue=50)  # 5 ms of work
    held = Program((BUSY, Collector(20 * MS, every=4)), machine=small_queue)
    assert steady_step_ns(held) == pytest.approx((40 + 20 - 5) / 4 * MS, rel=0.01)


def test_a_graph_is_launched_once():
    graph = Graph(1000, 5 * US, gap_ns=1 * US, call_ns=20 * US)
    # Between two graphs the stream is not idle.
    assert steady(graph) == (1000 * 5 + 999) * US
    assert steady(graph, replace(BUSY, count=1)) == (1000 * 5 + 999 + 100) * US


def test_a_collective_runs_beside_computation_until_something_waits_for_it():
    beside = steady(BUSY, Collective(1 << 20, 4 * MS), BUSY, WaitForCollectives(), world_size=2)
    assert beside == 20 * MS
    at_the_end = steady(BUSY, Collective(1 << 20, 4 * MS), WaitForCollectives(), world_size=2)
    assert at_the_end == 14 * MS


def test_all_wait_for_the_rank_that_comes_last():
    body = (BUSY, Collective(1 << 20, 1 * MS), WaitForCollectives())
    on_time = Program(body, machine=MACHINE, world_size=4)
    slower = replace(on_time, late=Late(2, kernel_factor=1.5))
    assert steady_step_ns(on_time) == 11 * MS
    assert steady_step_ns(slower) == 16 * MS
    held_up = replace(on_time, late=Late(2, before=(Synchronize(), Python(3 * MS))))
    assert steady_step_ns(held_up) == pytest.approx(14 * MS, rel=0.01)
    timeline = simulate(slower)
    assert [one.rank for one in timeline.others] == [2]
    # The waiting rank's collective is longer by what it waits.
    mine = [entry for entry in timeline.log if entry[0] == "collective"]
    late = [entry for entry in timeline.others[0].log if entry[0] == "collective"]
    assert mine[-1][-1] - mine[-1][-2] == 6 * MS
    assert late[-1][-1] - late[-1][-2] == 1 * MS
    assert mine[-1][-1] == late[-1][-1]


@pytest.mark.parametrize(
    ("workers", "expected_ms"), [(0, 300 + 1.1), (1, 300), (2, 150), (10, 30), (60, 10)]
)
def test_workers_that_wait_for_storage_divide_the_time(workers, expected_ms):
    loader = Loader(workers=workers, waiting_ns=300 * MS, cpu_ns=0, take_ns=0)
    assert steady(BUSY, loader=loader) == pytest.approx(expected_ms * MS, rel=0.01)


def test_workers_that_work_share_the_cpus_that_the_main_thread_leaves():
    loader = Loader(workers=8, waiting_ns=0, cpu_ns=300 * MS, cpus=4)
    assert steady(BUSY, loader=loader) == pytest.approx(100 * MS, rel=0.01)
    assert steady(BUSY, loader=replace(loader, cpus=9)) == pytest.approx(300 / 8 * MS, rel=0.01)


def test_handing_a_batch_over_costs_the_worker_and_taking_it_costs_the_main_thread():
    loader = Loader(workers=2, waiting_ns=0, cpu_ns=10 * MS, send_ns=30 * MS)
    assert steady(BUSY, loader=loader) == pytest.approx(20 * MS, rel=0.01)
    loader = Loader(workers=2, cpu_ns=0, take_ns=9 * MS)
    host = steady(SLOW_HOST, loader=loader)
    assert host == pytest.approx(15 * MS, rel=0.01)


def test_no_saving_beside_a_loader_that_limits_the_step():
    # A batch every 300 ms whatever the host does: the blocking copy of 60 ms costs nothing.
    body = (
        Copy(80_000_000, 60 * MS, is_pinned=False, is_blocking=True),
        Kernels(8, 10 * MS),
    )
    loader = Loader(workers=1, waiting_ns=300 * MS, cpu_ns=0)
    program = Program(body, loader, MACHINE)
    assert steady_step_ns(program) == pytest.approx(300 * MS, rel=0.001)
    before, after = fixes(program)["pageable-copies"]
    assert steady_step_ns(before) - steady_step_ns(after) == pytest.approx(0, abs=1)
    assert steady_step_ns(with_workers(program, 2)) == pytest.approx(150 * MS, rel=0.01)
    before, after = fixes(program)["input-bound"]
    assert steady_step_ns(after) == pytest.approx(140 * MS, rel=0.01)


def test_an_epoch_costs_what_it_takes_to_begin():
    loader = Loader(
        workers=2, cpu_ns=0, epoch=10, is_persistent=False, start_ns=20 * MS, take_ns=0,
        worker_start_ns=60 * MS,
    )  # fmt: skip
    # The main thread starts both, and waits for the second, whose batch comes last; eight steps
    # follow that one.
    epoch = (2 * 20 + 60 + 9 * 6) * MS
    assert steady(SLOW_HOST, loader=loader) == pytest.approx(epoch / 10, rel=0.01)
    kept = replace(loader, is_persistent=True, sampler_ns=30 * MS)
    assert steady(SLOW_HOST, loader=kept) == pytest.approx((60 + 30) / 10 * MS, rel=0.01)


def test_what_happens_once_is_no_part_of_the_steady_step():
    assert steady(BUSY, Once("cuModuleLoadData", 500 * MS, 0)) == 10 * MS
    program = Program((SLOW_HOST, Once("cuModuleLoadData", 500 * MS, 2)), machine=MACHINE)
    steps = simulate(program).steps
    assert steps[2].end_ns - steps[2].start_ns == 506 * MS + BETWEEN_STEPS_NS


def test_recording_slows_the_host_and_nothing_else():
    slow = Program((SLOW_HOST, BUSY), machine=MACHINE, recording=Recording(host_factor=2.0))
    plain = steady_step_ns(slow)
    recorded = steady_step_ns(slow, is_recorded=True)
    assert plain == 10 * MS + 500 * US
    assert recorded == pytest.approx(2 * (6 + 1.1) * MS, rel=0.01)
    steps = simulate(slow).steps
    in_window = steps[slow.recording.first + 3]
    assert in_window.end_ns - in_window.start_ns == pytest.approx(14.2 * MS, rel=0.01)


def _events(path: Path):
    return [one for one in json.loads(path.read_text())["traceEvents"] if one.get("ph") == "X"]


@pytest.mark.parametrize("start", ["running", "unseen", "drained"])
def test_the_trace_shows_what_the_simulator_did(tmp_path, start):
    recording = Recording(first=5, steps=3, start=start)
    program = Program((BUSY, Read(every=100, offset=50)), Loader(), MACHINE, recording)
    timeline = simulate(program)
    events = _events(write_trace(timeline, tmp_path / "trace.json", stacks=True, shapes=True))
    kernels = [one for one in events if one["cat"] == "kernel"]
    launches = {
        one["args"]["correlation"]: one for one in events if one["name"] == "cudaLaunchKernel"
    }
    linked = [one for one in kernels if one["args"]["correlation"] in launches]
    assert len(launches) == len(linked) == 300
    assert (len(kernels) > 300) == (start == "running")
    for kernel in linked:
        launch = launches[kernel["args"]["correlation"]]
        assert kernel["ts"] >= launch["ts"] + launch["dur"] + 5 - 1e-6
        assert kernel["dur"] == pytest.approx(100)
    ordered = sorted(kernels, key=lambda one: one["ts"])
    for one, following in itertools.pairwise(ordered):
        assert one["ts"] + one["dur"] <= following["ts"] + 1e-6
    begin = timeline.started_ns / 1e3
    assert min(one["ts"] for one in events) >= begin - 1e-6
    if start == "drained":
        assert ordered[0]["args"]["correlation"] in launches
    steps = [one["name"] for one in events if one["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{number}" for number in (5, 6, 7)]
    plain = _events(write_trace(timeline, tmp_path / "plain.json", with_steps=False))
    assert not any(one["name"].startswith("ProfilerStep#") for one in plain)
    assert not any(one["cat"] == "python_function" for one in plain)


def test_host_events_of_a_thread_nest_or_follow_each_other(tmp_path):
    for seed in range(0, 60, 7):
        timeline = simulate(random_program(seed))
        events = _events(write_trace(timeline, tmp_path / "trace.json", stacks=True))
        by_thread: dict[int, list[tuple[int, int]]] = {}
        for one in events:
            if one["tid"] in (1000, 1001):
                start = round(one["ts"] * 1e3)
                end = start + round(one["dur"] * 1e3)
                by_thread.setdefault(one["tid"], []).append((start, -end))
        for spans in by_thread.values():
            opened: list[int] = []
            for start, minus_end in sorted(spans):
                while opened and opened[-1] <= start:
                    opened.pop()
                end = -minus_end
                assert not opened or end <= opened[-1], seed
                opened.append(end)


def test_a_job_has_a_trace_for_each_rank_and_a_run_a_record(tmp_path):
    body = (BUSY, Collective(1 << 20, 1 * MS), WaitForCollectives())
    program = Program(
        body, Loader(), MACHINE, Recording(steps_after=5), world_size=3,
        late=Late(1, kernel_factor=1.5),
    )  # fmt: skip
    timeline = simulate(program)
    job = write_job(timeline, tmp_path / "job")
    longest = [
        max(one["dur"] for one in _events(path) if "nccl" in one["name"] and one["cat"] == "kernel")
        for path in sorted(job.iterdir())
    ]
    assert longest == pytest.approx([6000, 1000, 6000])
    run = write_run(timeline, tmp_path / "run")
    lines = (run / "rank00002" / "steps.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert len(steps) == program.recording.first + program.recording.steps + 5
    for one, following in itertools.pairwise(steps):
        assert one["start_ns"] + one["dur_ns"] == following["start_ns"]


def test_a_fix_changes_nothing_where_its_cause_is_missing():
    healthy = Program((BUSY,), Loader(), MACHINE)
    assert sum(before != after for before, after in fixes(healthy).values()) == 3
    for before, after in fixes(healthy).values():
        assert steady_step_ns(before) == steady_step_ns(after) == 10 * MS
    answers = {name: steady_step_ns(program) for name, program in questions(healthy).items()}
    assert answers.pop("computation on the GPU") == pytest.approx(1.15 * MS, rel=0.01)
    assert answers.pop("half of the computation") == 5 * MS
    assert set(answers.values()) == {10 * MS}


def test_no_fix_makes_a_training_slower_and_the_same_seed_is_the_same_training():
    for seed in range(4, 210, 25):
        program = random_program(seed)
        assert program == random_program(seed)
        now_ns = steady_step_ns(program)
        for before, after in fixes(program).values():
            if after != before:
                before_ns = now_ns if before == program else steady_step_ns(before)
                assert steady_step_ns(after) <= 1.005 * before_ns <= 1.01 * now_ns, seed


def test_the_simulator_shares_no_code_with_the_product():
    for path in Path(simulator.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("stepscope"), path
                assert not name.startswith("tests.") or name.startswith("tests.support.simulator")
