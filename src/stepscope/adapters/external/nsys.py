"""nsys (NVIDIA Nsight Systems): the GPU's work, the CUDA calls, MPI and the system, all processes.

torch's own profiler stays off below it: the driver serves only one such client. Windows are marked
for it instead (`stepscope.capture.windows.cuda_range`), and it collects only in them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.tools import require_program
from stepscope.errors import UsageError

INSTALL = (
    "install NVIDIA Nsight Systems (apt install nsight-systems, from NVIDIA's package repository; "
    "it also comes with the CUDA toolkit), then add its folder to PATH; "
    "--dry-run shows the command without it"
)
TRACEABLE = (
    "cuda",
    "nvtx",
    "osrt",
    "mpi",
    "ucx",
    "cublas",
    "cudnn",
    "cusolver",
    "cusparse",
    "python-gil",
    "openmp",
    "opengl",
    "vulkan",
    "none",
)
"""What `--trace` of nsys knows that matters to a training."""
_SEVERAL_DEVICES_FROM = (2024, 5)
"""The version from which --gpu-metrics-device is called --gpu-metrics-devices."""
REPORT = "report"
OURS = {
    "-o": "its report goes into the run",
    "--output": "its report goes into the run",
    "-t": "give --nsys-trace",
    "--trace": "give --nsys-trace",
    "-c": "give --nsys-range",
    "--capture-range": "give --nsys-range",
    "--capture-range-end": "give --nsys-range",
}
"""Arguments of `nsys profile` that are given by options of ours, and which."""


@dataclass(frozen=True)
class NsysOptions:
    """How nsys records.

    Attributes:
        trace: What it traces.
        gpu_metrics: GPUs whose hardware counters it samples, such as "all" or "0,1"; empty: none.
        cuda_memory: Whether it follows the CUDA memory that each process holds.
        only_windows: Whether it collects only in the schedule's windows.
        run_as: The user that the training runs as, while nsys itself runs as root; empty: ours.
        arguments: More arguments of `nsys profile`, as they are.
    """

    trace: tuple[str, ...] = ("cuda", "nvtx", "osrt")
    gpu_metrics: str = ""
    cuda_memory: bool = False
    only_windows: bool = True
    run_as: str = ""
    arguments: tuple[str, ...] = ()


def parse_trace(text: str) -> tuple[str, ...]:
    """What to trace, from "cuda,mpi".

    Raises:
        UsageError: A word that nsys does not know.
    """
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in TRACEABLE:
            raise UsageError(
                f"--nsys-trace={text!r}: {word!r} is not known: some of {', '.join(TRACEABLE)}"
            )
    if not words:
        raise UsageError("--nsys-trace is empty: give some of " + ", ".join(TRACEABLE))
    return words


def require_nsys() -> str:
    """Where nsys is.

    Raises:
        MissingToolError: It is not installed, or not on PATH.
    """
    return require_program("nsys", INSTALL)


def profile_command(
    options: NsysOptions,
    output: Path,
    below: Sequence[str],
    *,
    windows: int = 1,
    program: str = "nsys",
    version: str = "",
) -> list[str]:
    """The command that records.

    Args:
        options: How.
        output: The report, without its ending.
        below: The command to launch.
        windows: Number of windows of the schedule; 0 for no end.
        program: nsys.
        version: Its version; the newest is assumed where it is not known.
    """
    command: list[str] = []
    if options.run_as and _is_no_root():
        # nsys needs root for --run-as; the environment is the training's, and must come through.
        command += ["sudo", "--preserve-env"]
    command += [program, "profile", f"--trace={','.join(options.trace)}", f"--output={output}"]
    if options.gpu_metrics:
        name = "devices" if _numbers(version) >= _SEVERAL_DEVICES_FROM else "device"
        command.append(f"--gpu-metrics-{name}={options.gpu_metrics}")
    if options.cuda_memory:
        command.append("--cuda-memory-usage=true")
    if options.run_as:
        command.append(f"--run-as={options.run_as}")
    if options.only_windows:
        # Its default, stop-shutdown, would end the training with the first window.
        ending = "stop" if windows == 1 else "repeat" if windows == 0 else f"repeat:{windows}"
        command += ["--capture-range=cudaProfilerApi", f"--capture-range-end={ending}"]
    return [*command, *options.arguments, *below]


def reports_in(folder: Path) -> list[Path]:
    """The reports that it left: one, or one for each window."""
    return sorted(folder.glob(f"{REPORT}*.nsys-rep"), key=lambda path: (len(path.name), path.name))


def _is_no_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() != 0


def _numbers(version: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in version.split(".") if word.isdecimal())
    return numbers[:2] or _SEVERAL_DEVICES_FROM
