"""Patterns by kernels' names, where no operator is known, and what compiled kernels are."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM

from stepscope.analysis.calls.fusible import PATTERNS
from stepscope.analysis.fusion import fusible_of
from stepscope.analysis.selection.gpu_work import recorded_work

_NATIVE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int)"
KERNELS = {
    "c": _NATIVE.format("bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)"),
    "p": _NATIVE.format("(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>"),
    "e": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>",
    "a": _NATIVE.format("CUDAFunctor_add<float>"),
    "r": _NATIVE.format("rsqrt_kernel_cuda(at::TensorIteratorBase&)"),
    "q": _NATIVE.format("sqrt_kernel_cuda(at::TensorIteratorBase&)"),
    "m": _NATIVE.format("BinaryFunctor<float, float, float, MulFunctor<float>>"),
    "d": _NATIVE.format("BinaryFunctor<float, float, float, DivFunctor<float>>"),
    "n": _NATIVE.format("neg_kernel_cuda(at::TensorIteratorBase&)"),
    "k": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>",
    "i": _NATIVE.format("(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)"),
    "I": _NATIVE.format("(anonymous namespace)::silu_backward_kernel(at::TensorIteratorBase&)"),
    "G": GEMM,
    "T": "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3",
    "L": "_rms_norm_forward_kernel",
}


def patterns_of(kernels: str) -> list[str]:
    t = GpuTrace()
    with t.step():
        for letter in kernels:
            t.launch(KERNELS[letter], us(20))
    trace = t.load()
    found = fusible_of(trace, recorded_work(trace))
    return [PATTERNS[number].name for number in found.occurrences["pattern"]]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ("GcpearmcmG", ["RMSNorm"]),
        ("GapearmG", ["RMSNorm"]),
        ("GmnkmamnkmaG", ["RoPE", "RoPE"]),
        ("GnkmmaG", ["RoPE"]),
        ("GiGmGiGmG", ["SwiGLU", "SwiGLU"]),
        # The mean is taken away first: that is LayerNorm, whose subtraction is an addition here.
        ("GeapearmG", []),
        ("GpeaqG", []),
        ("GpearG", []),
        ("GIGmG", []),
        ("GimG", ["SwiGLU"]),
        ("aimG", []),
        ("GTG", []),
        ("GLG", []),
        ("GpeTarmG", []),
    ],
)
def test_patterns_by_names_of_kernels(kernels, expected):
    assert patterns_of(kernels) == expected


def test_streams_are_apart():
    t = GpuTrace()
    with t.step():
        for place, letter in enumerate("pearm"):
            t.launch(KERNELS[letter], us(20), stream=7 + place % 2)
    trace = t.load()
    assert fusible_of(trace, recorded_work(trace)).occurrences.is_empty()
