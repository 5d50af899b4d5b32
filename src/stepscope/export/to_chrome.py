"""`--to chrome`: the chosen part of each trace as Chrome JSON.

Nothing is added, so the file gives the same answers as the events that it was cut from: times to
the nanosecond, arguments as they were, arrows, counters, metadata. Only the order differs (events
with a duration come first), and correlation numbers that a reader made unique over several
processes take the place of those in the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import orjson
import polars as pl

from stepscope.export.request import Exported, Request, Write, file_writer, folder_writer, parts_of
from stepscope.export.selection import Cut, cut, lag_notes
from stepscope.trace.categories import category_of
from stepscope.trace.formats.chrome.written import member, microseconds
from stepscope.trace.model import Trace
from stepscope.trace.paths import TraceRef
from stepscope.trace.schema import Category

_ROWS_AT_ONCE = 200_000
_OF_LANE = re.compile(r"^(\w+) \(pid (.*), tid (.*)\)$", re.DOTALL)
"""Keys under which the reader keeps metadata of one process or thread."""
_RAW_CATEGORIES = {
    Category.RUNTIME: "cuda_runtime",
    Category.DRIVER: "cuda_driver",
    Category.DEVICE_SYNC: "cuda_sync",
    Category.SPAN: "Trace",
}
"""torch's words for categories that we call otherwise."""
_NAMES = ("process_name", "thread_name")
_WHAT_AND_WHERE = (pl.col("what"), pl.lit(", "), pl.col("place"))


def export(asked: Request) -> Exported:
    """Write one file per trace."""
    notes: list[str] = []

    def one(source: TraceRef, write: Write) -> str:
        found = cut(source.open(), asked.steps)
        notes.extend(lag_notes(found, asked.steps, asked.rank_of(source)))
        events = write_chrome(found, write)
        return f"{events:,} events"

    if len(asked.sources) == 1:
        with file_writer(asked.destination) as write:
            note = one(asked.sources[0], write)
        return Exported((asked.destination,), note, tuple(notes))
    note = ""
    with folder_writer(asked.destination) as folder:
        for source in asked.sources:
            with folder.file(f"rank{source.rank:05d}.json.gz") as write:
                note = one(source, write)
    return Exported(tuple(folder.files), note, tuple(notes))


def write_chrome(cut: Cut, write: Callable[[bytes], object]) -> int:
    """Write a trace, and return the number of events with a duration."""
    trace = cut.trace
    lanes = _lanes(trace)
    names = _names(trace)
    write(b"{\n")
    for key, value in _metadata(trace):
        write(_text(key).encode() + b": " + value.encode() + b",\n")
    write(b'"traceEvents": [\n')
    separator = ""
    for piece in _pieces(trace, names, lanes):
        if len(piece):
            write((separator + piece.str.join(",\n").item()).encode())
            separator = ",\n"
    write(b"\n]}\n")
    return trace.event_count


def _text(value: str) -> str:
    return orjson.dumps(value).decode()


def _word(value: str | None) -> str:
    """A process or thread as JSON: a number where it is one."""
    if value is None:
        return '""'
    is_number = re.fullmatch(r"-?(0|[1-9]\d{0,17})", value) is not None and value != "-0"
    return value if is_number else _text(value)


def _metadata(trace: Trace) -> Iterator[tuple[str, str]]:
    for key, value in trace.metadata.collect().iter_rows():
        if not _OF_LANE.match(key):
            yield key, value


def _lanes(trace: Trace) -> pl.DataFrame:
    """The part of each event that says where it is."""
    return pl.DataFrame(
        [
            (row["lane_id"], f'"pid": {_word(row["pid"])}, "tid": {_word(row["tid"])}')
            for row in trace.lanes.iter_rows(named=True)
        ],
        schema={"lane_id": pl.UInt32, "place": pl.String},
        orient="row",
    )


def _names(trace: Trace) -> pl.DataFrame:
    """The part of each event that says what it is."""
    table = trace.name_rows["name_id", "name", "raw_category", "category"]
    what = [
        _category(raw, category) + f'"name": {_text(name)}'
        for _, name, raw, category in table.iter_rows()
    ]
    return pl.DataFrame({"name_id": table["name_id"], "what": pl.Series(what, dtype=pl.String)})


