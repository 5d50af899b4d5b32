"""Files and pipes get no trailing spaces."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st

from stepscope.report.console import console_on


@given(st.text(alphabet="ab \t\n│", max_size=60))
def test_spaces_before_a_line_end_are_dropped_and_no_others(text: str) -> None:
    stream = io.StringIO()
    console_on(stream, width=100).file.write(text)
    assert stream.getvalue() == re.sub(r"[ \t]+(?=\n)", "", text)
