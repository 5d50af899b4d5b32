# ruff: noqa: E501 - a name is not broken over lines
"""Texts cut to a width: no longer than it, and told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.terminal.plain_text import cut_in_the_middle, shorten_name, shortened


def test_texts_that_differ_early_are_cut_in_the_middle() -> None:
    assert shortened(["short", "one that is long", "another long one"], 10) == [
        "short", "one t…long", "anoth… one",
    ]  # fmt: skip


ADD = "at::native::CUDAFunctor_add<float>"
COPY = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()()"
SUM = "at::native::func_wrapper_t<float, at::native::sum_functor<float, float>::operator()(x)"


@pytest.mark.parametrize(
    ("name", "remains"),
    [
        (
            (
                f"void at::native::vectorized_elementwise_kernel<4, {ADD}, std::array<char*, 3ul> >"
                f"(int, {ADD}, std::array<char*, 3ul>)"
            ),
            "vectorized_elementwise_kernel<…, CUDAFunctor_add, …>",
        ),
        (
            (
                f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{COPY}"
                " const::{lambda(float)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
            ),
            "elementwise_kernel<…, direct_copy_kernel_cuda, …>",
        ),
        (
            f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, {SUM}> > >(int)",
            "reduce_kernel<…, sum_functor, …>",
        ),
        (
            (
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn>"
                "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn::Params)"
            ),
            "Kernel2<…, cutlass_80_tensorop…relu_bf16_256x128_32x3_tn, …>",
        ),
        (
            "Cijk_Ailk_Bjlk_HHS_BH_Bias_AS_SAV_UserArgs_MT64x64x32_MI16x16x16x1_SN_K1_MIWT4_4",
            "Cijk_Ailk_Bjlk_HHS_BH_Bias_AS_…32_MI16x16x16x1_SN_K1_MIWT4_4",
        ),
        (f"void at::native::fill<{ADD}>", f"void at::native::fill<{ADD}>"),
    ],
)
def test_what_tells_of_a_kernels_name_remains(name: str, remains: str) -> None:
    assert shorten_name(name, 60) == remains
    assert shortened([name], 60) == [remains]


@given(st.text("ab<>(,): ", max_size=80), st.integers(1, 60))
def test_a_name_is_no_longer_than_its_width(name: str, width: int) -> None:
    short = shorten_name(name, width)
    assert len(short) <= width
    assert short == name or len(name) > width


@given(st.text(max_size=60), st.integers(1, 60))
def test_a_cut_text_keeps_its_beginning_and_its_end(text: str, width: int) -> None:
    cut = cut_in_the_middle(text, width)
    assert len(cut) == min(len(text), width)
    if len(text) > width:
        beginning, _, end = cut.partition("…") if "…" not in text else (cut[:0], "", "")
        assert text.startswith(beginning)
        assert text.endswith(end)


def test_what_distinguishes_texts_is_seen() -> None:
    names = [f"volta_sgemm_128x{size}" for size in ("32_nt", "32_nn", "64_nt")]
    assert shortened(names, 16) == ["volta_sg…8x32_nt", "volta_sg…8x32_nn", "volta_sg…8x64_nt"]
    long = [f"elementwise_kernel<4, {name}<float>, {'x' * 90}>" for name in ("Add", "Mul")]
    assert shortened(long, 21) == ["elementwis……, Add, …>", "elementwis……, Mul, …>"]
    assert shortened([*names, names[0]], 16)[-1] == "volta_sg…8x32_nt"
    between = [f"gemm_{'x' * 20}_{size}_{'y' * 20}" for size in ("32", "64")]
    assert shortened(between, 21) == ["gemm_xx…xxx_32…yyyyyy", "gemm_xx…xxx_64…yyyyyy"]


@given(st.lists(st.text("ab(", max_size=40), max_size=8), st.integers(3, 30))
def test_any_text(texts: list[str], width: int) -> None:
    cut = shortened(texts, width)
    assert all(len(text) <= width for text in cut)
    assert all(one == text for one, text in zip(cut, texts, strict=True) if len(text) <= width)
