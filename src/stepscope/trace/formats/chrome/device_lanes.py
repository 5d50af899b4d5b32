"""Finds the devices in traces of recorders that give events no category, or words of their own.

Kineto's categories say what each event is. Other recorders say it by the names of processes and
threads, and by arguments:

Ascend (torch_npu, msprof)
    "Ascend Hardware" has a thread per stream; `Task Type` tells kernels from copies and waits.
    "Communication" has the collectives of each group. Its planes, and the copies on streams while
    a collective runs, are the same collectives in more detail. "Overlap Analysis" is derived.
    "CANN" holds the calls of the runtime, "Python" the operators.
XLA (JAX, TensorFlow)
    "/device:TPU:0": the thread "XLA Ops" is the work; the others repeat its time at other levels.
    On GPUs, threads "Stream #N" are the work. Host events with a `step_num` annotate steps.
ROCm's RPD
    "GPU0" has a thread per queue. Calls are named `hip…`.
Gaudi
    "HPU …" has a thread per engine: MME and TPC compute, DMA copies.

Work is linked to its launch by flows, or by a number that both have in their arguments
(`connection_id`, `correlation_id`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import polars as pl

from stepscope.trace.arrays import intervals
from stepscope.trace.categories import GPU_CATEGORIES, is_one_of
from stepscope.trace.formats.event_names import renamed
from stepscope.trace.problems import Problems
from stepscope.trace.schema import CATEGORY, EVENTS, LANES, Category
from stepscope.trace.tables import Tables

_MOST_NAMED = 4


@dataclass(frozen=True)
class _Device:
    """The processes that stand for devices, in the traces of one recorder.

    Attributes:
        process: Pattern of the whole name of the process. Its group, if any, is the device's
            number; without a group, the process is that of the only device.
        work: Pattern of the names of threads that hold the device's work; the others repeat it.
        copies: Pattern of the names of threads that copy.
    """

    process: str
    work: str = ""
    copies: str = r"(?!)"


_NAMED_FIRST = (
    _Device("Ascend Hardware"),
    _Device(
        r"/device:\w+:(\d+)[^\"]*",
        work=r"^XLA Ops$|^Stream #",
        copies=r"\((Memcpy\w*,?)+\)$",
    ),
    _Device(r"GPU ?(\d+)", work=r"(?i)^(hip|hsa|queue|stream)"),
    _Device(r"(?i:HPU|Gaudi)[^\d\"]*(\d*)", work=r"(?i)MME|TPC|DMA|NIC", copies=r"(?i)DMA"),
)
"""Those whose names tell the recorder of a file: what the others are called, events are as well."""
_DEVICES = (
    *_NAMED_FIRST,
    _Device("Communication", work=r"^Group .*Communication"),
    _Device("Overlap Analysis", work=r"(?!)"),
)
_XLA_HOST = "/host:CPU"
_BEGINNING, _PROCESS = (
    "|".join((*(known.process for known in devices), _XLA_HOST))
    for devices in (_NAMED_FIRST, _DEVICES)
)
_NAMED_IN_BEGINNING = re.compile(rf'"name"\s*:\s*"(?:{_BEGINNING})"'.encode())
_LOOKS_LIKE_DEVICE = (
    r"(?i)(^|[^a-z])([ngtxhmid]pu|[mi]lu|dcu|accelerator|gaudi|ascend|neuron|device)([^a-z]|$)"
    r"|^stream ?#?\d+"
)
_NO_DEVICE = r"(?i)^gpu process$|thread|watchdog|python|host"
_TASK_CATEGORIES = {
    "SDMA": Category.GPU_MEMCPY,
    "MEMCPY_ASYNC": Category.GPU_MEMCPY,
    "PCIE_DMA_SQE": Category.GPU_MEMCPY,
    "NOTIFY_WAIT": Category.DEVICE_SYNC,
    "NOTIFY_RECORD": Category.DEVICE_SYNC,
    "EVENT_WAIT": Category.DEVICE_SYNC,
    "EVENT_RECORD": Category.DEVICE_SYNC,
    "MODEL_EXECUTE": Category.GPU_USER_ANNOTATION,
}
"""Ascend's task types that do not compute."""


def names_other_devices(beginning: bytes) -> bool:
    """Whether the beginning of a file names devices as recorders other than Kineto do."""
    return _NAMED_IN_BEGINNING.search(beginning) is not None


def with_device_lanes(tables: Tables) -> Tables:
    """Gives the events of other recorders the categories, devices and streams that they stand for.

    Lanes that look like those of a device and are not understood become a problem
    (`device_lanes_unknown`). Traces of Kineto are returned as they are.
    """
    if tables.lanes["process_name"].str.contains(f"^(?:{_PROCESS})$").any():
        tables = _understood(tables)
        if (tables.lanes["process_name"] == _XLA_HOST).any() and not tables.lanes["is_gpu"].any():
            waits = Problems()
            waits.add("xla_on_cpu", None)
            tables = replace(tables, problems=pl.concat([tables.problems, waits.frame()]))
    known = tables.events.filter(pl.col("category") != Category.OTHER.value)
    unknown = tables.lanes.join(known.select("lane_id"), on="lane_id", how="anti")
    return replace(tables, problems=with_unknown_lanes(tables.problems, unknown))


