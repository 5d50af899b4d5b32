"""The viewer's totals of a range on real traces: what `stepscope show` says of the same steps."""

from __future__ import annotations

import pytest
from tests.support.real_traces import EACH, real_trace
from tests.support.viewer_ranges import check_ranges, check_whole


@pytest.mark.parametrize("name", EACH)
def test_ranges_of_steps_are_what_show_says(name: str) -> None:
    check_ranges(real_trace(name))


@pytest.mark.parametrize("name", EACH)
def test_ranges_of_whole_files_are_what_show_says(name: str) -> None:
    check_whole(real_trace(name))
