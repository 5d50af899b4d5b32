"""The core of the steps: what belongs to a step, on a clock that the test turns."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.steps import records_of

from stepscope.capture.containment import Containment
from stepscope.capture.steps import core as module
from stepscope.capture.steps import step_notes
from stepscope.capture.steps.core import StepCore
from stepscope.capture.steps.devices import DeviceSteps
from stepscope.run.step_ring import Ring


class Time:
    """Clocks that the test turns: the machine's, the thread's, and the thread's time in a queue."""

    def __init__(self):
        self.now = 1_000
        self.ran = 0
        self.queued = 0

    def __call__(self):
        return self.now

    def pass_by(self, nanoseconds):
        self.now += nanoseconds

    def patch(self, patch):
        for one in (module, step_notes):
            patch.setattr(one, "perf_counter_ns", self)
            patch.setattr(one, "thread_time_ns", lambda: self.ran)
        patch.setattr(step_notes.os, "pread", lambda *_: f"0 {self.queued} 0".encode())
        patch.setattr(module.os, "open", lambda *_: 1 << 20)
        patch.setattr(module.os, "close", lambda _: None)


@pytest.fixture
def time(monkeypatch):
    time = Time()
    time.patch(monkeypatch)
    return time


class Written:
    """The records of the rows that a core has queued."""

    def __init__(self, core):
        self._core = core

    def __iter__(self):
        return iter(records_of(self._core))

    def __getitem__(self, index):
        return records_of(self._core)[index]

    def __len__(self):
        return len(records_of(self._core))


class Compiler:
    """Says at each reading how long the compiler has compiled so far."""

    def __init__(self, *totals_ns):
        self._totals_ns = [0, *totals_ns]

    def attach(self):
        pass

    def close(self):
        pass

    started_ns = 1

    def total_ns(self):
        return self._totals_ns.pop(0)


class Core(StepCore):
    """The core, with what the test keeps beside it."""


def open_core(**clocks):
    failures = []
    core = Core(Containment(lambda *problem: failures.append(problem), lambda: None))
    core.open(5_000_000 - 1_000, **clocks)
    core.failures = failures
    core.entered = []
    return core


def enter(core, name):
    """Enter a phase; returns whether it is timed."""
    core.entered.append(core.phase(name))
    core.entered[-1].__enter__()
    return core.entered[-1].timed_as is not None


def leave(core):
    core.entered.pop().__exit__(None, None, None)


def cpu_times(written):
    return [(record.cpu_ns, record.queued_ns) for record in written]


@pytest.fixture
def core(time):
    core = open_core()
    yield core
    core.close_clocks()
    assert core.failures == []


@pytest.fixture
def written(core):
    return Written(core)


def test_steps_touch_and_add_up(core, time, written):
    core.restart_step()
    for _step, duration in enumerate([5, 7, 11]):
        time.pass_by(duration)
        core.end_step()
    assert [record.dur_ns for record in written] == [5, 7, 11]
    assert [record.start_ns for record in written] == [5_000_000, 5_000_005, 5_000_012]


def test_nested_phases_are_named_by_their_path(core, time, written):
    core.restart_step()
    enter(core, "forward")
    time.pass_by(2)
    enter(core, "attention")
    time.pass_by(3)
    leave(core)
    time.pass_by(4)
    leave(core)
    enter(core, "forward")
    time.pass_by(10)
    leave(core)
    core.end_step()
    assert written[0].phases == {"forward": 19, "forward/attention": 3}


def test_a_slash_in_a_name_makes_no_level(core, time, written):
    core.restart_step()
    enter(core, "a/b")
    time.pass_by(2)
    leave(core)
    core.end_step()
    assert written[0].phases == {"a_b": 2}


def test_a_phase_across_a_boundary_gives_each_step_its_part(core, time, written):
    core.restart_step()
    time.pass_by(1)
    enter(core, "outer")
    enter(core, "inner")
    time.pass_by(4)
    core.end_step()
    time.pass_by(6)
    leave(core)
    leave(core)
    core.end_step()
    assert written[0].phases == {"outer": 4, "outer/inner": 4}
    assert written[1].phases == {"outer": 6, "outer/inner": 6}
    assert [record.dur_ns for record in written] == [5, 6]


def test_a_phase_of_another_thread_is_not_timed(core, time, written):
    core.restart_step()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(enter(core, "elsewhere")))
    thread.start()
    thread.join()
    core.end_step()
    assert answers == [False]
    assert written[0].phases == {}


