"""What a window asks of torch, in versions of torch that know more and less."""

from __future__ import annotations

import pytest
import torch

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.windows import torch_window as module
from stepscope.capture.windows.planner import WindowPlan
from stepscope.capture.windows.recorder import WindowTools
from stepscope.capture.windows.torch_window import TorchWindow


class Asked(dict):
    """torch's experimental configuration, as it was asked for."""


def torch_that_knows(*names):
    def make(**flags):
        unknown = set(flags) - set(names)
        if unknown:
            raise TypeError(f"incompatible arguments: {unknown}")
        return Asked(flags)

    return make


ALL = ("verbose", "trace_only", "enable_cuda_sync_events", "record_python_gc_info")


@pytest.mark.parametrize(
    ("known", "options", "with_stack", "expected"),
    [
        (ALL, {}, False, {"trace_only": True}),
        (ALL, {}, True, {"verbose": True, "record_python_gc_info": True}),
        (ALL[:3], {}, True, {"verbose": True}),
        (ALL, {"on_trace_ready": print}, False, None),
        (ALL, {"on_trace_ready": print}, True, {"verbose": True}),
        (ALL, {"memory_timeline": "torch"}, True, {"verbose": True}),
        (
            ALL,
            {"cuda_sync_events": True},
            False,
            {"trace_only": True, "enable_cuda_sync_events": True},
        ),
        (
            ALL,
            {"cuda_sync_events": True},
            True,
            {
                "verbose": True,
                "record_python_gc_info": True,
                "enable_cuda_sync_events": True,
            },
        ),
        (ALL[2:3], {"cuda_sync_events": True}, False, {"enable_cuda_sync_events": True}),
        (ALL[:1], {}, False, None),
        (ALL[:1], {"cuda_sync_events": True}, False, None),
    ],
)
def test_torch_is_asked_for_what_it_knows(
    tmp_path, monkeypatch, known, options, with_stack, expected
):
    seen = {}
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", torch_that_knows(*known))
    monkeypatch.setattr(torch.profiler, "profile", lambda **given: seen.update(given))
    plan = WindowPlan(0, 3, 1, tmp_path, with_stack=with_stack)
    module.make_profiler(CaptureConfig(**options), plan, [])
    assert seen.get("experimental_config") == expected


def test_a_wish_that_torch_cannot_fulfil_is_told(monkeypatch, caplog):
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", torch_that_knows())
    assert module._experimental_config({"enable_cuda_sync_events": True}) is None
    assert "cannot record with enable_cuda_sync_events" in caplog.text


def test_this_torch_takes_them():
    config = module._experimental_config({"verbose": True, "enable_cuda_sync_events": True})
    assert isinstance(config, torch._C._profiler._ExperimentalConfig)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("follows_devices", [False, True])
def test_steps_of_the_warm_up_are_longer_where_torch_follows_a_device(tmp_path, follows_devices):
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, *([kinds.CUDA] if follows_devices else [])]
    tools = WindowTools(CaptureConfig(), None, None, lambda: None, activities)
    window = TorchWindow(tools, WindowPlan(0, 3, 1, tmp_path))
    assert not window.lengthens_step
    window.prepare()
    assert window.lengthens_step is follows_devices
    window.start()
    assert window.lengthens_step
    window.stop()
    assert not window.lengthens_step
    window.discard()
