"""Texts cut to a width: no longer than it, and told apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.report.text import shortened


def test_texts_that_differ_early_are_cut_at_the_end() -> None:
    assert shortened(["short", "one that is long", "another long one"], 10) == [
        "short", "one that …", "another l…",
    ]  # fmt: skip


def test_what_distinguishes_texts_is_seen() -> None:
    names = [f"volta_sgemm_128x{size}" for size in ("32_nt", "32_nn", "64_nt")]
    assert shortened(names, 16) == ["volta…_128x32_nt", "volta…_128x32_nn", "volta…_128x64_nt"]
    long = [f"elementwise_kernel<4, {name}<float>, {'x' * 90}>" for name in ("Add", "Mul")]
    assert shortened(long, 21) == ["element…<4, Add<floa…", "element…<4, Mul<floa…"]
    assert shortened([*names, names[0]], 16)[-1] == "volta…_128x32_nt"


@given(st.lists(st.text("ab(", max_size=40), max_size=8), st.integers(3, 30))
def test_any_text(texts: list[str], width: int) -> None:
    cut = shortened(texts, width)
    assert all(len(text) <= width for text in cut)
    assert all(one == text for one, text in zip(cut, texts, strict=True) if len(text) <= width)