def with_unknown_lanes(problems: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """Adds `device_lanes_unknown` for lanes that look like a device's and hold no known events."""
    process, thread = (pl.col(name).fill_null("") for name in ("process_name", "thread_name"))
    found = lanes.filter(
        ~pl.col("is_gpu"),
        process.str.contains(_LOOKS_LIKE_DEVICE) | thread.str.contains(_LOOKS_LIKE_DEVICE),
        ~process.str.contains(_NO_DEVICE),
        ~thread.str.contains(_NO_DEVICE),
    )
    if found.is_empty():
        return problems
    names = [
        " / ".join(name for name in pair if name)
        for pair in found.select("process_name", "thread_name").unique(maintain_order=True).rows()
    ]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    added = Problems()
    added.add("device_lanes_unknown", None, len(found), ", ".join(names[:_MOST_NAMED]) + more)
    return pl.concat([problems, added.frame()])


def _understood(tables: Tables) -> Tables:
    lanes = _lanes_of_devices(tables)
    events = _linked(tables, _categorised(tables, lanes))
    names, events = renamed(tables.names, events)
    on_device = lanes.select("lane_id", its_device="device", its_stream="stream")
    marked = tables.lanes.join(
        on_device, on="lane_id", how="left", maintain_order="left"
    ).with_columns(
        is_gpu=pl.col("is_gpu") | pl.col("its_device").is_not_null(),
        device=pl.coalesce("device", "its_device"),
        stream=pl.coalesce("stream", "its_stream"),
    )
    return replace(
        tables,
        events=events.select(pl.col(name).cast(dtype) for name, dtype in EVENTS.items()),
        names=names,
        lanes=marked.select(pl.col(name).cast(dtype) for name, dtype in LANES.items()),
    )


def _lanes_of_devices(tables: Tables) -> pl.DataFrame:
    """The lanes of devices: `lane_id`, `device`, `stream`, `is_work` and `copies`."""
    rows = []
    numbers: dict[str, int] = {}
    for lane, process, thread, tid in (
        tables.lanes.filter(~pl.col("is_gpu"))
        .select("lane_id", "process_name", "thread_name", "tid")
        .drop_nulls("process_name")
        .iter_rows()
    ):
        device, match = next(
            ((one, found) for one in _DEVICES if (found := re.fullmatch(one.process, process))),
            (None, None),
        )
        if device is None or match is None:
            continue
        number = 0
        if match.groups():
            digits = match[1][:9]
            number = int(digits) if digits else numbers.setdefault(process, len(numbers))
        stream = re.search(r"\d{1,9}", thread or "") or re.search(r"\d{1,9}", tid or "")
        rows.append(
            (
                lane,
                number,
                int(stream.group()) if stream else lane,
                re.search(device.work, thread or "") is not None,
                re.search(device.copies, thread or "") is not None,
            )
        )
    return pl.DataFrame(
        rows,
        schema={
            "lane_id": pl.UInt32,
            "device": pl.Int32,
            "stream": pl.Int64,
            "is_work": pl.Boolean,
            "copies": pl.Boolean,
        },
        orient="row",
    )


def _categorised(tables: Tables, lanes: pl.DataFrame) -> pl.DataFrame:
    args = tables.args["args"]
    processes = tables.lanes.select("lane_id", "process_name")
    events = (
        tables.events.with_columns(
            name=tables.names["name"].gather(tables.events["name_id"]),
            task=args.str.extract(r'"Task Type"\s*:\s*"(\w+)"'),
            step=args.str.extract(r'"step_num"\s*:\s*"?(\d{1,9})'),
            number=args.str.extract(r'"(?:connection_id|correlation_id)"\s*:\s*"?(\d{1,18})').cast(
                pl.UInt64
            ),
        )
        .join(processes, on="lane_id", how="left", maintain_order="left")
        .join(
            lanes.rename({"device": "its_device", "stream": "its_stream"}),
            on="lane_id",
            how="left",
            maintain_order="left",
        )
    )
    on_device = pl.col("its_device").is_not_null()
    is_known = pl.col("category") != Category.OTHER.value
    task = pl.col("task").replace_strict(
        {word: category.value for word, category in _TASK_CATEGORIES.items()},
        default=None,
        return_dtype=pl.String,
    )
    of_device = (
        pl.when(~pl.col("is_work"))
        .then(pl.lit(Category.GPU_USER_ANNOTATION.value))
        .when(is_one_of(GPU_CATEGORIES))
        .then(pl.col("category").cast(pl.String))
        .when(pl.col("copies"))
        .then(pl.lit(Category.GPU_MEMCPY.value))
        .otherwise(task.fill_null(Category.KERNEL.value))
    )
    process, name = pl.col("process_name").fill_null(""), pl.col("name").fill_null("")
    of_host = (
        pl.when(pl.col("step").is_not_null() | name.str.contains(r"^ProfilerStep\s*#"))
        .then(pl.lit(Category.USER_ANNOTATION.value))
        .when(is_known)
        .then(pl.col("category").cast(pl.String))
        .when((process == "CANN") | name.str.contains(r"^(hip[A-Z]|hsa_|cu(da)?[A-Z])"))
        .then(pl.lit(Category.RUNTIME.value))
        .when(name.str.contains(r"^\$|\.py\(\d+\): |\.py:\d+"))
        .then(pl.lit(Category.PYTHON_FUNCTION.value))
        .otherwise(pl.lit(Category.CPU_OP.value))
    )
    category = pl.when(on_device).then(of_device).otherwise(of_host)
    found = events.with_columns(
        category=category.cast(CATEGORY),
        device=pl.coalesce("device", "its_device"),
        stream=pl.coalesce("stream", "its_stream"),
        correlation=pl.coalesce("correlation", "number"),
        name=pl.when(pl.col("step").is_not_null() & ~on_device)
        .then(pl.lit("step ") + pl.col("step"))
        .otherwise("name"),
    )
    return _without_parts_of_collectives(found)


def _without_parts_of_collectives(events: pl.DataFrame) -> pl.DataFrame:
    """Takes what streams do for a collective, which has its own lane, as its details.

    If the streams hold the collectives themselves, those of the process "Communication" are the
    ones that repeat.
    """
    is_group = (pl.col("process_name") == "Communication") & pl.col("is_work")
    is_stream = pl.col("process_name") == "Ascend Hardware"
    on_streams = events.filter(is_stream & pl.col("name").str.contains("^hcom_"))
    detail = pl.lit(Category.GPU_USER_ANNOTATION.value).cast(CATEGORY)
    if len(on_streams):
        return events.with_columns(
            category=pl.when(is_group.fill_null(value=False)).then(detail).otherwise("category")
        )
    whole = events.filter(is_group)
    if whole.is_empty():
        return events
    start, end = (whole["start_ns"].to_numpy(), (whole["start_ns"] + whole["dur_ns"]).to_numpy())
    inside = intervals.contains(intervals.merge(start, end), events["start_ns"].to_numpy())
    is_part = is_stream & pl.col("task").is_in(["SDMA", "MEMCPY_ASYNC"]) & pl.Series(inside)
    return events.with_columns(
        category=pl.when(is_part.fill_null(value=False)).then(detail).otherwise("category")
    )


def _linked(tables: Tables, events: pl.DataFrame) -> pl.DataFrame:
    """Gives work and its launch one correlation, and work and its operator one external id.

    Numbers are those of the host's events, so that work of several devices cannot share one.
    """
    is_of_autograd = tables.names["name"].gather(tables.flows["name_id"]) == "fwdbwd"
    flows = tables.flows.filter(~is_of_autograd)
    if flows.is_empty():
        return events
    starts = flows.filter(pl.col("phase") == "s").unique(["flow_id", "name_id"], keep="first")
    ends = flows.filter(pl.col("phase") == "f")
    on_host = pl.col("its_device").is_null()
    pairs = (
        ends.select("flow_id", "name_id", "lane_id", "time_ns")
        .pipe(_event_at, events.filter(~on_host), "work")
        .join(
            starts.select("flow_id", "name_id", "lane_id", "time_ns").pipe(
                _event_at, events.filter(on_host), "call"
            ),
            on=["flow_id", "name_id"],
        )
        .select("work", "call")
        .drop_nulls()
    )
    category = events["category"]
    for column, kinds in (
        ("correlation", (Category.RUNTIME, Category.DRIVER)),
        ("external_id", (Category.CPU_OP,)),
    ):
        is_kind = category[pairs["call"]].is_in([kind.value for kind in kinds])
        found = pairs.filter(is_kind).unique("work", keep="first")
        number = (found["call"] + 1).cast(pl.UInt64)
        both = pl.concat(
            [
                pl.DataFrame({"event": found["work"], "linked": number}),
                pl.DataFrame({"event": found["call"], "linked": number}),
            ]
        ).unique("event")
        events = (
            events.join(both, on="event", how="left", maintain_order="left")
            .with_columns(pl.coalesce("linked", column).alias(column))
            .drop("linked")
        )
    return events


def _event_at(ends: pl.DataFrame, events: pl.DataFrame, name: str) -> pl.DataFrame:
    """Adds the event of each end of a flow: the last to start by then on its lane, if it covers it.

    Returns:
        `flow_id`, `name_id`, and the number of the event under the given name; null for none.
    """
    candidates = events.select(
        "lane_id", "start_ns", "event", end_ns=pl.col("start_ns") + pl.col("dur_ns")
    ).sort("start_ns", "event")
    found = ends.sort("time_ns").join_asof(
        candidates,
        left_on="time_ns",
        right_on="start_ns",
        by="lane_id",
        strategy="backward",
        check_sortedness=False,
    )
    covers = pl.col("end_ns") >= pl.col("time_ns")
    return found.select(
        "flow_id", "name_id", pl.when(covers).then("event").otherwise(None).alias(name)
    )