def test_a_phase_begun_before_the_first_step_counts_from_the_step(core, time, written):
    enter(core, "early")
    time.pass_by(100)
    core.restart_step()
    time.pass_by(5)
    leave(core)
    core.end_step()
    assert written[0].phases == {"early": 5}


def test_phases_that_are_left_in_another_order_are_all_timed(core, time, written):
    core.restart_step()
    outer, inner = core.phase("outer"), core.phase("inner")
    outer.__enter__()
    inner.__enter__()
    time.pass_by(2)
    outer.__exit__(None, None, None)
    time.pass_by(3)
    inner.__exit__(None, None, None)
    core.end_step()
    assert written[0].phases == {"outer": 2, "outer/inner": 2, "inner": 3}


def test_waits_tokens_samples_and_kind_are_of_one_step(core, time, written):
    core.restart_step()
    core.add_wait(3)
    core.add_wait(4)
    core.count(10, None)
    core.count(5, 2)
    core.mark("evaluation")
    core.end_step()
    core.end_step()
    assert (written[0].data_wait_ns, written[0].tokens, written[0].samples) == (7, 15, 2)
    assert written[0].kind == "evaluation"
    assert (written[1].data_wait_ns, written[1].tokens, written[1].samples) == (0, None, None)
    assert written[1].kind == "train"


def test_a_loss_is_with_the_training_step_that_it_is_logged_in_or_before(core, time, written):
    core.restart_step()
    core.log_loss(2.5)
    core.end_step()
    core.log_loss(float("nan"))
    core.end_step()
    core.log_loss(2)  # right before an evaluation, as the Trainer of transformers does
    with core.outside_steps("evaluation"):
        time.pass_by(3)
    core.end_step()
    core.end_step()
    losses = [(line.kind, line.loss) for line in written]
    training = ("train", None)
    assert losses == [("train", 2.5), training, ("evaluation", None), ("train", 2.0), training]
    core.log_loss(1.5)
    core.close(None)
    assert (written[-1].loss, written[-1].is_partial) == (1.5, True)
    with pytest.raises(TypeError, match="loss is a list: give a number"):
        core.log_loss([1.0])


def test_a_step_compiles_no_longer_than_it_takes(time, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", None)
    core = open_core(compiler=Compiler(8, 38))
    core.restart_step()
    for _ in range(2):
        time.pass_by(20)
        core.end_step()
    core.close_clocks()
    assert [record.compile_ns for record in Written(core)] == [8, 20]


def test_a_wait_that_begins_as_a_step_ends_is_the_next_ones(core, time, written):
    """Steps of 10, 60 and 10: the CPU is lost between the end of the first and its reading."""
    core.restart_step()
    for length, ran, queued in ((10, 10, 50), (60, 10, 0), (10, 8, 2)):
        time.pass_by(length)
        time.ran += ran
        time.queued += queued
        core.end_step()
    assert cpu_times(written) == [(10, 0), (10, 50), (8, 2)]


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 3), max_size=9))
def test_no_step_waits_longer_than_it_lasts(steps):
    """CPU time, waiting within the step, and waiting that comes after its end."""
    now = Time()
    with pytest.MonkeyPatch.context() as patch:
        now.patch(patch)
        core = open_core()
        core.restart_step()
        late_before = 0
        for ran, queued, late in steps:
            now.pass_by((late_before + ran + queued) * 1_000_000)
            now.ran += ran * 1_000_000
            now.queued += (queued + late) * 1_000_000
            core.end_step()
            late_before = late
        core.close_clocks()
    waits = [0, *(late for _, _, late in steps)]
    wanted = [before + queued for (_, queued, _), before in zip(steps, waits, strict=False)]
    found = [queued / 1_000_000 for _, queued in cpu_times(Written(core))]
    assert found == wanted


def test_a_thread_that_stays_on_its_cpu_is_not_asked_how_long_it_waited(monkeypatch, time):
    reads = 0

    def pread(*_):
        nonlocal reads
        reads += 1
        return f"0 {time.queued} 0".encode()

    core = open_core()
    core.restart_step()
    for _ in range(8):  # in the first steps, more is looked at
        core.end_step()
    list(Written(core))
    monkeypatch.setattr(step_notes.os, "pread", pread)

    def step(ran, queued):
        time.pass_by(ran + queued)
        time.ran += ran
        time.queued += queued
        core.end_step()

    for _ in range(9):
        step(1_000_000, 0)
    assert reads == 0
    for queued in (15_000, 15_000, 0):
        step(1_000_000, queued)
    assert reads == 1  # where the two waits come to more than 20 µs
    step(1_050_000, -40_000)  # the thread's clock is ahead of the machine's
    step(1_000_000, 30_000)
    assert reads == 2
    core.close_clocks()
    assert [queued for _, queued in cpu_times(Written(core))][-5:-2] == [0, 15_000, 0]


