"""Tables of a trace: columns, types and units.

All times are int64 nanoseconds on the clock of the rank that wrote the file. Sizes are int64 bytes.
A null means that the file has no value. Tables are Polars frames; in the store, each is a directory
of Parquet files with the table's name.
"""

from __future__ import annotations

from enum import Enum

import polars as pl


class Category(str, Enum):
    """What kind of event was recorded. The same for every vendor and version of the format."""

    CPU_OP = "cpu_op"
    USER_ANNOTATION = "user_annotation"
    PYTHON_FUNCTION = "python_function"
    RUNTIME = "runtime"
    """Calls to the device runtime (cudaLaunchKernel, hipMemcpyAsync, …), including XPU and MTIA."""
    DRIVER = "driver"
    KERNEL = "kernel"
    GPU_MEMCPY = "gpu_memcpy"
    GPU_MEMSET = "gpu_memset"
    GPU_USER_ANNOTATION = "gpu_user_annotation"
    DEVICE_SYNC = "device_sync"
    """Device-side synchronisation records (`cuda_sync`): waiting, never GPU work."""
    OVERHEAD = "overhead"
    """Time spent in the profiler itself."""
    COLLECTIVE = "collective_comm"
    SPAN = "span"
    """`Trace` spans: the extent of the recorded window."""
    OTHER = "other"
    """Anything else. `names.raw_category` has the word used in the file."""


CATEGORY = pl.Enum([member.value for member in Category])


