"""Options: each that cannot work is refused with its name, its value and the remedy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stepscope import CaptureConfig, Profiler
from stepscope.capture.options.option import ConfigError
from stepscope.errors import StepscopeError, UsageError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skip_first": -1}, ("skip_first", "-1", "0 or more")),
        ({"wait": -2}, ("wait", "-2", "0 or more")),
        ({"warmup": -1}, ("warmup", "-1", "0 or more")),
        ({"active": 0}, ("active", "0", "1 or more")),
        ({"repeat": -1}, ("repeat", "-1", "0 or more")),
        ({"wait": 1.5}, ("wait", "1.5", "whole number")),
        ({"wait": "3"}, ("wait", "'3'", "whole number")),
        ({"active": True}, ("active", "True", "whole number")),
        ({"max_steps": 0}, ("max_steps", "0", "-1 for no limit")),
        ({"max_steps": -2}, ("max_steps", "-2", "-1 or more")),
        ({"cycle_length": 0, "repeat": 0}, ("cycle_length", "0", "1 or more")),
        (
            {"cycle_length": 4, "repeat": 0, "warmup": 2, "active": 3},
            ("cycle_length", "4", "at least 5"),
        ),
        ({"key_averages_rows": -5}, ("key_averages_rows", "-5", "-1 or more")),
        ({"step_unit": "epoch"}, ("step_unit", "'epoch'", "micro-batch")),
        ({"activities": "gpu"}, ("activities", "'gpu'", "cuda")),
        ({"activities": ()}, ("activities", "()", "cpu")),
        ({"activities": ("cpu", "auto")}, ("activities", "auto", "cpu")),
        ({"record_shapes": 1}, ("record_shapes", "1", "True")),
        ({"enabled": "yes"}, ("enabled", "'yes'", "True")),
        ({"ranks": "first"}, ("ranks", "'first'", "node-first")),
        ({"ranks": []}, ("ranks", "[]", "all")),
        ({"ranks": [-1]}, ("ranks", "[-1]", "all")),
        ({"ranks": "every:0"}, ("ranks", "'every:0'", "every:8")),
        ({"run_name": "../escape"}, ("run_name", "'../escape'", "letters")),
        ({"run_name": ""}, ("run_name", "''", "letters")),
        ({"run_name": ".hidden"}, ("run_name", "'.hidden'", "letters")),
        ({"output_dir": 3}, ("output_dir", "3", "path")),
        ({"trace_format": "zip"}, ("trace_format", "'zip'", "json.gz")),
        ({"export_timeout_s": 0}, ("export_timeout_s", "0", "seconds")),
        ({"grace_s": float("nan")}, ("grace_s", "nan", "seconds")),
        ({"max_pause_s": "1"}, ("max_pause_s", "'1'", "seconds")),
        ({"max_window_bytes": 0}, ("max_window_bytes", "0", "1 or more")),
        ({"max_pause_s": 1.0, "warmup": 0}, ("max_pause_s", "1.0", "warmup=1")),
        ({"max_window_bytes": 9, "warmup": 0}, ("max_window_bytes", "9", "warmup=1")),
        ({"min_free_bytes": -1}, ("min_free_bytes", "-1", "0 or more")),
        ({"keep_windows": 1.0}, ("keep_windows", "1.0", "whole number")),
        ({"slow_step_factor": 0.5}, ("slow_step_factor", "0.5", "1 or more")),
        ({"slow_step_cooldown": 0}, ("slow_step_cooldown", "0", "1 or more")),
        ({"pause_together_s": -1}, ("pause_together_s", "-1", "0 or more")),
        ({"coordinates": {"dp": -1}}, ("coordinates", "-1", "whole numbers")),
        ({"coordinates": {"": 1}}, ("coordinates", "''", "names")),
        ({"memory_timeline": "html"}, ("memory_timeline", "'html'", "torch")),
        ({"memory_max_entries": 0}, ("memory_max_entries", "0", "1 or more")),
        ({"memory_log_steps": 0}, ("memory_log_steps", "0", "1 or more")),
        ({"on_trace_ready": 5}, ("on_trace_ready", "5", "function")),
        ({"on_trace_ready": [print, "x"]}, ("on_trace_ready", "'x'", "function")),
    ],
)
def test_each_bad_option_is_named_with_value_and_remedy(options, words):
    with pytest.raises(ConfigError) as caught:
        CaptureConfig(**options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert isinstance(caught.value, ValueError)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("wrong", "right"), [("activ", "active"), ("outputdir", "output_dir")])
def test_a_misspelt_option_is_named_with_the_right_one(wrong, right):
    with pytest.raises(UsageError, match=f"'{wrong}': did you mean '{right}'"):
        Profiler(**{wrong: 1})


def test_an_unknown_option_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match=r"'warm_up'.*warmup"):
        Profiler(warm_up=3)


def test_a_config_and_options_together_are_refused():
    with pytest.raises(StepscopeError, match="not both"):
        Profiler(CaptureConfig(), wait=3)


def test_options_are_short_for_a_config():
    assert Profiler(wait=3, active=2).config == CaptureConfig(wait=3, active=2)


def test_every_option_is_documented():
    for field in dataclasses.fields(CaptureConfig):
        assert f"        {field.name}: " in CaptureConfig.__doc__, field.name


def test_options_are_plain_values():
    config = CaptureConfig(output_dir=Path("here"), on_trace_ready=print, ranks=[0, 2])
    options = config.options()
    assert options["output_dir"] == "here"
    assert options["on_trace_ready"] == ["print"]
    assert options["ranks"] == (0, 2)


def test_a_config_is_settled_once_and_stays_the_same_when_replaced():
    config = CaptureConfig(repeat=0, cycle_length=10, activities="cpu", on_trace_ready=print)
    assert dataclasses.replace(config) == config


def test_options_that_need_others_bring_them():
    assert CaptureConfig(memory_timeline="trace").profile_memory
    torchs = CaptureConfig(memory_timeline="torch")
    assert torchs.profile_memory
    assert torchs.record_shapes
    assert torchs.with_stack
