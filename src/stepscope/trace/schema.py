"""Every table of a trace: its columns, their types and units. The one place for names.

All times are int64 nanoseconds on the one clock of the rank that wrote the file. Sizes are int64
bytes. A null means that the file did not say. Tables are Polars frames; in the store each is a
directory of Parquet files of the same name.
"""

from __future__ import annotations

from enum import Enum

import polars as pl


class Category(str, Enum):
    """What recorded an event, the same words for every vendor and for every age of the format."""

    CPU_OP = "cpu_op"
    USER_ANNOTATION = "user_annotation"
    PYTHON_FUNCTION = "python_function"
    RUNTIME = "runtime"
    """Calls of the device runtime (cudaLaunchKernel, hipMemcpyAsync, …), XPU and MTIA alike."""
    DRIVER = "driver"
    KERNEL = "kernel"
    GPU_MEMCPY = "gpu_memcpy"
    GPU_MEMSET = "gpu_memset"
    GPU_USER_ANNOTATION = "gpu_user_annotation"
    DEVICE_SYNC = "device_sync"
    """Synchronisation records on the device's side (`cuda_sync`): waiting, never GPU work."""
    OVERHEAD = "overhead"
    """Time that the profiler itself took."""
    COLLECTIVE = "collective_comm"
    SPAN = "span"
    """The `Trace` spans: the window's extent as the recorder noted it."""
    OTHER = "other"
    """Anything else; `names.raw_category` has the word that the file used."""


CATEGORY = pl.Enum([member.value for member in Category])


class Kind(str, Enum):
    """What a name stands for, as the one classifier (`classify.py`) decides it."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    NONE = "none"
    """No GPU work: host events, annotations, synchronisation records, overhead."""


KIND = pl.Enum([member.value for member in Kind])

EVENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,  # row number in file order, from 0; the identity of an event
    "name_id": pl.UInt32,  # -> names
    "category": CATEGORY,
    "lane_id": pl.UInt32,  # -> lanes
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,  # >= 0
    "correlation": pl.UInt64,  # joins a runtime call and its GPU work; null: none
    "external_id": pl.UInt64,  # joins an operator and its GPU work; null: none
    "device": pl.Int32,  # the GPU of GPU work; null on the host
    "stream": pl.Int64,  # the stream of GPU work; null on the host
    "bytes": pl.Int64,  # size of a copy or fill; null elsewhere
}
"""One row per duration (`ph` X, or a B with its E)."""

ARGS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "args": pl.String,  # the JSON object's text exactly as the file has it; null: no arguments
}
"""Row for row beside `events`; a table of its own because most questions never read it."""

NAMES: dict[str, pl.DataType | type[pl.DataType]] = {
    "name_id": pl.UInt32,  # row number, from 0
    "name": pl.String,
    "raw_category": pl.String,  # the file's own word, e.g. "cuda_runtime", "Operator"
    "category": CATEGORY,
    "kind": KIND,  # by name alone; metadata of single events overrides it in `derived.kind`
    "group": pl.String,  # finer: "gemm", "attention", "all_reduce", "host_to_device", …
}
"""One row per distinct pair of name and raw category."""

LANES: dict[str, pl.DataType | type[pl.DataType]] = {
    "lane_id": pl.UInt32,  # row number, from 0
    "pid": pl.String,  # as in the file: a process number, a device number, "Spans", …
    "tid": pl.String,  # as in the file: a thread number, a stream number, a word
    "is_gpu": pl.Boolean,  # a GPU stream, not a CPU thread
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
"""Moments without duration (`ph` i, I, R), `[memory]` events among them."""

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
    "args": pl.String,  # null nearly always: recorders write none
}
"""Ends of arrows between events (`ph` s, t, f)."""

METADATA: dict[str, pl.DataType | type[pl.DataType]] = {
    "key": pl.String,  # a top-level key of the file
    "value": pl.String,  # its JSON text
}
"""Everything in the file outside the events: schema version, devices, distributed info, …"""

PROBLEMS: dict[str, pl.DataType | type[pl.DataType]] = {
    "problem": pl.String,  # a short stable word, e.g. "truncated", "invalid_utf8"
    "count": pl.Int64,
    "place": pl.String,  # the first place, e.g. "byte 1048577"
    "message": pl.String,  # what happened and what was done about it
}
"""What was repaired, skipped or looks wrong."""

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
"""What a reader hands over (`tables.py`), by name."""

DERIVED: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "step": pl.Int32,  # number of the step that the event belongs to; null: none
    "parent": pl.Int64,  # the event that encloses it on its lane; null: a root
    "depth": pl.Int32,  # 0 for a root
    "self_ns": pl.Int64,  # duration less the union of its children's
    "launch": pl.Int64,  # GPU work: the runtime or driver call that launched it; null: not linked
    "op": pl.Int64,  # GPU work and runtime calls: the innermost operator around the launch
    "forward": pl.Int64,  # a backward operator: the forward operator whose gradient it computes
    "kind": KIND,  # of GPU work: by metadata, then by name; "none" for everything else
    "group": pl.String,  # as names.group, with metadata first
}
"""Row for row beside `events`; computed on first use."""

HOST_STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int32,  # its number, as annotated
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,  # start of the next step; of the last step the end of its own annotation
    "annotation_end_ns": pl.Int64,  # where its own annotation ends
    "lane_id": pl.UInt32,  # the thread that carries the annotations
    "event": pl.Int64,  # the annotation
    "is_empty": pl.Boolean,  # no operator began and nothing was launched in it
    "is_complete": pl.Boolean,  # neither empty nor the last step of a file that was cut off
}
"""Steps on the host's clock, in order of time; they divide it without gaps or overlaps."""

DEVICE_STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "step": pl.Int32,
    "start_ns": pl.Int64,  # when the work of earlier steps has ended; first: start of the host step
    "end_ns": pl.Int64,  # when the work launched up to this step has ended
    "is_linked": pl.Boolean,  # false: no GPU work of the device has a launch; host steps stand in
}
"""Steps on each device's clock; they divide it without gaps or overlaps."""

DERIVED_TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "derived": DERIVED,
    "host_steps": HOST_STEPS,
    "device_steps": DEVICE_STEPS,
}
"""What follows from the tables (`derive/`), by name."""
