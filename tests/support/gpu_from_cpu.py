"""A GPU trace made of a CPU profile: each operator launches the kernel that it has on a GPU.

The operators, their nesting, shapes, types and sequence numbers are torch's own. Kernels run one
after the other on one stream, each as long as the memory needs for what it moves plus a fixed time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

STREAM = 7
FIXED_NS = 2_000
BYTES_PER_NS = 3352.0  # of an H100
_MATRICES = re.compile(r"aten::(mm|addmm|bmm|baddbmm)$")
_WITHOUT_KERNEL = re.compile(
    r"aten::(to|_to_copy|clone|contiguous|linear|matmul|view|t|transpose|reshape|expand|slice|select"
    r"|unsqueeze|permute|detach|empty\w*|as_strided|alias|result_type|resize_|_unsafe_view|narrow"
    r"|resolve_conj|unbind|softmax|log_softmax|cross_entropy_loss|nll_loss_nd|nll_loss|layer_norm"
    r"|dropout|zeros|ones|ones_like|zeros_like|stack|slice_backward|_reshape_alias|item|chunk|split"
    r"|_local_scalar_dense|split_with_sizes|is_nonzero|value_selecting_reduction_backward|squeeze)$"
)
_ITEM = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "signed char": 1}


def gpu_trace_of(
    run: Callable[[], object],
    path: Path,
    device_name: str = "NVIDIA H100 80GB HBM3",
    **profiled: Any,
) -> Path:
    """Profile a function on the CPU and write the GPU trace of it.

    Args:
        run: The function; it runs once before.
        path: Where.
        device_name: The device that the kernels ran on.
        profiled: Options of the profiler; default: shapes are recorded.
    """
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CPU], **{"record_shapes": True, **profiled}) as seen:
        run()
    seen.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    document["deviceProperties"] = [
        {"id": 0, "name": device_name, "totalGlobalMem": 80 << 30, "numSms": 132,
         "computeMajor": 9, "computeMinor": 0}
    ]  # fmt: skip
    launching, inside = _launching(document["traceEvents"])
    document["traceEvents"] = [one for one in document["traceEvents"] if id(one) not in inside]
    document["traceEvents"] += _kernels(launching)
    path.write_text(json.dumps(document))
    return path


def _launching(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], set[int]]:
    """The operators that launch a kernel, and the identities of what they call on a CPU alone."""
    operators = [one for one in events if one.get("cat") == "cpu_op"]
    operators.sort(key=lambda one: (one["tid"], one["ts"], -one["dur"]))
    launching: list[dict[str, Any]] = []
    inside: set[int] = set()
    ends: dict[int, float] = {}
    for operator in operators:
        name, thread = operator["name"], operator["tid"]
        if operator["ts"] < ends.get(thread, 0.0):
            inside.add(id(operator))
        elif (
            name.startswith("aten::") and not _WITHOUT_KERNEL.match(name) and _has_tensor(operator)
        ):
            ends[thread] = operator["ts"] + operator["dur"]
            launching.append(operator)
    return launching, inside


def _kernels(launching: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    free = 0.0
    for number, operator in enumerate(sorted(launching, key=lambda one: one["ts"]), 1):
        at = operator["ts"] + operator["dur"] / 2
        base = {"ph": "X", "pid": operator["pid"], "tid": operator["tid"], "ts": at}
        made.append(
            {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel",
             "dur": min(0.2, operator["dur"] / 4),
             "args": {"correlation": number, "External id": operator["args"]["External id"]}}
        )  # fmt: skip
        start = max(free, at + 1)
        dur = (FIXED_NS + _moved(operator) / BYTES_PER_NS) / 1000
        free = start + dur
        made.append(
            {"ph": "X", "pid": 0, "tid": STREAM, "ts": start, "dur": dur, "cat": "kernel",
             "name": _kernel_name(operator["name"]),
             "args": {"correlation": number, "External id": operator["args"]["External id"],
                      "device": 0, "stream": STREAM}}
        )  # fmt: skip
    return made


def _has_tensor(operator: dict[str, Any]) -> bool:
    dims = operator["args"].get("Input Dims")
    return dims is None or any(shape and shape != [[], []] for shape in dims)


def _kernel_name(operator: str) -> str:
    if _MATRICES.match(operator):
        return "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
    if "softmax" in operator:
        return "void (anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>"
    return "void at::native::vectorized_elementwise_kernel<4, at::native::Functor>"


def _moved(operator: dict[str, Any]) -> float:
    """What the kernel moves at least, from its operands alone."""
    args = operator["args"]
    sizes = [
        math.prod(shape) * _ITEM.get(kind, 4)
        for shape, kind in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False)
        if shape and not isinstance(shape[0], list)
    ]
    is_reduction = operator["name"] in ("aten::mean", "aten::sum")
    has_result_inside = operator["name"] == "aten::copy_"
    result = 0 if is_reduction or has_result_inside else max(sizes, default=0)
    return float(sum(sizes) + result)