class Kind(str, Enum):
    """What a name stands for, as decided by the classifier (`classify.py`)."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    NONE = "none"
    """Not GPU work: host events, annotations, synchronisation records, overhead."""


KIND = pl.Enum([member.value for member in Kind])


class StepSource(str, Enum):
    """What the steps of a trace were found by."""

    ANNOTATION = "annotation"
    """`ProfilerStep#N`, or an annotation such as `iteration 12`."""
    OPTIMIZER = "optimizer"
    RANGE = "range"
    LOADER = "loader"
    MODULE = "module"


EVENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,  # row number in file order, from 0; identifies the event
    "name_id": pl.UInt32,  # -> names
    "category": CATEGORY,
    "lane_id": pl.UInt32,  # -> lanes
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,  # >= 0
    "correlation": pl.UInt64,  # links a runtime call to its GPU work
    "external_id": pl.UInt64,  # links an operator to its GPU work
    "device": pl.Int32,  # the device of GPU work; null on the host
    "stream": pl.Int64,  # the stream of GPU work; null on the host
    "bytes": pl.Int64,  # size of a copy or fill; null for anything else
}
"""One row per event with a duration (`ph` X, or a B with its E)."""

ARGS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "args": pl.String,  # JSON text exactly as in the file; null: no arguments
}
"""Row for row alongside `events`. A separate table, since most questions never read it."""

NAMES: dict[str, pl.DataType | type[pl.DataType]] = {
    "name_id": pl.UInt32,  # row number, from 0
    "name": pl.String,
    "raw_category": pl.String,  # as in the file, e.g. "cuda_runtime", "Operator"
    "category": CATEGORY,
    "kind": KIND,  # by name; an event's own metadata overrides it in `derived.kind`
    "group": pl.String,  # finer than kind: "gemm", "attention", "all_reduce", …
}
"""One row per distinct `name`, `raw_category` and `category`."""

LANES: dict[str, pl.DataType | type[pl.DataType]] = {
    "lane_id": pl.UInt32,  # row number, from 0
    "pid": pl.String,  # as in the file: a process number, a device number, "Spans", …
    "tid": pl.String,  # as in the file: a thread number, a stream number, a word
    "is_gpu": pl.Boolean,  # a GPU stream rather than a CPU thread
    "device": pl.Int32,  # null on the host
    "stream": pl.Int64,  # null on the host
    "process_name": pl.String,
    "thread_name": pl.String,
}
"""One row per CPU thread or GPU stream."""

INSTANTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name_id": pl.UInt32,
    "lane_id": pl.UInt32,
    "time_ns": pl.Int64,
    "args": pl.String,
}
"""Events without a duration (`ph` i, I, R), including `[memory]` events."""

COUNTERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name_id": pl.UInt32,
    "lane_id": pl.UInt32,
    "time_ns": pl.Int64,
    "args": pl.String,  # series name -> value
}
"""Sampled values (`ph` C)."""

FLOWS: dict[str, pl.DataType | type[pl.DataType]] = {
    "flow_id": pl.UInt64,
    "name_id": pl.UInt32,  # "ac2g", "fwdbwd"
    "lane_id": pl.UInt32,
    "time_ns": pl.Int64,
    "phase": pl.String,  # "s" start, "t" step, "f" end
    "args": pl.String,  # nearly always null
}
"""Ends of the arrows between events (`ph` s, t, f)."""

METADATA: dict[str, pl.DataType | type[pl.DataType]] = {
    "key": pl.String,  # a top-level key
    "value": pl.String,  # its JSON text
}
"""Everything outside the list of events: schema version, devices, distributed info, …"""

PROBLEMS: dict[str, pl.DataType | type[pl.DataType]] = {
    "problem": pl.String,  # a short, stable identifier, e.g. "truncated"
    "count": pl.Int64,
    "place": pl.String,  # first occurrence, e.g. "byte 1048577"
    "message": pl.String,  # what happened and how it was handled
}
"""What was repaired or skipped, or looks wrong."""

TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "events": EVENTS,
    "args": ARGS,
    "names": NAMES,
    "lanes": LANES,
    "instants": INSTANTS,
    "counters": COUNTERS,
    "flows": FLOWS,
    "metadata": METADATA,
    "problems": PROBLEMS,
}
"""Tables that a reader produces (`tables.py`), by name."""

DERIVED: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "step": pl.Int32,  # the step that the event belongs to
    "parent": pl.Int64,  # the enclosing event on the same lane; null for a root
    "depth": pl.Int32,  # 0 for a root
    "self_ns": pl.Int64,  # duration minus the time covered by its children
    "launch": pl.Int64,  # GPU work: the runtime or driver call that launched it
    "op": pl.Int64,  # GPU work and runtime calls: the innermost operator around the launch
    "forward": pl.Int64,  # backward operators: the forward operator they differentiate
    "kind": KIND,  # by metadata, then by name; "none" except for GPU work
    "group": pl.String,  # as `names.group`, but by metadata first
}
"""Row for row alongside `events`. Computed on first use."""

HOST_STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int32,  # number, as annotated; from 0 if no step is annotated
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,  # start of the next step; for the last, the end of its annotation
    "annotation_end_ns": pl.Int64,  # end of the event that stands for it
    "lane_id": pl.UInt32,  # the main thread
    "event": pl.Int64,  # the event that stands for it: the annotation, or what it was found by
    "source": pl.String,  # a `StepSource`, the same in all rows
    "is_empty": pl.Boolean,  # no operator started and nothing was launched in it
    "is_complete": pl.Boolean,  # not empty, and its end is in the file
}
"""Steps on the host clock, in chronological order, without gaps or overlaps."""

DEVICE_STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "step": pl.Int32,
    "start_ns": pl.Int64,  # end of the work of earlier steps; first: start of the host step
    "end_ns": pl.Int64,  # end of the work launched up to this step
    "is_linked": pl.Boolean,  # false: no work of the device is linked; uses the host steps
    "is_start_known": pl.Boolean,  # false: work that was not recorded may have gone on into it
}
"""Steps on each device's clock, without gaps or overlaps."""

OVERRUNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,  # -> events, whose dur_ns is what the file says
    "dur_ns": pl.Int64,  # how long it can have lasted at most
}
"""GPU work whose recorded end is impossible (`derive/overruns.py`)."""

DERIVED_TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "derived": DERIVED,
    "host_steps": HOST_STEPS,
    "device_steps": DEVICE_STEPS,
    "overruns": OVERRUNS,
}
"""Tables that are derived from them (`derive/`), by name."""
