"""The step recorder: what belongs to a step, on a clock that the test turns."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.capture.steps import recorder as module
from stepscope.capture.steps.host_time import HostTime
from stepscope.capture.steps.recorder import Clock, DeviceTimer, StepRecorder


class Time:
    def __init__(self):
        self.now = 1_000

    def __call__(self):
        return self.now

    def pass_by(self, nanoseconds):
        self.now += nanoseconds


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(module.time, "perf_counter_ns", time)
    return time


@pytest.fixture
def written():
    return []


@pytest.fixture
def recorder(time, written):
    return StepRecorder(Clock(epoch_ns=5_000_000, monotonic_ns=1_000), written.append)


def test_steps_touch_and_add_up(recorder, time, written):
    recorder.begin()
    for step, duration in enumerate([5, 7, 11]):
        time.pass_by(duration)
        assert recorder.end(step).dur_ns == duration
    assert [record.dur_ns for record in written] == [5, 7, 11]
    assert [record.start_ns for record in written] == [5_000_000, 5_000_005, 5_000_012]


def test_nested_phases_are_named_by_their_path(recorder, time, written):
    recorder.begin()
    recorder.enter_phase("forward")
    time.pass_by(2)
    recorder.enter_phase("attention")
    time.pass_by(3)
    recorder.leave_phase()
    time.pass_by(4)
    recorder.leave_phase()
    recorder.enter_phase("forward")
    time.pass_by(10)
    recorder.leave_phase()
    recorder.end(0)
    assert written[0].phases == {"forward": 19, "forward/attention": 3}


def test_a_slash_in_a_name_makes_no_level(recorder, time, written):
    recorder.begin()
    recorder.enter_phase("a/b")
    time.pass_by(2)
    recorder.leave_phase()
    recorder.end(0)
    assert written[0].phases == {"a_b": 2}


def test_a_phase_across_a_boundary_gives_each_step_its_part(recorder, time, written):
    recorder.begin()
    time.pass_by(1)
    recorder.enter_phase("outer")
    recorder.enter_phase("inner")
    time.pass_by(4)
    recorder.end(0)
    time.pass_by(6)
    recorder.leave_phase()
    recorder.leave_phase()
    recorder.end(1)
    assert written[0].phases == {"outer": 4, "outer/inner": 4}
    assert written[1].phases == {"outer": 6, "outer/inner": 6}
    assert [record.dur_ns for record in written] == [5, 6]


def test_a_phase_of_another_thread_is_not_timed(recorder, time, written):
    recorder.begin()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(recorder.enter_phase("elsewhere")))
    thread.start()
    thread.join()
    recorder.end(0)
    assert answers == [False]
    assert written[0].phases == {}


def test_a_phase_begun_before_the_first_step_counts_from_the_step(recorder, time, written):
    recorder.enter_phase("early")
    time.pass_by(100)
    recorder.begin()
    time.pass_by(5)
    recorder.leave_phase()
    recorder.end(0)
    assert written[0].phases == {"early": 5}


def test_leaving_more_than_was_entered_is_harmless(recorder, time, written):
    recorder.begin()
    recorder.leave_phase()
    recorder.end(0)
    assert written[0].phases == {}


def test_waits_tokens_samples_and_kind_are_of_one_step(recorder, time, written):
    recorder.begin()
    recorder.add_wait(3)
    recorder.add_wait(4)
    recorder.count(10, None)
    recorder.count(5, 2)
    recorder.mark("evaluation")
    recorder.end(0)
    recorder.end(1)
    assert (written[0].data_wait_ns, written[0].tokens, written[0].samples) == (7, 15, 2)
    assert written[0].kind == "evaluation"
    assert (written[1].data_wait_ns, written[1].tokens, written[1].samples) == (0, None, None)
    assert written[1].kind == "train"


class Host:
    """Says of each step what it is told."""

    def __init__(self, *readings):
        self._readings = [HostTime(0, 0), *readings]

    def start(self):
        pass

    def read(self):
        return self._readings.pop(0)


def test_a_step_compiles_no_longer_than_it_takes(recorder, time, written):
    recorder.attach_host(Host(HostTime(compile_ns=8), HostTime(compile_ns=30)))
    recorder.begin()
    for step in range(2):
        time.pass_by(20)
        recorder.end(step)
    assert [record.compile_ns for record in written] == [8, 20]


def test_a_wait_that_begins_as_a_step_ends_is_the_next_ones(recorder, time, written):
    """Steps of 10, 60 and 10: the CPU is lost between the end of the first and its reading."""
    recorder.attach_host(Host(HostTime(10, 50), HostTime(10, 0), HostTime(8, 2)))
    recorder.begin()
    for number, length in enumerate((10, 60, 10)):
        time.pass_by(length)
        recorder.end(number)
    assert [(record.cpu_ns, record.queued_ns) for record in written] == [(10, 0), (10, 50), (8, 2)]


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 3), max_size=9))
def test_no_step_waits_longer_than_it_lasts(steps):
    """CPU time, waiting within the step, and waiting that comes after its end."""
    now = Time()
    written = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.time, "perf_counter_ns", now)
        recorder = StepRecorder(Clock(0, 0), written.append)
        recorder.attach_host(Host(*(HostTime(ran, queued + late) for ran, queued, late in steps)))
        recorder.begin()
        late_before = 0
        for number, (ran, queued, late) in enumerate(steps):
            now.pass_by(late_before + ran + queued)
            recorder.end(number)
            late_before = late
    waits = [0, *(late for _, _, late in steps)]
    wanted = [before + queued for (_, queued, _), before in zip(steps, waits, strict=False)]
    assert [record.queued_ns for record in written] == wanted


def test_a_cancelled_step_leaves_nothing(recorder, time, written):
    recorder.begin()
    time.pass_by(5)
    recorder.cancel()
    assert not recorder.is_open
    assert written == []
    recorder.begin()
    time.pass_by(2)
    recorder.end(0)
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


def run_device_steps(recorder, device, count, behind):
    recorder.begin()
    for step in range(count):
        device.clock_ms += 2.0 + step
        device.passed_ms = max(0.0, device.clock_ms - behind)
        recorder.end(step)


def test_device_time_is_read_when_it_has_passed(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((1,), (2,)))
    run_device_steps(recorder, device, 6, behind=0)
    assert [record.device_ns for record in written] == [(2 + n) * 1_000_000 for n in range(6)]
    assert written[0].peak_allocated_bytes == (1,)
    assert written[0].peak_reserved_bytes == (2,)


def test_a_device_behind_delays_lines_and_keeps_their_order(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    run_device_steps(recorder, device, 6, behind=9.0)
    assert len(written) < 6
    device.passed_ms = device.clock_ms
    recorder.close()
    assert [record.step for record in written] == list(range(6))
    assert [record.device_ns for record in written] == [(2 + n) * 1_000_000 for n in range(6)]


def test_a_stuck_device_neither_blocks_nor_accumulates(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    run_device_steps(recorder, device, 500, behind=1e9)
    assert len(written) >= 500 - DeviceTimer.LATEST
    recorder.close()
    assert [record.step for record in written] == list(range(500))
    assert all(record.device_ns is None for record in written)


def test_events_are_used_again(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    run_device_steps(recorder, device, 1000, behind=20.0)
    assert device.made < 100


def test_an_event_is_not_used_again_while_a_later_step_needs_it(recorder, time, written):
    # One event ends a step and begins the next: reusing it early would change the next one's time.
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    recorder.begin()
    durations = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0] * 20
    for step, duration in enumerate(durations):
        device.clock_ms += duration
        if step % 5 == 4:
            device.passed_ms = device.clock_ms
        recorder.end(step)
    device.passed_ms = device.clock_ms
    recorder.close()
    assert [record.device_ns for record in written] == [d * 1_000_000 for d in durations]


def test_phases_are_timed_on_the_device(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    recorder.begin()
    for step in range(300):
        for name, duration in (("forward", 3.0), ("backward", 5.0), ("forward", 2.0)):
            recorder.enter_phase(name)
            device.clock_ms += duration
            recorder.leave_phase()
        device.clock_ms += 1.0
        device.passed_ms = max(0.0, device.clock_ms - 40.0)
        recorder.end(step)
    device.passed_ms = device.clock_ms
    recorder.close()
    assert {record.device_ns for record in written} == {11_000_000}
    assert all(
        record.device_phases == {"forward": 5_000_000, "backward": 5_000_000} for record in written
    )
    assert device.made < 200, "marks are used again"


def test_a_phase_across_a_boundary_is_parted_on_the_device_too(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    recorder.begin()
    device.clock_ms += 1.0
    recorder.enter_phase("outer")
    device.clock_ms += 4.0
    recorder.end(0)
    device.clock_ms += 6.0
    recorder.leave_phase()
    device.clock_ms += 2.0
    recorder.end(1)
    device.passed_ms = device.clock_ms
    recorder.close()
    assert [record.device_phases for record in written] == [
        {"outer": 4_000_000},
        {"outer": 6_000_000},
    ]
    assert [record.device_ns for record in written] == [5_000_000, 8_000_000]


def test_a_phase_on_another_stream_that_is_late_is_left_out(recorder, time, written):
    device = FakeEvents()
    recorder.attach_device(DeviceTimer(device), lambda: ((), ()))
    recorder.begin()
    recorder.enter_phase("side")
    recorder._open_phases[-1].mark.at_ms = 1e9
    recorder.leave_phase()
    device.clock_ms = device.passed_ms = 2.0
    recorder.end(0)
    recorder.close()
    assert written[0].device_ns == 2_000_000
    assert written[0].device_phases == {}


def test_a_device_that_fails_costs_the_device_time_only(recorder, time, written):
    class Broken(FakeEvents):
        def __call__(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    recorder.attach_device(DeviceTimer(Broken()), lambda: ((), ()))
    for step in range(3):
        recorder.begin()
        time.pass_by(2)
        recorder.end(step)
    recorder.close()
    assert [record.dur_ns for record in written] == [2, 2, 2]


def test_memory_that_cannot_be_read_costs_the_memory_only(recorder, time, written):
    def broken():
        raise RuntimeError("no")

    recorder.attach_device(DeviceTimer(FakeEvents()), broken)
    recorder.begin()
    time.pass_by(2)
    recorder.end(0)
    recorder.close()
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


def test_a_graph_that_is_being_captured_is_left_alone(recorder, time, written):
    device = CapturedEvents()
    timer = DeviceTimer(device, lambda: device.is_capturing)
    recorder.attach_device(timer, lambda: ((), ()))
    recorder.begin()
    for step in range(6):
        device.is_capturing = step in {2, 3}
        with_phase = recorder.enter_phase("forward")
        device.clock_ms += 1.0
        device.passed_ms = device.clock_ms
        if with_phase:
            recorder.leave_phase()
        recorder.end(step)
    recorder.close()
    assert recorder.problem is None
    assert [record.step for record in written] == list(range(6))
    told = [record.device_ns for record in written]
    assert told[:2] + told[5:] == [1_000_000] * 3
    assert told[2:4] == [None, None]
