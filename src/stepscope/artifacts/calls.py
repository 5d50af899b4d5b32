"""The calls of one window, their nesting and their self times.

Floating-point operations are those that torch estimates from recorded shapes, two for a
multiplication and an addition: of matrix products, convolutions in two dimensions, and elementwise
addition and multiplication.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import orjson

_LEAST_DIMENSIONS = {"aten::mm": 2, "aten::addmm": 2, "aten::bmm": 3, "aten::baddbmm": 3}
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
_ELEMENTWISE = {"aten::add", "aten::mul"}

OPERATOR = "operator"
ANNOTATION = "annotation"
RUNTIME = "runtime"
PYTHON = "python"
_HOST_KINDS = {
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "mtia_runtime": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
    "python_function": PYTHON,
}
_DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
_CPU_DEVICE_TYPE = 0


def flops_of(name: str, arguments: dict[str, Any]) -> int:
    """Operations of one call; 0 if it is of another kind or its shapes were not recorded."""
    dims = arguments.get("Input Dims")
    if not isinstance(dims, list) or not name.startswith("aten::"):
        return 0
    try:
        if name in _PRODUCTS:
            return _product(name, dims)
        if name in _ELEMENTWISE:
            return math.prod(dims[0]) if dims[0] else 0
        if name == "aten::conv2d":
            return _convolution(dims, arguments.get("Concrete Inputs"))
    except (IndexError, TypeError, ValueError, orjson.JSONDecodeError):
        return 0
    return 0


def _product(name: str, dims: Sequence[Any]) -> int:
    left, right = (dims[position] for position in _PRODUCTS[name])
    if min(len(left), len(right)) < _LEAST_DIMENSIONS[name]:
        return 0
    batch = left[0] if len(left) == 3 else 1
    return int(2 * batch * left[-2] * left[-1] * right[-1])


def _convolution(dims: Sequence[Any], inputs: Any) -> int:
    """Operations of conv2d(input, weight, bias, stride, padding, dilation, groups)."""
    batch, _, height, width = dims[0]
    out_channels, in_channels_per_group, kernel_height, kernel_width = dims[1]
    stride, padding, dilation = (_pair(inputs[position]) for position in (3, 4, 5))
    out_height = _reach(height, kernel_height, stride[0], padding[0], dilation[0])
    out_width = _reach(width, kernel_width, stride[1], padding[1], dilation[1])
    taps = in_channels_per_group * kernel_height * kernel_width
    return int(2 * batch * out_channels * out_height * out_width * taps)


def _pair(text: str) -> tuple[int, int]:
    values = orjson.loads(text)
    numbers = values if isinstance(values, list) else [values]
    return int(numbers[0]), int(numbers[-1])


def _reach(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@dataclass(slots=True)
class Call:
    """One range on a host thread.

    Attributes:
        kind: "operator", "annotation", "runtime" or "python".
        external_id: Joins an operator and its GPU work; 0 if there is none.
        correlation: Joins a runtime call and its GPU work; 0 if there is none.
        flops: Its floating-point operations, if requested.
        shapes: Shapes of its inputs, as text; empty if they were not recorded.
        parent: The innermost call around it on its thread, among those of its walk.
        self_ns: Duration minus what its children cover.
    """

    name: str
    kind: str
    start_ns: int
    dur_ns: int
    external_id: int = 0
    correlation: int = 0
    flops: int = 0
    shapes: str = ""
    parent: Call | None = None
    self_ns: int = 0


@dataclass(slots=True)
class DeviceWork:
    """One kernel, copy or fill."""

    name: str
    dur_ns: int
    external_id: int
    correlation: int


@dataclass(slots=True)
class MemoryChange:
    """One allocation (positive bytes) or free (negative) that the allocator reported."""

    thread: tuple[Any, Any]
    time_ns: int
    bytes: int
    is_cpu: bool
    device: int
    allocated_bytes: int
    address: int = 0


@dataclass
class WindowCalls:
    """All data of one window that the tables need.

    Attributes:
        threads: The calls of each host thread, by (pid, tid), in order of their start.
    """

    threads: dict[tuple[Any, Any], list[Call]] = field(default_factory=dict)
    device_work: list[DeviceWork] = field(default_factory=list)
    memory: list[MemoryChange] = field(default_factory=list)
    step_names: list[str] = field(default_factory=list)
    step_bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    events: int = 0


def gather(
    events: Iterable[dict[str, Any]], renames: dict[str, str], *, with_flops: bool = False
) -> WindowCalls:
    """Sort a trace's events into threads, device work and changes of memory.

    Args:
        renames: Names of step ranges to new names.
    """
    window = WindowCalls()
    for event in events:
        window.events += 1
        phase = event.get("ph")
        if phase == "X":
            _add_range(window, event, renames, with_flops)
        elif phase == "i" and event.get("name") == "[memory]":
            _add_memory(window, event)
    for calls in window.threads.values():
        calls.sort(key=lambda call: (call.start_ns, -call.dur_ns))
    return window


def nested(calls: list[Call], *kinds: str) -> Iterator[Call]:
    """The calls of some kinds of one thread, each with its parent and self time, parents first.

    Ranges of a thread should nest, but sometimes overlap in part (a step begins inside the call
    that marks its beginning). If more than half of a call is outside another, it is not a child
    of it, and the shared time belongs to the later one, so that no time is counted twice.
    """
    stack: list[Call] = []
    chosen = [call for call in calls if call.kind in kinds]
    for call in chosen:
        call.self_ns = call.dur_ns
        end_ns = call.start_ns + call.dur_ns
        while stack:
            around = stack[-1]
            shared_ns = min(end_ns, around.start_ns + around.dur_ns) - call.start_ns
            if shared_ns > 0 or (call.dur_ns == 0 and shared_ns == 0):
                around.self_ns = max(0, around.self_ns - shared_ns)
                if 2 * shared_ns >= call.dur_ns:
                    break
            stack.pop()
        call.parent = stack[-1] if stack else None
        stack.append(call)
    yield from chosen


def innermost(calls: list[Call], time_ns: int) -> Call | None:
    """The innermost of a thread's calls at a time; they come from `nested`."""
    position = bisect.bisect_right(calls, time_ns, key=attrgetter("start_ns")) - 1
    call: Call | None = calls[position] if position >= 0 else None
    while call is not None and call.start_ns + call.dur_ns < time_ns:
        call = call.parent
    return call