def _category(raw: str | None, category: str) -> str:
    """The category as in the file, unless it means another one in this format."""
    if category_of(raw).value != category:
        raw = _RAW_CATEGORIES.get(Category(category), category)
    return "" if raw is None else f'"cat": {_text(raw)}, '


def _pieces(trace: Trace, names: pl.DataFrame, lanes: pl.DataFrame) -> Iterator[pl.Series]:
    """The events as JSON, in pieces that fit into memory."""
    yield _of_lanes(trace)
    for rows in parts_of(trace.event_count, _ROWS_AT_ONCE):
        part = trace.events.slice(rows.start, _ROWS_AT_ONCE).join(
            trace.args.slice(rows.start, _ROWS_AT_ONCE),
            on="event",
            how="left",
            maintain_order="left",
        )
        yield (
            _described(part, names, lanes)
            .select(
                pl.concat_str(
                    pl.lit('{"ph": "X", '),
                    *_WHAT_AND_WHERE,
                    pl.lit(', "ts": '),
                    microseconds("start_ns"),
                    pl.lit(', "dur": '),
                    microseconds("dur_ns"),
                    member("args", _with_correlation()),
                    pl.lit("}"),
                )
            )
            .to_series()
        )
    timed = (pl.lit(', "ts": '), microseconds("time_ns"))
    for table, phase in ((trace.instants, "i"), (trace.counters, "C")):
        scope = ', "s": "t"' if phase == "i" else ""
        yield _described(table, names, lanes).select(
            pl.concat_str(
                pl.lit(f'{{"ph": "{phase}"{scope}, '),
                *_WHAT_AND_WHERE, *timed, member("args", pl.col("args")), pl.lit("}"),
            )
        ).to_series()  # fmt: skip
    binds = pl.when(pl.col("phase") == "f").then(pl.lit('"bp": "e", ')).otherwise(pl.lit(""))
    yield _described(trace.flows, names, lanes).select(
        pl.concat_str(
            pl.lit('{"ph": "'), "phase", pl.lit('", "id": '), pl.col("flow_id").cast(pl.String),
            pl.lit(", "), binds, *_WHAT_AND_WHERE, *timed, member("args", pl.col("args")),
            pl.lit("}"),
        )
    ).to_series()  # fmt: skip


def _described(table: pl.LazyFrame, names: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    of_names = table.join(names.lazy(), on="name_id", how="left", maintain_order="left")
    return of_names.join(lanes.lazy(), on="lane_id", how="left", maintain_order="left").collect()


def _with_correlation() -> pl.Expr:
    """The arguments, with the correlation that links the event in the tables."""
    text, number = pl.col("args"), pl.col("correlation").cast(pl.String)
    written = text.str.extract(r'"correlation"\s*:\s*(\d+)')
    key = pl.concat_str(pl.lit('"correlation": '), number)
    rest = text.str.replace(r"^\s*\{", "")
    separator = pl.when(rest.str.contains(r"^\s*\}")).then(pl.lit("")).otherwise(pl.lit(", "))
    return (
        pl.when(number.is_null() | (written == number))
        .then(text)
        .when(text.is_null())
        .then(pl.concat_str(pl.lit("{"), key, pl.lit("}")))
        .when(written.is_not_null())
        .then(text.str.replace(r'"correlation"\s*:\s*\d+', key))
        .otherwise(pl.concat_str(pl.lit("{"), key, separator, rest))
    )


def _of_lanes(trace: Trace) -> pl.Series:
    found: list[str] = []

    def add(key: str, pid: str | None, tid: str | None, args: str) -> None:
        found.append(
            f'{{"ph": "M", "name": {_text(key)}, "pid": {_word(pid)}, "tid": {_word(tid)},'
            f' "ts": 0, "args": {args}}}'
        )

    named = set()
    for row in trace.lanes.iter_rows(named=True):
        if row["process_name"] is not None and row["pid"] not in named:
            named.add(row["pid"])
            add("process_name", row["pid"], "0", f'{{"name": {_text(row["process_name"])}}}')
        if row["thread_name"] is not None:
            add("thread_name", row["pid"], row["tid"], f'{{"name": {_text(row["thread_name"])}}}')
    for key, value in trace.metadata.collect().iter_rows():
        of_lane = _OF_LANE.match(key)
        if of_lane and of_lane[1] not in _NAMES:
            add(of_lane[1], of_lane[2], of_lane[3], value)
    return pl.Series("event", found, dtype=pl.String)
