"""Tables of results as CSV: all rows, integer nanoseconds and bytes."""

from __future__ import annotations

import csv
import io
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.analysis.selection.rows import csv_text
from stepscope.report.document import Remark
from stepscope.report.plain import plain
from stepscope.run.side_json import utf8_json

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink


def write(module: ModuleType, result: Any, sink: Sink, layout: Layout) -> None:
    """Write the tables that the layout chooses, one after the other."""
    for found in module.frames(result, layout):
        if isinstance(found, Remark):
            sink.remark(found.text)
        else:
            sink.write(found if isinstance(found, bytes) else frame_to_csv(found))


def frame_to_csv(frame: pl.DataFrame) -> str:
    """A table as CSV with a header; lists as JSON, numbers in full precision.

    Text is made safe for terminals and spreadsheets (`csv_text`).
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_text, frame.columns))
    writer.writerows([_cell(item) for item in row] for row in frame.iter_rows())
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return csv_text(utf8_json(plain(value)).decode())
    return csv_text(value) if isinstance(value, str) else value
