"""Python functions: where the interpreter's time went, function by function and thread by thread.

Definitions
    The functions are frames that a sampler saw (py-spy), or calls that torch recorded with stacks.
    Total     The union of a function's spans on a thread, so that recursion counts once; threads
              are added up.
    Self      The time in a function and in nothing that was recorded inside it: no other function,
              no operator, no call of the runtime. In a recording of frames alone, the self times of
              a thread add up to its covered time.
    Covered   The union of all functions' spans on a thread, waiting in them included.
    Shares are of the covered time of all threads; a thread's own share is of the whole recording,
    from its first frame on any thread to its last.
    The thread of `stepscope run`, which waits for the training, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.analysis.selection.gpu_work import check_steps, in_steps, side_by_side
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.run.reader import Run
from stepscope.trace.arrays import intervals
from stepscope.trace.model import Trace
from stepscope.trace.paths import traces_of_rank
from stepscope.trace.schema import Category

_MARKS = r"^(thread \(|process \d+:)"
"""py-spy's outermost frames, which name the thread and the process and are no functions."""
_NAME = r"^(?:(.+\.py(?:\(\d+\))?|<[^>]+>): )?(.+)$"
"""Recorders write `file: function`; what is built in has no file."""
_INSTALLED = r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+)/"
"""Where packages lie on one machine, which is of no interest in a table."""
_RECORDER = "py-spy"
_LAUNCHER = r"stepscope/adapters/(?:script/)?launch\.py(\(\d+\))?: launch$"
"""Where `stepscope run` waits for the training, in this version and in earlier ones."""
_MAIN = "MainThread"
_WAITING = (
    "time that a thread waits in a function counts for the function; py-spy draws waiting right "
    "only where it recorded with --idle"
)


@dataclass(frozen=True)
class PythonFunctions:
    """Where the interpreter's time went.

    Attributes:
        covered_ns: Time in functions, over all threads.
        recording_ns: From the first function's beginning to the last one's end.
        functions: One row per function, the most self time first: function, place (its file,
            of a package the part inside it), count (spans seen; a sampler joins samples that
            follow each other), self_ns, self_share, total_ns, total_share, threads.
        threads: One row per thread: process, thread, covered_ns, covered_share, functions
            (different ones), most_in (the function with the most self time), most_in_share (its
            part of the thread's covered time). The training's main thread comes first: a main
            thread, seen for much of the time, with the most different functions.
        scope: What the answer covers; its events are the spans.
        notes: What a reader must know.
    """

    covered_ns: int
    recording_ns: int
    functions: pl.DataFrame
    threads: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SampledRecording:
    """A sampler's recording.

    Attributes:
        path: Its file.
        answer: Where the interpreter's time went.
    """

    path: str
    answer: PythonFunctions


def sampled_recordings(run: Run) -> tuple[SampledRecording, ...]:
    """The recordings that a run consists of; none if any of its traces is something else.

    Raises:
        UnreadableInputError: One cannot be read.
    """
    found = []
    for rank in run.ranks:
        for described in traces_of_rank(rank).traces:
            trace = described.open()
            if not is_sampled(trace):
                return ()
            found.append(SampledRecording(described.name, python_functions(trace)))
    return tuple(found)


def is_sampled(trace: Trace) -> bool:
    """Whether the trace is a sampler's recording of Python frames."""
    names = trace.names.select(pl.col("raw_category") == _RECORDER).collect()
    return bool(names.to_series().any())


def python_functions(trace: Trace, scope: Scope | None = None) -> PythonFunctions:
    """Add up the time of the Python functions of a scope.

    Raises:
        UsageError: The scope names steps that the trace does not have.
    """
    asked = scope or Scope()
    covered_steps = check_steps(trace, asked)
    spans, functions, launchers = _spans(trace)
    chosen = spans.filter(pl.Series(in_steps(spans["step"], asked), dtype=pl.Boolean))
    by_thread = _unions(chosen, ["lane_id"])
    covered_ns = int(by_thread["total_ns"].sum())
    recording_ns = 0
    if len(chosen):
        end_ns = (chosen["start_ns"] + chosen["dur_ns"]).to_numpy().max()
        recording_ns = int(end_ns - chosen["start_ns"].to_numpy().min())
    notes = [_WAITING] if is_sampled(trace) else []
    if chosen.is_empty():
        notes.append(
            "no Python functions were recorded: record with stacks (with_stack), or with py-spy"
        )
    excluded = {
        "functions of other steps or of none": len(spans) - len(chosen),
        "functions of stepscope run, which waits for the training": launchers,
    }
    return PythonFunctions(
        covered_ns,
        recording_ns,
        _functions(chosen, functions, covered_ns),
        _threads(trace, chosen, functions, by_thread, recording_ns),
        AnsweredScope(
            asked,
            covered_steps,
            (),
            len(chosen),
            {reason: count for reason, count in excluded.items() if count},
        ),
        tuple(notes),
    )


