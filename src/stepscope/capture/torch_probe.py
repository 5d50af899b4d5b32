"""Finds out what torch can do on this machine, in a process of its own.

`stepscope doctor` runs this as a program, because a broken torch may crash or hang the process that
imports it. Each stage prints a line of JSON when it begins and another with its result, so that the
reader knows how far it got. torch.profiler is used as a window uses it: plain JSON, no compression.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def main(left_out: Collection[str] = ()) -> int:
    """Run every stage but those left out, and print its result.

    Returns 0 unless torch cannot be imported.
    """
    for stage, run in STAGES.items():
        if stage in left_out:
            continue
        _print({"begin": stage})
        started = time.perf_counter()
        try:
            result = run()
        except Exception as error:  # noqa: BLE001 - any error of a stage is what was asked for
            result = {"error": f"{type(error).__name__}: {error}"}
        result["seconds"] = round(time.perf_counter() - started, 3)
        _print({"end": stage, "result": result})
        if stage == "torch" and "error" in result:
            return 1
    return 0


def _torch() -> dict[str, Any]:
    """Version and build of torch, and whether its profiler has Kineto."""
    import torch
    from torch import profiler

    return {
        "version": str(torch.__version__),
        "path": str(Path(torch.__file__).parent),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "xpu": getattr(torch.version, "xpu", None),
        "git": getattr(torch.version, "git_version", None),
        "kineto": bool(profiler.kineto_available()),
        "activities": sorted(activity.name for activity in profiler.supported_activities()),
    }


def _devices() -> dict[str, Any]:
    """The accelerators that torch sees, and the CUDA version that the driver supports."""
    import torch

    result: dict[str, Any] = {"kind": None, "names": [], "driver_cuda": None}
    if torch.cuda.is_available():
        result["kind"] = "rocm" if getattr(torch.version, "hip", None) else "cuda"
        count = torch.cuda.device_count()
        result["names"] = [torch.cuda.get_device_name(index) for index in range(count)]
    elif hasattr(torch, "xpu") and torch.xpu.is_available():
        result["kind"] = "xpu"
        count = torch.xpu.device_count()
        result["names"] = [torch.xpu.get_device_name(index) for index in range(count)]
    elif hasattr(torch.backends, "mps") and torch.backends.mps.is_available():
        result["kind"] = "mps"
    driver_version = getattr(torch._C, "_cuda_getDriverVersion", None)
    if torch.version.cuda and driver_version is not None:
        result["driver_cuda"] = int(driver_version())  # 12040 stands for 12.4; 0: no driver
    return result


def _gpu_recording() -> dict[str, Any]:
    """Record a matrix product on the GPU: a trace without kernels explains nothing."""
    import torch

    if torch.cuda.is_available():
        return _record("cuda", with_stack=False)
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return _record("xpu", with_stack=False)
    return {"needed": False}


def _record(device: str, *, with_stack: bool) -> dict[str, Any]:
    """Record two operators, read the trace back and tabulate it: with stacks, it used to break."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(getattr(ProfilerActivity, device.upper()))
    options: dict[str, Any] = {}
    if with_stack:
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)

    def work() -> Any:
        left = torch.ones(64, 64, device=device)
        return (left @ left).sum().item()

    work()  # imports and compilation at first use stay out of the recording
    result: dict[str, Any] = {"needed": True}
    with tempfile.TemporaryDirectory(prefix="stepscope-torch-probe-") as folder:
        with profile(activities=activities, with_stack=with_stack, **options) as profiler:
            with record_function("stepscope.torch_probe"):
                work()
            if device != "cpu":
                getattr(torch, device).synchronize()
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_bytes())["traceEvents"]
        result["events"] = dict(Counter(str(event.get("cat", "none")) for event in events))
        try:
            result["table_rows"] = len(profiler.key_averages())
        except Exception as error:  # noqa: BLE001 - the table may fail where the trace does not
            result["table_error"] = f"{type(error).__name__}: {error}"
    return result


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


STAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "devices": _devices,
    "recording": lambda: _record("cpu", with_stack=False),
    "stacks": lambda: _record("cpu", with_stack=True),
    "gpu_recording": _gpu_recording,
}
"""The stages in order; the risky ones come last."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
