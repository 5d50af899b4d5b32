"""nsys (NVIDIA Nsight Systems): GPU work, CUDA calls, MPI and the system, for all processes.

torch's own profiler stays off below it: the driver supports only one such client. Windows are
marked for nsys instead (`stepscope.capture.windows.cuda_range`), and it collects only in them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.external.tools import Tool, flag, require_program, version_of
from stepscope.adapters.options.layouts import put_file
from stepscope.doctor.installed import version_of as numbers_of

INSTALL = (
    "install NVIDIA Nsight Systems (apt install nsight-systems, from NVIDIA's package repository; "
    "it also comes with the CUDA toolkit), then add its folder to PATH; "
    "--dry-run shows the command without it"
)
_SEVERAL_DEVICES_FROM = (2024, 5)
"""The version from which --gpu-metrics-device is called --gpu-metrics-devices."""
REPORT = "report"
_SUFFIX = ".nsys-rep"
_OURS = {
    "-o": "give --nsys-output",
    "--output": "give --nsys-output",
    "-t": "give --nsys-trace",
    "--trace": "give --nsys-trace",
    "-c": "give --nsys-range",
    "--capture-range": "give --nsys-range",
    "--capture-range-end": "give --nsys-range",
}


@dataclass(frozen=True)
class NsysOptions(Tool):
    """How nsys records."""

    name, about, ours = "nsys", "Record with nsys, in the scheduled windows.", _OURS
    trace: str = flag(
        "cuda,nvtx,osrt", "What nsys traces, such as cuda,nvtx,osrt,mpi.", metavar="LIST"
    )
    gpu_metrics: str = flag(
        "", "Sample hardware counters of these GPUs: all, or a list such as 0,1.", "GPUS"
    )
    memory: bool = flag(False, "Track the CUDA memory of each process.")
    range: str = flag(
        "windows", "Collect only in windows, or all the time.", choices=("windows", "all")
    )
    run_as: str = flag("", "Run nsys as root and the training as this user.", "USER")
    output: str = flag("", "Also put nsys's reports here, as NAME.nsys-rep.", "NAME", short="-o")
    arguments: tuple[str, ...] = flag((), "More arguments of `nsys profile`.", "TEXT")

    @property
    def only_windows(self) -> bool:
        """Whether it collects in marked windows alone."""
        return self.range == "windows"

    def require(self) -> str:
        """The path of nsys."""
        return require_program("nsys", INSTALL)

    def command(
        self, folder: Path, below: Sequence[str], program: str, *, windows: int
    ) -> list[str]:
        """The command that records what is launched below it."""
        command: list[str] = []
        if self.run_as and _is_no_root():
            # nsys needs root for --run-as; the environment belongs to the training and must be
            # preserved.
            command += ["sudo", "--preserve-env"]
        command += [program, "profile", f"--trace={self.trace}", f"--output={folder / REPORT}"]
        if self.gpu_metrics:
            version = numbers_of(version_of(program))[:2] or _SEVERAL_DEVICES_FROM
            name = "devices" if version >= _SEVERAL_DEVICES_FROM else "device"
            command.append(f"--gpu-metrics-{name}={self.gpu_metrics}")
        if self.memory:
            command.append("--cuda-memory-usage=true")
        if self.run_as:
            command.append(f"--run-as={self.run_as}")
        if self.only_windows:
            # Its default, stop-shutdown, would end the training with the first window.
            ending = "stop" if windows == 1 else "repeat" if windows == 0 else f"repeat:{windows}"
            command += ["--capture-range=cudaProfilerApi", f"--capture-range-end={ending}"]
        return [*command, *self.arguments, *below]

    def missing(self, folder: Path) -> str:
        """That it wrote no report, and why."""
        if reports_in(folder):
            return ""
        why = (
            ": no window was marked for it, which requires a training on CUDA; "
            "--nsys-range all records without windows"
        )
        return f"it wrote no report{why if self.only_windows else ''}"


def reports_in(folder: Path) -> list[Path]:
    """The reports that it wrote: one, or one per window."""
    return sorted(folder.glob(f"{REPORT}*{_SUFFIX}"), key=lambda path: (len(path.name), path.name))


def report_file(output: str) -> str:
    """The file of a report under the user's name, which may have nsys's ending already."""
    return f"{output.removesuffix(_SUFFIX)}{_SUFFIX}"


def put_reports(reports: Sequence[Path], output: str) -> list[Path]:
    """Put reports under the user's name as well: `NAME.nsys-rep`, or `NAME.1.nsys-rep` etc."""
    stem = output.removesuffix(_SUFFIX)
    names = [stem] if len(reports) == 1 else [f"{stem}.{at + 1}" for at in range(len(reports))]
    return [
        put_file(report, Path(report_file(name)).absolute())
        for report, name in zip(reports, names, strict=True)
    ]


def _is_no_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() != 0