def test_another_thread_begins_anew(core, time, written):
    core.restart_step()
    core.end_step()
    thread = threading.Thread(target=core.end_step)
    thread.start()
    thread.join()
    core.end_step()
    assert [cpu for cpu, _ in cpu_times(written)] == [0, None, None]


class SlowRing(Ring):
    """Takes a reading when the test lets it."""

    def __init__(self):
        super().__init__()
        self.begins, self.may_end = threading.Event(), threading.Event()

    def put(self, row):
        if row[1] == 20:
            self.begins.set()
            assert self.may_end.wait(60)
        super().put(row)


class Training(threading.Thread):
    """Twenty steps in a thread of its own, and one more when the test lets it."""

    def __init__(self):
        super().__init__()
        self.lock_of = Containment(lambda *_: None, lambda: None)
        self.core, self.ring = StepCore(self.lock_of), SlowRing()
        self.goes_on, self.has_begun = threading.Event(), threading.Event()
        self.core.open(0)
        self.start()
        assert self.has_begun.wait(60)

    def run(self):
        self.core.restart_step()
        for _ in range(20):
            self.core.end_step()
        self.core.set_ring(self.ring)
        self.has_begun.set()
        assert self.goes_on.wait(60)
        self.core.end_step()


def test_who_ends_the_capture_waits_for_a_step_that_ends_in_another_thread():
    training = Training()
    training.goes_on.set()
    assert training.ring.begins.wait(60)
    closing = threading.Thread(target=training.core.stand_still)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    training.ring.may_end.set()
    for thread in (training, closing):
        thread.join(60)
        assert not thread.is_alive()
    assert training.core.number == 21


def test_no_step_waits_for_the_lock_that_another_thread_holds():
    training = Training()
    training.ring.may_end.set()
    with training.lock_of.lock:
        training.goes_on.set()
        training.join(60)
        assert training.core.number == 21


def test_a_loop_that_ends_leaves_nothing(core, time, written):
    core.restart_step()
    time.pass_by(5)
    core.leave_loop()
    assert len(written) == 0
    core.restart_step()
    time.pass_by(2)
    core.end_step()
    assert [record.dur_ns for record in written] == [2]


class FakeEvents:
    """Events of a device that runs `behind` a given number of boundaries."""

    def __init__(self):
        self.made = 0
        self.clock_ms = 0.0
        self.passed_ms = 0.0

    def __call__(self):
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device = device
        self.at_ms = None

    def record(self):
        self.at_ms = self.device.clock_ms

    def query(self):
        return self.at_ms <= self.device.passed_ms

    def elapsed_time(self, other):
        assert self.query(), "asked for a time that has not passed: it would wait"
        assert other.query(), "asked for a time that has not passed: it would wait"
        return other.at_ms - self.at_ms


def attach(core, device, peak_memory=lambda: ((), ()), is_capturing=bool):
    core.attach_device(DeviceSteps(core.rows, device, peak_memory, is_capturing))


def run_device_steps(core, device, count, behind):
    core.restart_step()
    for step in range(count):
        device.clock_ms += 2.0 + step
        device.passed_ms = max(0.0, device.clock_ms - behind)
        core.end_step()


def test_device_time_is_read_when_it_has_passed(core, time, written):
    device = FakeEvents()
    attach(core, device, lambda: ((1,), (2,)))
    run_device_steps(core, device, 6, behind=0)
    core.settle()
    assert [record.device_ns for record in written] == [(2 + n) * 1_000_000 for n in range(6)]
    assert written[0].peak_allocated_bytes == (1,)
    assert written[0].peak_reserved_bytes == (2,)


def test_a_device_behind_delays_lines_and_keeps_their_order(core, time, written):
    device = FakeEvents()
    attach(core, device)
    run_device_steps(core, device, 6, behind=9.0)
    assert len(written) < 6
    device.passed_ms = device.clock_ms
    core.close_clocks()
    assert [record.step for record in written] == list(range(6))
    assert [record.device_ns for record in written] == [(2 + n) * 1_000_000 for n in range(6)]


def test_a_stuck_device_neither_blocks_nor_accumulates(core, time, written):
    device = FakeEvents()
    attach(core, device)
    run_device_steps(core, device, 500, behind=1e9)
    assert len(written) >= 500 - DeviceSteps.LATEST
    core.close_clocks()
    assert [record.step for record in written] == list(range(500))
    assert all(record.device_ns is None for record in written)


