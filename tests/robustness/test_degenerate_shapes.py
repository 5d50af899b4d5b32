"""Traces of odd shapes take time in proportion to their events, whatever is asked of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.degenerate import SHAPES, write_shape
from tests.support.limited import run_limited

from stepscope.analysis.questions import QUESTIONS

VERBS = """
import contextlib, io, time
from stepscope.commands.main import main

verbs, warm_up, *paths = arguments
answer = {}
for verb in verbs:
    spent = []
    for path in [warm_up, *paths]:
        said, out = io.StringIO(), io.StringIO()
        began = time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = main([*verb, path])
        spent.append(time.process_time() - began)
        assert code in (0, 2, 3) and "unexpected" not in said.getvalue(), (verb, said.getvalue())
    answer[" ".join(verb)] = spent[1:]
"""
FEW, MANY = 2_500, 40_000
"""The square of their ratio is 256."""
MOST_GROWTH = 40
"""Of processor time. In proportion it would be 16, and less where most time is a constant."""
SECONDS = 0.1
"""What a verb takes for the few events counts as at least this much."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux"),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_time_grows_as_the_events_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    paths = [
        write_shape(tmp_path / f"{number}.json", shape, count)
        for number, count in enumerate((FEW, FEW, MANY))
    ]
    verbs = [["report"], ["info"], ["memory"]]
    verbs += [["show", one.name] for one in QUESTIONS if not one.over_ranks]
    ending = run_limited(VERBS, verbs, *paths, cpu_seconds=600, seconds=1100)
    assert ending.exit_code == 0, ending.errors[-2000:]
    slow = {
        verb: (few, many)
        for verb, (few, many) in ending.answer.items()
        if many > MOST_GROWTH * max(few, SECONDS)
    }
    assert not slow