def _spans(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """All spans of functions; the functions; and how many spans of the launcher are left out.

    There are millions of spans and thousands of functions, so spans have their numbers
    (`function_id`), which are in the order of the names.
    """
    events = side_by_side(
        trace,
        ["event", "name_id", "category", "lane_id", "start_ns", "dur_ns"],
        ["step", "self_ns"],
    ).filter(pl.col("category") == Category.PYTHON_FUNCTION.value)
    names = trace.names.select("name_id", function="name").collect()
    names = names.filter(~pl.col("function").str.contains(_MARKS))
    functions = names.select("function").unique().sort("function").with_row_index("function_id")
    numbers = names.join(functions, on="function").select("name_id", "function_id")
    spans = events.join(numbers, on="name_id", maintain_order="left")
    launcher = functions.filter(pl.col("function").str.contains(_LAUNCHER))["function_id"]
    is_launcher = pl.col("function_id").is_in(launcher.implode())
    launchers = spans.filter(is_launcher)["lane_id"].unique()
    kept = spans.filter(~pl.col("lane_id").is_in(launchers.implode()))
    return kept, functions, len(spans) - len(kept)


def _unions(spans: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The union of the spans within each combination of keys: keys, total_ns."""
    groups = spans.select(keys).unique(maintain_order=True).with_row_index("group")
    placed = spans.join(groups, on=keys, how="left", maintain_order="left")
    start = placed["start_ns"].to_numpy()
    group, first, last = intervals.merge_by_group(
        placed["group"].to_numpy(), start, start + placed["dur_ns"].to_numpy()
    )
    sums = (
        pl.DataFrame({"group": group, "total_ns": last - first})
        .group_by("group")
        .agg(pl.col("total_ns").sum())
        .with_columns(pl.col("group").cast(groups["group"].dtype))
    )
    return (
        groups.join(sums, on="group", how="left", maintain_order="left")
        .with_columns(pl.col("total_ns").fill_null(0))
        .drop("group")
    )


def _functions(spans: pl.DataFrame, functions: pl.DataFrame, covered_ns: int) -> pl.DataFrame:
    totals = (
        _unions(spans, ["lane_id", "function_id"])
        .group_by("function_id")
        .agg(pl.col("total_ns").sum(), threads=pl.len().cast(pl.Int64))
    )
    return (
        spans.group_by("function_id")
        .agg(count=pl.len().cast(pl.Int64), self_ns=pl.col("self_ns").sum())
        .join(totals, on="function_id")
        .join(functions, on="function_id")
        .sort(["self_ns", "total_ns", "function"], descending=[True, True, False])
        .select(
            _function("function"),
            _place("function"),
            "count",
            "self_ns",
            _share("self_ns", covered_ns).alias("self_share"),
            "total_ns",
            _share("total_ns", covered_ns).alias("total_share"),
            "threads",
        )
    )


def _share(column: str, whole_ns: int) -> pl.Expr:
    return pl.col(column) / whole_ns if whole_ns else pl.lit(None, pl.Float64)


def _function(column: str) -> pl.Expr:
    """The function's own name, without its file."""
    return pl.col(column).str.extract(_NAME, 2).fill_null(pl.col(column)).alias(column)


def _place(column: str) -> pl.Expr:
    """The function's file; empty where there is none."""
    file = pl.col(column).str.extract(_NAME, 1).fill_null("")
    return file.str.replace(_INSTALLED, "").alias("place")


def _threads(
    trace: Trace,
    spans: pl.DataFrame,
    functions: pl.DataFrame,
    unions: pl.DataFrame,
    recording_ns: int,
) -> pl.DataFrame:
    hottest = (
        spans.group_by("lane_id", "function_id")
        .agg(pl.col("self_ns").sum())
        .join(functions, on="function_id")
        .sort(["lane_id", "self_ns", "function"], descending=[False, True, False])
        .group_by("lane_id", maintain_order=True)
        .agg(
            most_in=pl.col("function").first(),
            most_in_ns=pl.col("self_ns").first(),
            functions=pl.len().cast(pl.Int64),
        )
    )
    lanes = trace.lanes.select(
        "lane_id",
        process=pl.col("pid").cast(pl.String),
        thread=pl.coalesce(pl.col("thread_name"), pl.col("tid").cast(pl.String)),
    )
    return (
        unions.join(lanes, on="lane_id", how="left")
        .join(hottest, on="lane_id", how="left")
        .with_columns(covered_share=_share("total_ns", recording_ns))
        .sort(
            pl.col("thread") == _MAIN,
            pl.col("total_ns") * 2 >= pl.col("total_ns").max(),
            "functions",
            "total_ns",
            "lane_id",
            descending=[True, True, True, True, False],
            nulls_last=True,
        )
        .select(
            "process",
            "thread",
            covered_ns="total_ns",
            covered_share="covered_share",
            functions="functions",
            most_in=_function("most_in"),
            most_in_share=pl.when(pl.col("total_ns") > 0).then(
                pl.col("most_in_ns") / pl.col("total_ns")
            ),
        )
    )
