"""Environment variables that change what a recording shows, or prevent it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.doctor.check import Check, State, ok
from stepscope.system import Machine


@dataclass(frozen=True)
class _Variable:
    name: str
    disturbs: Callable[[str], bool]
    effect: str
    remedy: str = "unset it for the recording"
    state: State = State.WARNING


def _is_on(value: str) -> bool:
    return value.strip().lower() not in {"", "0", "false", "no", "off"}


def _is_set(value: str) -> bool:
    return value != ""


def _injects(value: str) -> bool:
    tools = ("toolsinjection", "nsys", "nsight", "cupti", "memray", "rocprof")
    return any(tool in value.lower() for tool in tools)


_ANOTHER_TOOL = (
    "another tool is attached to CUDA, and CUPTI serves one at a time: recordings have no kernels"
)
_EVERY_CALL_WAITS = (
    "every launch waits until its kernel ends: steps are slower, and overlap disappears"
)
_NO_CACHING = (
    "the driver allocates every tensor separately: times and memory differ from a regular run"
)

_VARIABLES = (
    _Variable(
        "CUDA_INJECTION64_PATH",
        _is_set,
        _ANOTHER_TOOL,
        "start the training without nsys (or the tool that sets it)",
        State.PROBLEM,
    ),
    _Variable(
        "NSYS_PROFILING_SESSION_ID",
        _is_set,
        f"nsys is recording this process: {_ANOTHER_TOOL}",
        "use one of the two at a time",
        State.PROBLEM,
    ),
    _Variable(
        "HSA_TOOLS_LIB",
        _is_set,
        "another tool is attached to ROCm: kernels may be missing in recordings",
    ),
    _Variable(
        "LD_PRELOAD",
        _injects,
        "another profiler is loaded into every process: it takes time, and may hide kernels",
        "start the training without it",
    ),
    _Variable("CUDA_LAUNCH_BLOCKING", _is_on, _EVERY_CALL_WAITS),
    _Variable("HIP_LAUNCH_BLOCKING", _is_on, _EVERY_CALL_WAITS),
    _Variable("AMD_SERIALIZE_KERNEL", _is_on, _EVERY_CALL_WAITS),
    _Variable(
        "TORCH_NCCL_BLOCKING_WAIT",
        _is_on,
        "the host waits for collectives: communication looks like host time",
    ),
    _Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", _is_set, _NO_CACHING),
    _Variable("PYTORCH_NO_HIP_MEMORY_CACHING", _is_set, _NO_CACHING),
    _Variable(
        "TEARDOWN_CUPTI",
        lambda value: value.strip() == "0",
        "CUPTI stays active after a window, and the steps after it are slower",
        "unset it, unless the training replays CUDA graphs with CUDA before 12.6",
    ),
    _Variable(
        "TEARDOWN_CUPTI",
        lambda value: value.strip() == "1",
        "with CUDA before 12.6, a training that replays CUDA graphs can crash in its second window",
        "unset it, or record only one window, unless torch is built for CUDA 12.6 or later",
    ),
    _Variable(
        "DISABLE_CUPTI_LAZY_REINIT",
        _is_set,
        "any value, even 0, enables it: CUPTI is set up again right after each window",
        "unset it, unless the training replays CUDA graphs with CUDA before 12.6",
    ),
    _Variable(
        "KINETO_USE_DAEMON",
        _is_set,
        "any value, even 0, enables it: a dynolog daemon may start recordings, and two at once do "
        "not work",
    ),
    _Variable("KINETO_CONFIG", _is_set, "torch's profiler reads further options from that file"),
    _Variable(
        "TORCH_SHOW_CPP_STACKTRACES",
        _is_on,
        "every C++ exception looks up its symbols, which is slow if exceptions are frequent",
    ),
    _Variable(
        "PYTHONTRACEMALLOC",
        _is_on,
        "Python records every allocation: host code is much slower",
    ),
)


def check_environment(machine: Machine) -> list[Check]:
    """One check for each variable that interferes, or one that says that there is none."""
    checks = []
    for variable in _VARIABLES:
        value = machine.environment.get(variable.name)
        if value is not None and variable.disturbs(value):
            detail = f"{variable.name}={_shorten(value)}: {variable.effect}"
            checks.append(Check("", variable.name, variable.state, detail, variable.remedy))
    return checks or [ok("variables", "no variable is set that changes what a recording shows")]


def _shorten(value: str, most: int = 60) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"
