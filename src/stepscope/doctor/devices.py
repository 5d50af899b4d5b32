"""Accelerators: does torch see them, and does the driver match its build?"""

from __future__ import annotations

from typing import Any

from stepscope.doctor.check import Check, absent, ok, problem, warning
from stepscope.doctor.python_and_torch import version_of
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
        words = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}
        counts = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
        return ok("GPU", f"{words[kind]}: {', '.join(counts)}")
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
