"""Every output of every kind of result: one table that the verbs ask; importing it imports none.

An output is a module with a function `write(result, sink, layout)`. It lays the result out and
hands it to the sink, piece by piece where the result comes in pieces.
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
        """Whether a person watches, whose screen has a width."""

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:
        """A console that writes here.

        Args:
            keeps_padding: Whether blanks at the ends of lines are kept.
            width: Columns; by default those of the terminal.
        """

    def write(self, content: str | bytes) -> None:
        """Write text, or the bytes of a file."""

    def remark(self, text: str) -> None:
        """Say something about the output beside it."""


@dataclass(frozen=True)
class Layout:
    """How much of a result is shown; an output ignores what does not concern it.

    Attributes:
        table: Only this table; None: those that the output shows by itself.
        rows: At most so many rows of each table; None: all.
    """

    table: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Format:
    """A form that outputs take.

    Attributes:
        name: What `--format` calls it.
        is_for_people: Whether numbers have the unit a person would choose; programs get whole
            nanoseconds and bytes, and everything.
        is_text: Whether a terminal can show it.
    """

    name: str
    is_for_people: bool
    is_text: bool = True


TABLE = Format("table", is_for_people=True)
MARKDOWN = Format("md", is_for_people=True)
JSON = Format("json", is_for_people=False)
CSV = Format("csv", is_for_people=False)
PARQUET = Format("parquet", is_for_people=False, is_text=False)


@dataclass(frozen=True)
class Output:
    """One form of one kind of result.

    Attributes:
        format: The form.
        module: Its module, below `stepscope.report`.
        picks_table: Whether it shows one table alone, so that `Layout.table` is of use to it.
    """

    format: Format
    module: str
    picks_table: bool = False

    def write(self, result: Any, sink: Sink, layout: Layout | None = None) -> None:
        """Lay a result out, and write it.

        Raises:
            UsageError: The layout names a table that the result does not have.
        """
        module = importlib.import_module(f"stepscope.report.{self.module}")
        module.write(result, sink, layout or Layout())


OUTPUTS: Mapping[str, tuple[Output, ...]] = {
    # Where the step goes, why, and what to change: advice.diagnosis.Diagnosis.
    "diagnosis": (
        Output(TABLE, "diagnosis.terminal"),
        Output(JSON, "diagnosis.json"),
        Output(CSV, "diagnosis.csv", picks_table=True),
        Output(MARKDOWN, "diagnosis.markdown"),
    ),
    # What a sampler of Python's stacks saw: analysis.python_functions.SampledRecording, several.
    "samples": (
        Output(TABLE, "samples.terminal"),
        Output(JSON, "samples.json"),
        Output(CSV, "samples.terminal"),
        Output(MARKDOWN, "samples.terminal"),
    ),
    # Answers to a question about traces: analysis.questions.Answers.
    "answer": (
        Output(TABLE, "answer.terminal", picks_table=True),
        Output(JSON, "answer.json"),
        Output(CSV, "answer.csv", picks_table=True),
        Output(MARKDOWN, "answer.markdown", picks_table=True),
    ),
    # What changed between two runs: comparison.result.CheckedComparison.
    "comparison": (
        Output(TABLE, "comparison.terminal"),
        Output(JSON, "comparison.json"),
        Output(CSV, "comparison.csv"),
        Output(MARKDOWN, "comparison.markdown"),
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
    # What a run's directory holds: analysis.record.listing.RunListing.
    "run": (Output(TABLE, "run.terminal"), Output(JSON, "run.json")),
    # What was sampled beside a training: analysis.metrics.MetricsSummary.
    "metrics": (Output(TABLE, "metrics.terminal"), Output(JSON, "metrics.json")),
    # What the doctor found: a sequence of doctor.check.Check.
    "checks": (Output(TABLE, "checks.terminal"), Output(JSON, "checks.json")),
    # Each option of a recording, and where its value comes from: adapters.options.sheets.
    "settings": (Output(TABLE, "settings.terminal"), Output(JSON, "settings.json")),
    # What options are called in other frameworks: adapters.options.sheets.
    "dialects": (Output(TABLE, "dialects.terminal"), Output(JSON, "dialects.json")),
    # The stores of traces on the disk: a sequence of trace.store.listing.StoreInfo.
    "stores": (Output(TABLE, "stores.terminal"), Output(JSON, "stores.json")),
    # What the demo promised and measured: demo.runner.DemoOutcome.
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
    raise UsageError(f"--format {format_name}: this comes as {names}")
