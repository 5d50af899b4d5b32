"""Single collectives: kind, size, type and process group, from the best source of each.

Torch writes a collective's arguments into the operator `record_param_comms` and, since 2.3 on
NVIDIA, into the kernel too. Both are read; the kernel's go first, then those of the operators
around its launch, the innermost first. Older traces have only the shapes of `nccl:…` operators; the
size of the group is then taken to be the size of the job, and marked as assumed.

Backends on the CPU (gloo, MPI, UCC) leave no kernels. Each collective is a range on a thread of the
backend's own, such as `gloo:all_reduce`, with the shapes of its buffers.

Message size follows nccl-tests: the whole buffer that the operation is about. It is the larger of
input and output, which is what one rank holds in full (`all_gather`: the output; `reduce_scatter`:
the input).

Bandwidths are those of nccl-tests (PERFORMANCE.md). Algorithm bandwidth is message size / duration.
Bus bandwidth multiplies it with what the operation moves per link, so that it compares with the
hardware whatever the number n of ranks: all_reduce 2(n−1)/n; all_gather, reduce_scatter,
all_to_all, gather and scatter (n−1)/n; broadcast, reduce and send_recv 1.
"""

from __future__ import annotations

from math import prod

import numpy as np
import polars as pl

from stepscope.analysis.calls.operands import (
    argument_texts,
    compact_operands,
    element_bytes,
    of_each_way,
    operand_columns,
    parse_call,
)
from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.selection.gpu_work import events_in_steps, recorded_work
from stepscope.analysis.selection.names import events_named
from stepscope.analysis.selection.scope import Scope, memoized
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.classify import collective_group
from stepscope.trace.model import Trace

COLLECTIVES: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,  # the kernel
    "step": pl.Int32,
    "device": pl.Int32,
    "stream": pl.Int64,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "kind": pl.String,  # all_reduce, …; a group of the classifier
    "kernel": pl.String,
    "op": pl.Int64,  # the operator that launched it
    "launch": pl.Int64,
    "message_bytes": pl.Int64,  # null: not known
    "in_bytes": pl.Int64,
    "out_bytes": pl.Int64,
    "dtype": pl.String,  # as recorded: Float, BFloat16, …
    "group_size": pl.Int64,  # ranks
    "group_size_is_assumed": pl.Boolean,
    "group": pl.String,  # name of the process group
    "group_ranks": pl.String,  # as recorded, e.g. "[0, 1]"
    "sequence": pl.Int64,  # the recorder's own number within the group, where it writes one
    "to_rank": pl.Int64,  # of a send, where the recorder writes it
    "from_rank": pl.Int64,  # of a receive
}
"""One row per kernel (or other GPU work) of communication, in order of start."""

POINT_TO_POINT = "send_recv"
"""The kind of sends and receives: what waits in them is the neighbour in a pipeline."""

LEAST_PEERS = 3
"""From so many on, their median or their least says what one should take."""
PEERS = ("kind", "dtype", "group", "group_size", "message_bytes")
"""What collectives have in common that should take equally long."""

ON_THE_HOST = r"^(gloo|mpi|ucc):"
"""Names of the ranges in which a backend on the CPU does collectives."""

_TOO_MANY_RANKS = 10**9

_LEVELS = 12
"""How far up from the launching operator arguments are looked for."""

_MOST_ELEMENTS = 10**15
"""What is larger is no size but damage, and would not fit into 64 bits in bytes."""

_WORD = r'"Collective name"\s*:\s*"([^"]+)"'
_NUMBER = r'"{}"\s*:\s*"?(\d{{1,15}})(?:[^0-9]|$)'
_TEXT = r'"{}"\s*:\s*"([^"]*)"'


