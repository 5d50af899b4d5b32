"""Figures in sentences: never in scientific notation, never 0% of something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.advice.finding import short, speed
from stepscope.report import units
from stepscope.run.figures import binary_size, percent, significant


@pytest.mark.parametrize(
    ("number", "text"),
    [(1710, "1,710"), (999.4, "999"), (27.71, "27.7"), (0.0361, "0.0361"), (0.000012, "0.000012")],
)
def test_three_digits_that_a_person_reads(number, text):
    assert significant(number) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(1710 << 20, "1.67 GiB"), (512 << 20, "512 MiB"), (900, "900 B"), (1 << 20, "1 MiB")],
)
def test_sizes_take_the_next_unit(count, text):
    assert binary_size(count) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"), (0.0004, "<0.1%"), (0.03, "3.0%"), (0.0996, "10%"), (0.38, "38%"),
        (0.998, "99.8%"), (0.9998, ">99.9%"), (1.0, "100%"), (1.5, "150%"), (-0.05, "-5.0%"),
    ],
)  # fmt: skip
def test_a_share_never_reads_nothing_or_all_where_it_is_neither(share, text):
    assert percent(share) == text


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_no_figure_is_in_scientific_notation(number):
    for text in (significant(number), binary_size(number), units.duration(number)):
        assert "e+" not in text
        assert "e-" not in text


def test_the_reports_own_figures_have_separators_from_a_thousand_on():
    assert units.value(1710.4, "factor") == "1,710×"
    assert units.size(1710 << 40) == "1,710 TiB"


@pytest.mark.parametrize(
    ("number", "text"),
    [(27.71, "27.7 GB/s"), (0.1, "0.1 GB/s"), (0.0162, "16.2 MB/s"), (0.000917, "0.917 MB/s")],
)
def test_slow_links_have_the_smaller_unit(number, text):
    assert speed(number) == text


def test_of_a_long_kernels_name_what_tells_it_from_others_stays():
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)"
    )
    assert "vectorized_elementwise_kernel<…, CUDAFunctor_add, …>" in short(name)
    assert len(short(name)) <= 60
    assert short("void at::native::fill<4>(int)") == "void at::native::fill<4>(int)"
