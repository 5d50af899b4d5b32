"""Answers the questions about a window that a page shows: reads its trace, once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from stepscope.advice.rank.typical_step import typical_step
from stepscope.advice.rank.window_details import (
    MOST_ROWS,
    TABLES,
    DetailedAnswer,
    Recording,
    WindowDetails,
)
from stepscope.analysis.contents import recorder_of
from stepscope.analysis.questions import question
from stepscope.analysis.selection.rows import Beginning, tables_in
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError
from stepscope.terminal.working import working
from stepscope.trace.load import load
from stepscope.trace.model import Trace


def answer_window(path: Path, asked: Scope, steady: tuple[int, ...]) -> WindowDetails:
    """The details of a window.

    Args:
        steady: Its steady steps, of which one is drawn.
    """
    trace = load(path)
    found = [_answer(name, trace, asked) for name in TABLES]
    return WindowDetails(
        recording=_recording(trace),
        answers=tuple(one for one in found if isinstance(one, DetailedAnswer)),
        notes=tuple(one for one in found if isinstance(one, str)),
        step=typical_step(trace, steady),
    )


def _answer(name: str, trace: Trace, asked: Scope) -> DetailedAnswer | str:
    try:
        with working(f"Answering {name}"):
            result = question(name).ask(trace, asked)
    except StepscopeError as error:
        return f"{name}: {error}"
    found = tables_in(result)
    tables = {
        field: Beginning.of(found[field].select(columns), MOST_ROWS)
        for field, columns in TABLES[name].items()
    }
    return DetailedAnswer(name, tables, result.scope, tuple(result.notes))


def _recording(trace: Trace) -> Recording:
    recorder = recorder_of(trace)
    return Recording(
        path=trace.path,
        producer=recorder.producer,
        accelerator=recorder.accelerator,
        gpus=_gpus_with_events(trace),
        backend=recorder.backend,
        header=recorder.header,
    )


def _gpus_with_events(trace: Trace) -> tuple[str, ...]:
    events = np.bincount(trace.columns("lane_id")["lane_id"].to_numpy(), minlength=len(trace.lanes))
    used = trace.lanes["device"].filter(pl.Series(events > 0))
    names = trace.devices.filter(pl.col("device").is_in(used.drop_nulls().implode()))["name"]
    return tuple(names.drop_nulls().unique().sort())