def read_collectives(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The collectives among some GPU work.

    Args:
        work: GPU work of the trace with the columns of `GpuWork.table`.

    Returns:
        Columns `COLLECTIVES`.
    """
    found = work.filter(work["kind"] == "communication")
    if found.is_empty():
        return pl.DataFrame(schema=COLLECTIVES)
    known = _recorded_collectives(trace)
    return _with_sizes(known.filter(known["event"].is_in(found["event"].implode())))


@memoized
def _recorded_collectives(trace: Trace) -> pl.DataFrame:
    """What the file says of all communication on GPUs: arguments are read once for all scopes."""
    work = recorded_work(trace)
    found = work.filter(work["kind"] == "communication").sort("start_ns", "event")
    around = _around(trace, found["op"], found["event"])
    own = around["own_text"]
    has_own = own.str.contains('"Collective name"', literal=True).fill_null(value=False)
    rows = found.select(
        *("event", "step", "device", "stream", "start_ns", "dur_ns", "name_id", "op", "launch"),
        classified="group",
        name=trace.name_rows["name"][found["name_id"]],
        text=pl.select(pl.when(has_own).then(own).otherwise(around["text"])).to_series(),
        operator_text=around["operator_text"],
        operator_name=around["operator_name"],
    )
    return _interpreted(trace, rows)


def read_host_collectives(trace: Trace, scope: Scope | None = None) -> pl.DataFrame:
    """The collectives that backends on the CPU did in the steps of a scope.

    Returns:
        Columns `COLLECTIVES`: device, stream and launch are null, event and op are the range.
    """
    events = events_named(trace, pl.col("name").str.contains(ON_THE_HOST))
    events = events[events_in_steps(trace, scope or Scope(), events)]
    if not len(events):
        return pl.DataFrame(schema=COLLECTIVES)
    known = trace.columns("name_id", "start_ns", "dur_ns")[events]
    ranges = known.hstack(trace.name_rows["name", "group"][known["name_id"]]).with_columns(
        trace.derived_of(pl.Series(events), "step").to_series(), event=pl.Series(events)
    )
    ranges = ranges.sort("start_ns", "event")
    event = ranges["event"]
    unknown = pl.lit(None, pl.Int64)
    rows = ranges.select(
        "event",
        "start_ns",
        "dur_ns",
        "name",
        "step",
        device=unknown,
        stream=unknown,
        launch=unknown,
        op=event,
        classified="group",
        text=pl.lit(None, pl.String),
        operator_text=argument_texts(trace, event),
        operator_name="name",
    )
    return _with_sizes(_interpreted(trace, rows))


def _around(trace: Trace, operators: pl.Series, work: pl.Series) -> pl.DataFrame:
    """What the file says about pieces of GPU work and the operators that launched them.

    Returns:
        own_text (the work's arguments), text (arguments around the operator that name a
        collective), operator_text and operator_name.
    """
    events = trace.columns("name_id").to_series()
    names = trace.name_rows["name"]
    parent = parents_of_events(trace)
    distinct = operators.drop_nulls().unique().sort()
    own_name = names[events[distinct]]
    levels = [distinct.to_numpy().astype(np.int64)]
    for _ in range(_LEVELS - 1):
        at = levels[-1]
        levels.append(np.where(at >= 0, parent[at], -1))
    # All levels are read at once, and what several operators lie in but once.
    work_events = work.to_numpy()
    is_asked = np.zeros(len(events), np.bool_)
    for asked in (*levels, work_events):
        is_asked[asked[asked >= 0]] = True
    read = np.flatnonzero(is_asked)
    # Those that launched work have operands at hand, which name older collectives' sizes.
    texts = argument_texts(trace, pl.Series(read))
    names_it = filled(texts.str.contains('"Collective name"', literal=True), value=False)
    operator_text = texts[np.searchsorted(read, levels[0])]
    best = np.full(len(distinct), -1, np.int64)
    if names_it.any():
        for at in levels:
            row = np.searchsorted(read, np.maximum(at, 0))
            finds = (best < 0) & (at >= 0)
            finds[finds] = names_it[row[finds]]
            best[finds] = row[finds]
    known = pl.Series(best >= 0)
    text = pl.select(pl.when(known).then(texts[np.maximum(best, 0)])).to_series()
    table = pl.DataFrame(
        {"op": distinct, "text": text, "operator_text": operator_text, "operator_name": own_name},
        schema_overrides={"op": pl.Int64},
    )
    own_text = texts[np.searchsorted(read, work_events)].alias("own_text")
    return (
        pl.DataFrame([operators.alias("op"), own_text])
        .join(table, on="op", how="left", maintain_order="left")
        .drop("op")
    )


def _interpreted(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    def number(key: str) -> pl.Expr:
        pattern = _NUMBER.format(key)
        return pl.col("text").str.extract(pattern).cast(pl.Int64, strict=False)

    def text(key: str) -> pl.Expr:
        return pl.col("text").str.extract(_TEXT.format(key))

    # Words and names repeat: what they say is found once for each pair of them.
    rows = rows.with_columns(word=pl.col("text").str.extract(_WORD))
    pair = ["word", "operator_name"]
    by_word, by_operator = (
        collective_group(pl.col("word")),
        collective_group(pl.col("operator_name")),
    )
    is_called = pl.col("operator_name").str.contains(
        r"(?i)^(nccl|rccl|c10d|_c10d_functional|gloo|mpi|ucc):"
    )
    said = (
        pl.when(by_word != "collective")
        .then(by_word)
        .when(is_called & (by_operator != "collective"))
        .then(by_operator)
    )
    pairs = rows[pair].unique().with_columns(said=said)
    rows = rows.join(pairs, on=pair, how="left", nulls_equal=True, maintain_order="left")
    size_of_job = world_size(trace)
    rows = rows.with_columns(
        pl.coalesce("said", "classified").alias("kind"),
        number("In msg nelems").alias("in_elements"),
        number("Out msg nelems").alias("out_elements"),
        number("Group size").alias("group_size"),
        text("dtype").alias("dtype"),
        text("Process Group Name").alias("group"),
        text("Process Group Ranks").alias("group_ranks"),
        number("Seq").alias("sequence"),
        number("Dst Rank").alias("to_rank"),
        number("Src Rank").alias("from_rank"),
    )
    rows = _sizes_from_shapes(rows)
    assumed = pl.col("group_size").is_null() & pl.lit(size_of_job is not None)
    return rows.with_columns(
        group_size=pl.coalesce("group_size", pl.lit(size_of_job, pl.Int64)),
        group_size_is_assumed=assumed,
    ).drop("text", "operator_text")


def _with_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Some of `_interpreted`, with the columns of `COLLECTIVES`."""
    item = pl.col("dtype").replace_strict(
        {name: element_bytes(name) for name in rows["dtype"].drop_nulls().unique().to_list()},
        default=None,
        return_dtype=pl.Int64,
    )
    # Several kernels of one operator share its message: how is not known.
    is_shared = (pl.len().over("op") > 1) & pl.col("op").is_not_null()
    rows = rows.with_columns(
        in_bytes=pl.when(~is_shared).then(pl.col("in_elements") * item),
        out_bytes=pl.when(~is_shared).then(pl.col("out_elements") * item),
    )
    # Shapes alone show the input only: what is gathered is the group's inputs together.
    gathers = pl.col("kind") == "all_gather"
    message = (
        pl.when(gathers & pl.col("out_bytes").is_null())
        .then(pl.col("in_bytes") * pl.col("group_size"))
        .otherwise(pl.max_horizontal("in_bytes", "out_bytes"))
    )
    return rows.with_columns(message_bytes=message, kernel=pl.col("name")).select(
        pl.col(column).cast(dtype) for column, dtype in COLLECTIVES.items()
    )


def _sizes_from_shapes(rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in size and type from the shapes of `nccl:…` operators, where nothing else has them."""
    lacking = pl.col("in_elements").is_null() & pl.col("operator_name").str.contains(
        r"^(nccl|gloo|mpi|ucc):"
    )
    texts = rows.filter(lacking).select("operator_text").drop_nulls().unique()
    if texts.is_empty():
        return rows
    # Texts differ in their identifiers; shapes and types repeat, and are parsed once each.
    source = pl.col("operator_text")
    shaped = compact_operands(texts.select(source, *operand_columns(source)))
    schema = {"shape_elements": pl.Int64, "shape_type": pl.String}
    sizes = of_each_way(shaped.select("dims", "types"), operand_size, schema)
    by_text = shaped.select(source).hstack(sizes)
    return (
        rows.with_columns(source=pl.when(lacking).then(pl.col("operator_text")))
        .join(
            by_text, left_on="source", right_on="operator_text", how="left", maintain_order="left"
        )
        .with_columns(
            in_elements=pl.coalesce("in_elements", "shape_elements"),
            dtype=pl.coalesce("dtype", "shape_type"),
        )
        .drop("source", "shape_elements", "shape_type")
    )


def operand_size(dims: str | None, types: str | None) -> tuple[int, str] | None:
    """Elements and type of the tensors that an operator was given; None: not recorded."""
    call = parse_call("", dims, types, None)
    if call is None or not call.dims:
        return None
    shapes = [call.shape(index) for index in range(len(call.dims))]
    tensors = [(index, shape) for index, shape in enumerate(shapes) if shape is not None]
    kinds = {call.types[index] for index, _ in tensors if index < len(call.types)}
    if not tensors or len(kinds) != 1:
        return None
    elements = sum(prod(shape) for _, shape in tensors)
    return (elements, kinds.pop()) if elements < _MOST_ELEMENTS else None


def with_peers(collectives: pl.DataFrame) -> pl.DataFrame:
    """Collectives with what others like them take.

    Peers have kind, size, type and process group in common. Where the size is not known, they are
    those at the same place among the collectives of their kind and stream in a step, provided that
    all steps have the same number of them.

    Args:
        collectives: Columns of `COLLECTIVES`, in order of start.

    Returns:
        The rows that have peers to compare with, with further columns `peers` (how many they are,
        the row itself included), `median_ns` and `least_ns` (of their durations).
    """
    known = pl.col("message_bytes").is_not_null()
    place = pl.int_range(pl.len()).over("step", "device", "stream", "kind")
    counts = collectives.group_by("step", "kind").len()
    has_places = counts["kind", "len"].n_unique() == counts["kind"].n_unique()
    keyed = collectives.with_columns(
        place=pl.when(~known & has_places).then(place),
        kernel_name=pl.when(~known).then("kernel"),
    ).filter(known | has_places)
    peers = [*PEERS, "place", "kernel_name"]
    return keyed.with_columns(
        peers=pl.len().over(peers),
        median_ns=pl.col("dur_ns").median().over(peers),
        least_ns=pl.col("dur_ns").min().over(peers),
    ).drop("place", "kernel_name")


def world_size(trace: Trace) -> int | None:
    """Number of ranks of the job, as the file states it; None: it does not, or too many."""
    about = trace.header.get("distributedInfo")
    size = about.get("world_size") if isinstance(about, dict) else None
    return size if isinstance(size, int) and 0 < size < _TOO_MANY_RANKS else None


_TWICE = ("all_reduce",)
_ONCE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_PLAIN = ("broadcast", "reduce", "send_recv")


def bus_factor() -> pl.Expr:
    """What bus bandwidth is of algorithm bandwidth, from `kind` and `group_size`.

    Null where the group is not known, or the kind has no bus bandwidth.
    """
    kind, ranks = pl.col("kind"), pl.col("group_size")
    share = (ranks - 1) / ranks
    return (
        pl.when(ranks.is_null() | (ranks < 1))
        .then(None)
        .when(kind.is_in(_TWICE))
        .then(2 * share)
        .when(kind.is_in(_ONCE))
        .then(share)
        .when(kind.is_in(_PLAIN))
        .then(1.0)
    )


def algorithm_bandwidth(duration_ns: pl.Expr) -> pl.Expr:
    """Of `message_bytes` in some time, in GB/s; null where the time or the size is not known."""
    # Bytes per nanosecond are GB/s.
    return pl.when(duration_ns > 0).then(pl.col("message_bytes") / duration_ns)
