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
    The thread of `stepscope run`, which waits for the training, is left out, as are the threads of
    Stepscope itself and what it does on other threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.calls.parents import own_events
from stepscope.analysis.record.python_memory import INSTALLED
from stepscope.analysis.selection.gpu_work import check_steps, in_steps
from stepscope.analysis.selection.names import events_with_names, names_that
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.opening.reader import Run
from stepscope.opening.remote import as_shown
from stepscope.trace.arrays.grouped_intervals import union_lengths
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.ordering import numbered
from stepscope.trace.model import Trace
from stepscope.trace.paths import traces_of_rank
from stepscope.trace.schema import Category

_MARKS = r"^(thread \(|process \d+:)"
"""py-spy's outermost frames, which name the thread and the process and are no functions."""
_NAME = r"^(?:(.+\.py(?:\(\d+\))?|<[^>]+>): )?(.+)$"
"""Recorders write `file: function`; what is built in has no file."""
_RECORDER = "py-spy"
_UNKNOWN_RATE = "unknown_rate"
_LAUNCHER = r"stepscope/adapters/(?:script/)?launch\.py(\(\d+\))?: launch$"
"""Where `stepscope run` waits for the training, in this version and in earlier ones."""
_MAIN = "MainThread"
_UNKNOWN_PROCESS = "0"
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
        threads: One row per thread: process (null if unknown), thread, covered_ns, covered_share,
            functions (different ones), most_in (the function with the most self time),
            most_in_share (its part of the thread's covered time). The training's main thread comes
            first: a main thread, seen for much of the time, with the most different functions.
        scope: What the answer covers; its events are the spans.
    """

    covered_ns: int
    recording_ns: int
    functions: pl.DataFrame
    threads: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SampledRecording:
    """A sampler's recording."""

    path: str
    answer: PythonFunctions


def sampled_recordings(run: Run) -> tuple[SampledRecording, ...]:
    """The recordings that a run consists of; none if any of its traces is something else."""
    found = []
    for rank in run.ranks:
        for described in traces_of_rank(rank).traces:
            trace = described.open()
            if not is_sampled(trace):
                return ()
            found.append(SampledRecording(as_shown(described.name), python_functions(trace)))
    return tuple(found)


def is_sampled(trace: Trace) -> bool:
    """Whether the trace is a sampler's recording of Python frames."""
    names = trace.names.select(pl.col("raw_category") == _RECORDER).collect()
    return bool(names.to_series().any())


def python_functions(trace: Trace, scope: Scope | None = None) -> PythonFunctions:
    """Add up the time of the Python functions of a scope."""
    asked = scope or Scope()
    covered_steps = check_steps(trace, asked)
    spans, functions, left_out = _spans(trace)
    chosen = spans
    if asked.steps is not None:
        chosen = spans.filter(pl.Series(in_steps(spans["step"], asked), dtype=pl.Boolean))
    lanes, width = chosen["lane_id"].to_numpy().astype(np.int64), max(1, len(functions))
    covered = _per_key(chosen, lanes).with_columns(lane_id=pl.col("key").cast(pl.UInt32))
    pairs = _per_key(chosen, lanes * width + chosen["function_id"].to_numpy()).with_columns(
        lane_id=(pl.col("key") // width).cast(pl.UInt32),
        function_id=(pl.col("key") % width).cast(pl.UInt32),
    )
    covered_ns = int(covered["total_ns"].sum())
    recording_ns = 0
    if len(chosen):
        end_ns = (chosen["start_ns"] + chosen["dur_ns"]).to_numpy().max()
        recording_ns = int(end_ns - chosen["start_ns"].to_numpy().min())
    notes = [_WAITING] if is_sampled(trace) else []
    guessed = trace.problems.filter(pl.col("problem") == _UNKNOWN_RATE)
    notes += guessed["message"].to_list()
    if chosen.is_empty():
        notes.append(
            "no Python functions were recorded: record with stacks (with_stack), or with py-spy "
            "(--py-spy-format chrometrace, speedscope or raw)"
        )
    excluded = {"functions of other steps or of none": len(spans) - len(chosen), **left_out}
    return PythonFunctions(
        covered_ns,
        recording_ns,
        _functions(pairs, functions, covered_ns),
        _threads(trace, pairs, functions, covered, recording_ns),
        AnsweredScope(asked, covered_steps, (), len(chosen)).leaving_out(excluded),
        tuple(notes),
    )


def _spans(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """All spans of functions; the functions; and how many spans are left out, by reason.

    There are millions of spans and thousands of functions, so spans have their numbers
    (`function_id`), which are in the order of the names.
    """
    names = trace.name_rows
    is_function = (pl.col("category") == Category.PYTHON_FUNCTION.value) & ~pl.col(
        "name"
    ).str.contains(_MARKS)
    functions = (
        names.filter(is_function)
        .select(function="name")
        .unique()
        .sort("function")
        .with_row_index("function_id")
    )
    numbers = names.select(function="name").join(
        functions, on="function", how="left", maintain_order="left"
    )["function_id"]
    is_launcher = names_that(trace, is_function & pl.col("name").str.contains(_LAUNCHER))
    events = events_with_names(trace, names_that(trace, is_function))
    read = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    rows = pl.Series(events, dtype=pl.UInt32)
    name_id = read["name_id"].gather(rows)
    lane_id = read["lane_id"].gather(rows)
    launchers = lane_id.filter(pl.Series(is_launcher[name_id.to_numpy()])).unique()
    spans = pl.DataFrame(
        [
            lane_id,
            read["start_ns"].gather(rows),
            read["dur_ns"].gather(rows),
            *trace.derived_of(rows, "step", "self_ns"),
            numbers.gather(name_id),
        ]
    )
    left_out = {}
    is_kept = np.ones(len(spans), bool)
    if len(launchers):
        is_kept = (~lane_id.is_in(launchers.implode())).to_numpy()
        waiting = "functions of stepscope run, which waits for the training"
        left_out[waiting] = int((~is_kept).sum())
    own = own_events(trace)
    if own is not None:
        is_own = own[events] & is_kept
        left_out["functions of Stepscope itself"] = int(is_own.sum())
        is_kept &= ~is_own
    kept = spans if is_kept.all() else spans.filter(pl.Series(is_kept))
    return kept, functions, left_out


def _per_key(spans: pl.DataFrame, keys: Int64Array) -> pl.DataFrame:
    """One row per key of some spans: key, count, self_ns, total_ns."""
    distinct, row = numbered(keys)
    self_ns = np.zeros(len(distinct), np.int64)
    np.add.at(self_ns, row, spans["self_ns"].to_numpy())
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    return pl.DataFrame(
        {
            "key": distinct,
            "count": np.bincount(row, minlength=len(distinct)),
            "self_ns": self_ns,
            "total_ns": union_lengths(row, start, end, len(distinct)),
        }
    )


def _functions(pairs: pl.DataFrame, functions: pl.DataFrame, covered_ns: int) -> pl.DataFrame:
    return (
        pairs.group_by("function_id")
        .agg(pl.col("count", "self_ns", "total_ns").sum(), threads=pl.len().cast(pl.Int64))
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
    file = pl.col(column).str.extract(_NAME, 1).fill_null("")
    return file.str.replace(INSTALLED, "").alias("place")


def _threads(
    trace: Trace,
    pairs: pl.DataFrame,
    functions: pl.DataFrame,
    covered: pl.DataFrame,
    recording_ns: int,
) -> pl.DataFrame:
    hottest = (
        pairs.join(functions, on="function_id")
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
        process=pl.when(pl.col("pid") != _UNKNOWN_PROCESS).then("pid"),
        thread=pl.coalesce(pl.col("thread_name"), pl.col("tid").cast(pl.String)),
    )
    return (
        covered.join(lanes, on="lane_id", how="left")
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
