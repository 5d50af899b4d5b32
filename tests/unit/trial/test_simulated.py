"""Settings of the allocator in an experiment: simulated, tried, and held to what was promised.

The GPU is the plain allocator of the tests, which knows nothing of the simulator.
"""

from __future__ import annotations

import pickle

from tests.support.allocator import MIB, Allocator, Settings
from tests.support.snapshots import pinned
from tests.support.trial_machine import Machine

from stepscope.memory.allocator.settings import with_settings
from stepscope.opening.trials import NO_GAIN, NOT_APPLIED
from stepscope.trial.facts import recorded_settings

FIX = "allocator-settings"


def settings_of(value):
    """The settings of a value; the tests have no others."""
    known = {
        "expandable_segments:True": Settings(expandable=True),
        "max_split_size_mb:64": Settings(max_split=64 * MIB),
    }
    return Settings() if value is None else known[value]


def fragmented(value):
    return pinned(settings_of(value))


def tight(value):
    """A device on which a request succeeds only after the cache was given back."""
    allocator = Allocator(total=100 * MIB, settings=settings_of(value))
    for size in (40, 20, 60, 80):
        allocator.free(allocator.malloc(size * MIB))
    return allocator


def test_the_simulation_names_what_is_tried_and_keeps_its_promise(try_on):
    machine = Machine({}, allocator=fragmented)
    record = try_on(machine, only=(FIX,))
    assert machine.names[:2] == ["diagnosis", "memory"]
    (trial,) = record.trials
    assert trial.changes == "expandable_segments:True"
    assert trial.lines[0].startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert trial.verdict == NO_GAIN
    before, after = record.baseline.peak_reserved_bytes, trial.peak_reserved_bytes
    assert trial.promised_reserved_bytes == after < before
    assert (trial.promised_retries, trial.allocator_retries) == (0, 0)
    assert f"{FIX} spares GPU memory" in record.verdict
    assert record.processes_s == machine.now


def test_fewer_retries_are_worth_a_run_too(try_on):
    record = try_on(Machine({}, allocator=tight), only=(FIX,))
    (trial,) = record.trials
    assert record.baseline.allocator_retries == 1
    assert trial.promised_retries == trial.allocator_retries == 0
    assert "with 0 retries instead of 1" in trial.promise_basis


def test_where_no_setting_is_better_none_is_tried(try_on):
    def even(_):
        allocator = Allocator()
        for _ in range(4):
            allocator.free(allocator.malloc(40 * MIB))
        return allocator

    machine = Machine({}, allocator=even)
    (trial,) = try_on(machine, only=(FIX,)).trials
    assert (trial.verdict, trial.runs) == (NOT_APPLIED, ())
    assert "none saves 5% of the 40.0 MiB" in trial.reason
    assert set(machine.names) == {"diagnosis", "memory", "as-it-is-1", "as-it-is-2"}


def test_a_memory_that_cannot_be_recorded_ends_only_its_own_fix(try_on):
    machine = Machine({}, failures={"memory": "crashed"}, allocator=fragmented)
    (trial,) = try_on(machine, only=(FIX,)).trials
    assert trial.reason == "its memory could not be recorded: because"


def test_the_memory_is_not_recorded_for_other_fixes(try_on):
    machine = Machine({}, allocator=fragmented)
    try_on(machine, only=("rare-gc",))
    assert "memory" not in machine.names


def test_what_is_not_simulated_stays_as_it_is_set(monkeypatch, tmp_path):
    path = tmp_path / "snapshot.pickle"
    settings = Settings(max_split=64 * MIB)
    path.write_bytes(pickle.dumps(pinned(settings).snapshot()))
    told = "pinned_use_background_threads:True"
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", f"{told},max_split_size_mb:64")
    plan, value = recorded_settings(path), f"{told},expandable_segments:True"
    assert plan.value == value
    assert plan.environment == {"PYTORCH_CUDA_ALLOC_CONF": value, "PYTORCH_ALLOC_CONF": value}


def test_defaults_that_are_better_are_written_out():
    told = "pinned_use_background_threads:True"
    assert with_settings(f"{told},expandable_segments:True", "default") == (
        f"{told},expandable_segments:False"
    )
