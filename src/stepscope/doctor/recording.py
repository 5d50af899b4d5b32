"""Accelerators, and trial recordings: operators, stacks together with export, and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.doctor.check import Check, absent, ok, problem, warning
from stepscope.doctor.installed import version_of
from stepscope.doctor.torch_check import TorchReport
from stepscope.system import Machine

_DRIVER_VERSION_FILE = "/proc/driver/nvidia/version"


def check_devices(machine: Machine, report: TorchReport) -> list[Check]:
    """Check the GPUs and the driver; empty if torch could not be tried."""
    torch = report.result("torch")
    if torch is None:
        return []
    found = report.result("devices")
    if found is None:
        why = report.failure("devices") or "the process ended earlier"
        return [
            problem(
                "GPU",
                f"torch could not list the devices: {why}",
                "check that `nvidia-smi` (or `rocm-smi`) works; if not, fix the driver; until "
                "then, CUDA_VISIBLE_DEVICES= hides the GPUs",
            )
        ]
    checks = [_device(machine, dict(torch), dict(found))]
    if torch.get("cuda") and found.get("driver_cuda"):
        checks.append(_driver(machine, str(torch["cuda"]), int(found["driver_cuda"])))
    return checks


def _device(machine: Machine, torch: dict[str, Any], found: dict[str, Any]) -> Check:
    kind, names = found.get("kind"), [str(name) for name in found.get("names", ())]
    if kind == "mps":
        return warning(
            "GPU",
            "Apple's MPS: torch's profiler records no activity of this device",
            "nothing to fix: host work and step times are still recorded",
        )
    if kind is not None:
        label = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}
        counts = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
        return ok("GPU", f"{label[kind]}: {', '.join(counts)}")
    if machine.read(_DRIVER_VERSION_FILE) is not None and not torch.get("cuda"):
        return warning(
            "GPU",
            "there is an NVIDIA driver, but this torch is built without CUDA",
            "install a torch built for CUDA",
        )
    if machine.path("/dev/kfd").exists() and not torch.get("hip"):
        return warning(
            "GPU",
            "there is an AMD GPU (/dev/kfd), but this torch is built without ROCm",
            "install a torch built for ROCm",
        )
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if torch.get("cuda") and hidden is not None and hidden.strip() in {"", "-1"}:
        return absent(
            "GPU",
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides all GPUs",
            "unset CUDA_VISIBLE_DEVICES to use them",
        )
    return absent(
        "GPU",
        "torch sees none: only host work is recorded",
        "if there should be one, check that `nvidia-smi` or `rocm-smi` works",
    )


def _driver(machine: Machine, built_for: str, driver_cuda: int) -> Check:
    # 12040 means CUDA 12.4.
    offered = (driver_cuda // 1000, driver_cuda % 1000 // 10)
    text = f"the driver supports CUDA {offered[0]}.{offered[1]}, torch is built for {built_for}"
    lines = (machine.read(_DRIVER_VERSION_FILE) or "").splitlines()
    if lines:
        text += f" ({' '.join(lines[0].removeprefix('NVRM version:').split())})"
    # Within one major version, a newer runtime works on an older driver.
    if version_of(built_for)[:1] > offered[:1]:
        return problem(
            "driver", text, f"update the driver, or install a torch built for CUDA {offered[0]}.x"
        )
    return ok("driver", text)


def check_recording(report: TorchReport) -> list[Check]:
    """Judge the probe's small recordings; empty if torch could not be tried."""
    if report.result("torch") is None:
        return []
    checks = [_operators(report), _stacks(report)]
    devices = report.result("devices")
    if devices is not None and devices.get("kind") in {"cuda", "rocm", "xpu"}:
        checks.append(_kernels(report, str(devices["kind"])))
    return checks


def _operators(report: TorchReport) -> Check:
    found = report.result("recording")
    if found is None:
        return problem(
            "operators",
            f"a small recording failed: {_why(report, 'recording')}",
            "check the environment variables below; if they show nothing, reinstall torch",
        )
    count = _events(found).get("cpu_op", 0)
    if not count:
        return problem(
            "operators",
            "a small recording has no operators",
            "unset the KINETO_* variables, and look for a profiler that is active in the whole "
            "process (sitecustomize, a launcher)",
        )
    return ok("operators", f"recorded, exported and read back ({count} events)")


def _stacks(report: TorchReport) -> Check:
    found = report.result("stacks")
    remedy = "leave with_stack off, or upgrade torch"
    if found is None:
        return warning(
            "stacks with export",
            f"a recording with with_stack=True failed: {_why(report, 'stacks')}",
            remedy,
        )
    if found.get("table_error"):
        return warning(
            "stacks with export",
            f"the trace is good, but its table of operators failed: {found['table_error']}",
            f"{remedy}; the trace is kept either way, and the manifest says what is missing",
        )
    frames = _events(found).get("python_function", 0)
    if not frames:
        return warning(
            "stacks with export",
            "with_stack=True recorded no Python function",
            "upgrade torch; until then, traces have no stacks",
        )
    return ok(
        "stacks with export",
        f"recorded, exported, read back and tabulated ({frames} Python frames)",
    )


def _kernels(report: TorchReport, kind: str) -> Check:
    found = report.result("gpu_recording")
    if found is None:
        return problem(
            "kernels",
            f"a small recording on the GPU failed: {_why(report, 'gpu_recording')}",
            "check that a matrix product on the GPU works without a profiler",
        )
    count = _events(found).get("kernel", 0)
    if count:
        return ok("kernels", f"the GPU's work is recorded ({count} kernels)")
    remedies = {
        "cuda": "run outside nsys and other tools that use CUPTI; in a container, start it with "
        "--cap-add=SYS_ADMIN, or set NVreg_RestrictProfilingToAdminUsers=0 on the host; if torch "
        "finds no libcupti, reinstall the package nvidia-cuda-cupti",
        "rocm": "check that the user may open /dev/kfd and /dev/dri (groups render and video)",
        "xpu": "check that this torch is built with XPU's profiler (PTI); see the line Kineto",
    }
    label = f"; torch said: {report.last_line}" if report.last_line else ""
    return problem(
        "kernels", f"the GPU worked, but no kernels were recorded{label}", remedies[kind]
    )


def _why(report: TorchReport, stage: str) -> str:
    why = report.failure(stage)
    if not why:
        return f"the process ended earlier, in the stage '{report.stopped_in}'"
    return f"{why} ({line})" if (line := report.last_line) and report.stopped_in == stage else why


def _events(found: Mapping[str, Any]) -> Mapping[str, int]:
    events = found.get("events")
    return events if isinstance(events, dict) else {}
