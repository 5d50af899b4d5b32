"""The outputs of every kind of result, in one table. Importing it imports no output.

A kind of result has one module in `stepscope.report`, and a format one renderer in `report.render`.
The renderer asks the module for what it lays out:

* `document(result, layout)`, blocks for terminals and Markdown;
* `page(result, rows)`, a `Page` for HTML;
* `to_json(result)`, plain values;
* `frames(result, layout)`, tables for CSV.

Results that come in pieces are written in pieces.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.report.sharing import Pseudonyms


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
        columns: Only these columns of tables; None: the output's default; "all": all of them.
        is_full: Show everything that a default leaves out.
        names: Replaces names in a page, for people outside; None: names stay.
    """

    table: str | None = None
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    is_full: bool = False
    names: Pseudonyms | None = None


@dataclass(frozen=True)
class Format:
    """An output format.

    Attributes:
        renderer: Its module in `stepscope.report.render`.
        is_for_people: Whether numbers have convenient units and long tables are cut. Programs get
            integer nanoseconds and bytes, and all rows.
        is_text: Whether a terminal can show it.
        is_document: Whether a file holds one result: a second one cannot follow it.
        has_columns: Whether columns of its tables can be chosen.
    """

    name: str
    renderer: str
    is_for_people: bool
    is_text: bool = True
    is_document: bool = True
    has_columns: bool = True


TABLE = Format("table", "terminal", is_for_people=True, is_document=False)
MARKDOWN = Format("md", "markdown", is_for_people=True, is_document=False)
HTML = Format("html", "html", is_for_people=True, has_columns=False)
JSON = Format("json", "json", is_for_people=False, has_columns=False)
CSV = Format("csv", "csv", is_for_people=False)
PARQUET = Format("parquet", "parquet", is_for_people=False, is_text=False)


@dataclass(frozen=True)
class Output:
    """One output of one kind of result.

    Attributes:
        kind: The kind of result, which its module in `stepscope.report` is called after.
        picks_table: Whether `Layout.table` applies to it.
        wants_details: Whether a diagnosis should bring the details of the window shown, and an
            answer about memory the picture of memory over time.
    """

    format: Format
    kind: str
    picks_table: bool = False
    wants_details: bool = False

    @property
    def modules(self) -> tuple[str, str]:
        """The names by which the result's module and its renderer are imported."""
        return f"stepscope.report.{self.kind}", f"stepscope.report.render.{self.format.renderer}"

    def write(self, result: Any, sink: Sink, layout: Layout | None = None) -> None:
        """Lay out a result and write it."""
        module, renderer = map(importlib.import_module, self.modules)
        renderer.write(module, result, sink, layout or Layout())


def _outputs(
    kind: str,
    *formats: Format,
    picks_table: tuple[Format, ...] = (),
    wants_details: tuple[Format, ...] = (),
) -> tuple[Output, ...]:
    return tuple(Output(one, kind, one in picks_table, one in wants_details) for one in formats)


_OF_TABLES = (TABLE, CSV, MARKDOWN)
_DETAILED = {"picks_table": (CSV,), "wants_details": (HTML,)}
OUTPUTS: Mapping[str, tuple[Output, ...]] = {
    # Where the step goes, why, and what to change: advice.diagnosis.Diagnosis.
    "diagnosis": _outputs("diagnosis", TABLE, JSON, CSV, MARKDOWN, HTML, **_DETAILED),
    # py-spy recordings: a sequence of analysis.python_functions.SampledRecording.
    "samples": _outputs("samples", TABLE, JSON, CSV, MARKDOWN, HTML),
    # Answers to a question about traces: analysis.questions.Answers.
    "answer": _outputs("answer", TABLE, JSON, CSV, MARKDOWN, HTML, picks_table=_OF_TABLES),
    # The answer to a question about a memory snapshot: memory.questions.table.MemoryAnswer.
    "memory": _outputs(
        "memory",
        *(TABLE, JSON, CSV, MARKDOWN, HTML),
        picks_table=_OF_TABLES,
        wants_details=(HTML,),
    ),
    # What memory snapshots alone say: advice.memory_report.MemoryReport.
    "snapshots": _outputs("snapshots", TABLE, JSON, CSV, MARKDOWN, HTML, **_DETAILED),
    # What changed between two runs: comparison.CheckedComparison.
    "comparison": _outputs("comparison", TABLE, JSON, CSV, MARKDOWN, HTML),
    # Rows of a query: a polars frame.
    "rows": _outputs("rows", TABLE, CSV, JSON, PARQUET),
    # What a trace file holds: analysis.contents.Contents.
    "contents": _outputs("contents", TABLE, JSON),
    # What a run directory holds: analysis.record.listing.RunListing.
    "run": _outputs("run", TABLE, JSON),
    # What was sampled beside a training: analysis.record.metrics.MetricsSummary.
    "metrics": _outputs("metrics", TABLE, JSON),
    # What the doctor found: a sequence of doctor.check.Check.
    "checks": _outputs("checks", TABLE, JSON),
    # Each recording option, and where its value comes from: adapters.options.settings.
    "settings": _outputs("settings", TABLE, JSON),
    # Option names of other frameworks: a sequence of adapters.options.dialect.Dialect.
    "dialects": _outputs("dialects", TABLE, JSON),
    # The stores of traces on disk: a sequence of trace.store.listing.StoreInfo.
    "stores": _outputs("stores", TABLE, JSON),
    # What trials of fixes brought: run.trials.TrialsRecord.
    "trial": _outputs("trial", TABLE, JSON, MARKDOWN),
    # The fixes that can be tried: a sequence of trial.fixes.Fix.
    "fixes": _outputs("fixes", TABLE, JSON, MARKDOWN),
    # What the demo predicted and measured: demo.runner.DemoOutcome.
    "demo": _outputs("demo", TABLE, JSON),
}
"""Kind of result to its outputs, the default first."""


def output(kind: str, format_name: str) -> Output:
    """The output of a kind of result in a format."""
    for candidate in OUTPUTS[kind]:
        if candidate.format.name == format_name:
            return candidate
    names = ", ".join(candidate.format.name for candidate in OUTPUTS[kind])
    raise UsageError(f"--format {format_name} is not available for this input: choose {names}")