def nanoseconds(microseconds: object) -> int:
    """A time of the trace in integer nanoseconds; 0 if it is not a number."""
    return round(microseconds * 1000) if isinstance(microseconds, (int, float)) else 0


def _add_range(
    window: WindowCalls, event: dict[str, Any], renames: dict[str, str], with_flops: bool
) -> None:
    category = event.get("cat")
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        arguments = {}
    name = str(event.get("name", ""))
    if category in _DEVICE_CATEGORIES:
        window.device_work.append(
            DeviceWork(
                name,
                nanoseconds(event.get("dur")),
                _whole(arguments.get("External id")),
                _whole(arguments.get("correlation")),
            )
        )
        return
    kind = _HOST_KINDS.get(str(category))
    if kind is None:
        return
    call = Call(
        renames.get(name, name),
        kind,
        nanoseconds(event.get("ts")),
        nanoseconds(event.get("dur")),
        _whole(arguments.get("External id")),
        _whole(arguments.get("correlation")),
        flops_of(name, arguments) if with_flops and kind == OPERATOR else 0,
        _shapes(arguments) if kind == OPERATOR else "",
    )
    if kind == ANNOTATION and call.name.startswith("ProfilerStep#"):
        window.step_names.append(call.name)
        window.step_bounds[call.name] = (call.start_ns, call.start_ns + call.dur_ns)
    window.threads.setdefault((event.get("pid"), event.get("tid")), []).append(call)


def _add_memory(window: WindowCalls, event: dict[str, Any]) -> None:
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        return
    window.memory.append(
        MemoryChange(
            (event.get("pid"), event.get("tid")),
            nanoseconds(event.get("ts")),
            _whole(arguments.get("Bytes")),
            _whole(arguments.get("Device Type")) == _CPU_DEVICE_TYPE,
            _whole(arguments.get("Device Id")),
            _whole(arguments.get("Total Allocated")),
            _whole(arguments.get("Addr")),
        )
    )


def _shapes(arguments: dict[str, Any]) -> str:
    """The shapes of an operator's inputs, such as "[8, 16], [16, 32]"; [] for what has none."""
    dimensions = arguments.get("Input Dims")
    return ", ".join(map(str, dimensions)) if isinstance(dimensions, list) else ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