def test_events_are_used_again(core, time, written):
    device = FakeEvents()
    attach(core, device)
    run_device_steps(core, device, 1000, behind=20.0)
    assert device.made < 100


def test_an_event_is_not_used_again_while_a_later_step_needs_it(core, time, written):
    # One event ends a step and begins the next: reusing it early would change the next one's time.
    device = FakeEvents()
    attach(core, device)
    core.restart_step()
    durations = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0] * 20
    for step, duration in enumerate(durations):
        device.clock_ms += duration
        if step % 5 == 4:
            device.passed_ms = device.clock_ms
        core.end_step()
    device.passed_ms = device.clock_ms
    core.close_clocks()
    assert [record.device_ns for record in written] == [d * 1_000_000 for d in durations]


def test_phases_are_timed_on_the_device(core, time, written):
    device = FakeEvents()
    attach(core, device)
    core.restart_step()
    for _step in range(300):
        for name, duration in (("forward", 3.0), ("backward", 5.0), ("forward", 2.0)):
            enter(core, name)
            device.clock_ms += duration
            leave(core)
        device.clock_ms += 1.0
        device.passed_ms = max(0.0, device.clock_ms - 40.0)
        core.end_step()
    device.passed_ms = device.clock_ms
    core.close_clocks()
    assert {record.device_ns for record in written} == {11_000_000}
    assert all(
        record.device_phases == {"forward": 5_000_000, "backward": 5_000_000} for record in written
    )
    assert device.made < 200, "marks are used again"


def test_a_phase_across_a_boundary_is_parted_on_the_device_too(core, time, written):
    device = FakeEvents()
    attach(core, device)
    core.restart_step()
    device.clock_ms += 1.0
    enter(core, "outer")
    device.clock_ms += 4.0
    core.end_step()
    device.clock_ms += 6.0
    leave(core)
    device.clock_ms += 2.0
    core.end_step()
    device.passed_ms = device.clock_ms
    core.close_clocks()
    assert [record.device_phases for record in written] == [
        {"outer": 4_000_000},
        {"outer": 6_000_000},
    ]
    assert [record.device_ns for record in written] == [5_000_000, 8_000_000]


def test_a_phase_on_another_stream_that_is_late_is_left_out(core, time, written):
    device = FakeEvents()
    attach(core, device)
    core.restart_step()
    enter(core, "side")
    core._events[-1][-1].at_ms = 1e9
    leave(core)
    device.clock_ms = device.passed_ms = 2.0
    core.end_step()
    core.close_clocks()
    assert written[0].device_ns == 2_000_000
    assert written[0].device_phases == {}


def test_a_device_that_fails_costs_the_device_time_only(core, time, written):
    class Broken(FakeEvents):
        def __call__(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    attach(core, Broken())
    for _step in range(3):
        core.restart_step()
        time.pass_by(2)
        core.end_step()
    core.close_clocks()
    assert [record.dur_ns for record in written] == [2, 2, 2]


def test_memory_that_cannot_be_read_costs_the_memory_only(core, time, written):
    def broken():
        raise RuntimeError("no")

    attach(core, FakeEvents(), broken)
    core.restart_step()
    time.pass_by(2)
    core.end_step()
    core.close_clocks()
    assert [record.dur_ns for record in written] == [2]
    assert written[0].peak_allocated_bytes == ()


class CapturedEvents(FakeEvents):
    """A device whose current stream is captured into a graph at times: touching it breaks that."""

    def __init__(self):
        super().__init__()
        self.is_capturing = False

    def __call__(self):
        assert not self.is_capturing
        event = FakeEvent(self)
        record, query = event.record, event.query

        def checked(call):
            def calling():
                assert not self.is_capturing
                return call()

            return calling

        event.record, event.query = checked(record), checked(query)
        return event


def test_a_graph_that_is_being_captured_is_left_alone(core, time, written):
    device = CapturedEvents()
    attach(core, device, is_capturing=lambda: device.is_capturing)
    core.restart_step()
    for step in range(6):
        device.is_capturing = step in {2, 3}
        with_phase = enter(core, "forward")
        device.clock_ms += 1.0
        device.passed_ms = device.clock_ms
        if with_phase:
            leave(core)
        core.end_step()
    core.close_clocks()
    assert core.device.problem is None
    assert [record.step for record in written] == list(range(6))
    told = [record.device_ns for record in written]
    assert told[:2] + told[5:] == [1_000_000] * 3
    assert told[2:4] == [None, None]
