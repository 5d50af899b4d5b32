"""What the training thread had of the machine in a step."""

from __future__ import annotations

import gc
import threading
import time

from stepscope.capture.steps.host_time import HostClock


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_cpu_time_is_that_of_this_thread_and_sleep_has_none():
    clock = HostClock()
    clock.start()
    try:
        assert clock.read().cpu_ns is None
        burn(0.05)
        used = clock.read()
        time.sleep(0.05)
        slept = clock.read()
    finally:
        clock.close()
    assert used.cpu_ns is not None
    assert used.cpu_ns >= 50_000_000
    assert slept.cpu_ns is not None
    assert slept.cpu_ns < 25_000_000
    assert used.queued_ns is None or used.queued_ns >= 0


def test_another_thread_begins_anew():
    clock = HostClock()
    clock.start()
    clock.read()
    found = []
    thread = threading.Thread(target=lambda: found.append(clock.read()))
    thread.start()
    thread.join()
    again = clock.read()
    clock.close()
    assert found[0].cpu_ns is None
    assert again.cpu_ns is None


def test_pauses_of_the_collector_count_and_it_is_left_as_it_was():
    before = list(gc.callbacks)
    clock = HostClock()
    clock.start()
    clock.read()
    gc.collect()
    assert clock.read().gc_ns > 0
    clock.close()
    gc.collect()
    assert clock.read().gc_ns == 0
    clock.close()
    assert gc.callbacks == before
