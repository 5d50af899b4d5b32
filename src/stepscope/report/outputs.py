"""The outputs of every kind of result, in one table. Importing it imports no output.

An output is a module with a function `write(result, sink, layout)`, which lays the result out and
writes it to the sink. Results that come in pieces are written in pieces.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


class Sink(Protocol):
    """Where an output goes: standard output, a file."""

    @property
    def is_terminal(self) -> bool:
        """Whether it is a terminal, which has a width."""

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:
        """A console that writes here.

        Args:
            keeps_padding: Whether trailing spaces are kept.
            width: Width in columns; by default that of the terminal.
        """

    def write(self, content: str | bytes) -> None:
        """Write text or bytes."""

    def remark(self, text: str) -> None:
        """Print a remark about the output, outside it."""


@dataclass(frozen=True)
class Layout:
    """How much of a result to show. An output ignores what does not apply to it.

    Attributes:
        table: Only this table; None: the output's default.
        rows: Maximum number of rows of each table; None: all.
        columns: Only these columns of tables; None: the output's default; "all": all of them.
        is_full: Show everything that a default leaves out.
    """

    table: str | None = None
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    is_full: bool = False


@dataclass(frozen=True)
class Format:
    """An output format.

    Attributes:
        name: Its name for `--format`.
        is_for_people: Whether numbers have convenient units and long tables are cut. Programs get
            integer nanoseconds and bytes, and all rows.
        is_text: Whether a terminal can show it.
        is_document: Whether a file holds one result: a second one cannot follow it.
        has_columns: Whether columns of its tables can be chosen.
    """

    name: str
    is_for_people: bool
    is_text: bool = True
    is_document: bool = True
    has_columns: bool = True


TABLE = Format("table", is_for_people=True, is_document=False)
MARKDOWN = Format("md", is_for_people=True, is_document=False)
HTML = Format("html", is_for_people=True, has_columns=False)
JSON = Format("json", is_for_people=False, has_columns=False)
CSV = Format("csv", is_for_people=False)
PARQUET = Format("parquet", is_for_people=False, is_text=False)


@dataclass(frozen=True)
class Output:
    """One output of one kind of result.

    Attributes:
        format: Its format.
        module: Its module in `stepscope.report`.
        picks_table: Whether `Layout.table` applies to it.
        wants_details: Whether a diagnosis should bring the details of the window shown, and an
            answer about memory the picture of memory over time.
    """

    format: Format
    module: str
    picks_table: bool = False
    wants_details: bool = False

    @property
    def full_module(self) -> str:
        """The name by which its module is imported."""
        return f"stepscope.report.{self.module}"

    def write(self, result: Any, sink: Sink, layout: Layout | None = None) -> None:
        """Lay out a result and write it.

        Raises:
            UsageError: The layout names a table that the result does not have.
        """
        module = importlib.import_module(self.full_module)
        module.write(result, sink, layout or Layout())


OUTPUTS: Mapping[str, tuple[Output, ...]] = {
    # Where the step goes, why, and what to change: advice.diagnosis.Diagnosis.
    "diagnosis": (
        Output(TABLE, "diagnosis.terminal"),
        Output(JSON, "diagnosis.json"),
        Output(CSV, "diagnosis.csv", picks_table=True),
        Output(MARKDOWN, "diagnosis.markdown"),
        Output(HTML, "diagnosis.html", wants_details=True),
    ),
    # py-spy recordings: a sequence of analysis.python_functions.SampledRecording.
    "samples": (
        Output(TABLE, "samples.terminal"),
        Output(JSON, "samples.json"),
        Output(CSV, "samples.terminal"),
        Output(MARKDOWN, "samples.terminal"),
        Output(HTML, "samples.html"),
    ),
    # Answers to a question about traces: analysis.questions.Answers.
    "answer": (
        Output(TABLE, "answer.terminal", picks_table=True),
        Output(JSON, "answer.json"),
        Output(CSV, "answer.csv", picks_table=True),
        Output(MARKDOWN, "answer.markdown", picks_table=True),
    ),
    # The answer to a question about a memory snapshot: memory.questions.table.MemoryAnswer.
    "memory": (
        Output(TABLE, "memory.terminal", picks_table=True),
        Output(JSON, "memory.json"),
        Output(CSV, "memory.csv", picks_table=True),
        Output(MARKDOWN, "memory.markdown", picks_table=True),
        Output(HTML, "memory.html", wants_details=True),
    ),
    # What memory snapshots alone say: advice.memory_report.MemoryReport.
    "snapshots": (
        Output(TABLE, "snapshots.terminal"),
        Output(JSON, "snapshots.json"),
        Output(CSV, "snapshots.csv", picks_table=True),
        Output(MARKDOWN, "snapshots.markdown"),
        Output(HTML, "snapshots.html", wants_details=True),
    ),
    # What changed between two runs: comparison.result.CheckedComparison.
    "comparison": (
        Output(TABLE, "comparison.terminal"),
        Output(JSON, "comparison.json"),
        Output(CSV, "comparison.csv"),
        Output(MARKDOWN, "comparison.markdown"),
        Output(HTML, "comparison.html"),
    ),
    # Rows of a query: a polars frame.
    "rows": (
        Output(TABLE, "rows.terminal"),
        Output(CSV, "rows.csv"),
        Output(JSON, "rows.json"),
        Output(PARQUET, "rows.parquet"),
    ),
    # What a trace file holds: analysis.contents.Contents.
    "contents": (Output(TABLE, "contents.terminal"), Output(JSON, "contents.json")),
    # What a run directory holds: analysis.record.listing.RunListing.
    "run": (Output(TABLE, "run.terminal"), Output(JSON, "run.json")),
    # What was sampled beside a training: analysis.record.metrics.MetricsSummary.
    "metrics": (Output(TABLE, "metrics.terminal"), Output(JSON, "metrics.json")),
    # What the doctor found: a sequence of doctor.check.Check.
    "checks": (Output(TABLE, "checks.terminal"), Output(JSON, "checks.json")),
    # Each recording option, and where its value comes from: adapters.options.settings.
    "settings": (Output(TABLE, "settings.terminal"), Output(JSON, "settings.json")),
    # Option names of other frameworks: a sequence of adapters.options.dialect.Dialect.
    "dialects": (Output(TABLE, "dialects.terminal"), Output(JSON, "dialects.json")),
    # The stores of traces on disk: a sequence of trace.store.listing.StoreInfo.
    "stores": (Output(TABLE, "stores.terminal"), Output(JSON, "stores.json")),
    # What trials of fixes brought: run.trials.TrialsRecord.
    "trial": (
        Output(TABLE, "trial.terminal"),
        Output(JSON, "trial.json"),
        Output(MARKDOWN, "trial.markdown"),
    ),
    # The fixes that can be tried: a sequence of trial.fixes.fix.Fix.
    "fixes": (
        Output(TABLE, "fixes.terminal"),
        Output(JSON, "fixes.json"),
        Output(MARKDOWN, "fixes.terminal"),
    ),
    # What the demo predicted and measured: demo.runner.DemoOutcome.
    "demo": (Output(TABLE, "demo.terminal"), Output(JSON, "demo.json")),
}
"""Kind of result to its outputs, the default first."""


def output(kind: str, format_name: str) -> Output:
    """The output of a kind of result in a format.

    Raises:
        UsageError: This kind of result has no such output.
    """
    for candidate in OUTPUTS[kind]:
        if candidate.format.name == format_name:
            return candidate
    names = ", ".join(candidate.format.name for candidate in OUTPUTS[kind])
    raise UsageError(f"--format {format_name} is not available for this input: choose {names}")
