"""The Trainer's callback takes the names of its profiling guides, tried without transformers."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from stepscope.errors import UsageError


@pytest.fixture
def callback(monkeypatch):
    fake = ModuleType("transformers")
    fake.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.delitem(sys.modules, "stepscope.adapters.transformers", raising=False)
    yield importlib.import_module("stepscope.adapters.transformers").StepscopeCallback
    sys.modules.pop("stepscope.adapters.transformers", None)


def test_the_names_of_the_guide(callback):
    made = callback(
        output_dir="traces",
        wait_steps=10,
        warmup_steps=4,
        active_steps=5,
        repeat_times=2,
        log_steps=7,
        with_stack=False,
    )
    config = made._recorder._prototype.config
    assert (config.wait, config.warmup, config.active, config.repeat) == (10, 4, 5, 2)
    assert config.memory_log_steps == 7


def test_one_option_under_two_names_is_refused(callback):
    with pytest.raises(UsageError, match="wait_steps and wait are the same option"):
        callback(wait_steps=1, wait=2)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("wait_step", "wait_steps"),
        ("active_step", "active_steps"),
        ("repeat_time", "repeat_times"),
        ("max_step", "max_steps"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name_of_either_kind(callback, typed, hint):
    with pytest.raises(UsageError, match=f"unknown option '{typed}': did you mean '{hint}'"):
        callback(**{typed: 2})
