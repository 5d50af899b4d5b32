"""The records of an Nsight Systems export: one frame per kind, all with the same columns."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from stepscope.trace.formats.nsys.sqlite_tables import SqliteTables
from stepscope.trace.schema import CATEGORY, Category

COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,
    "raw_category": pl.String,
    "category": CATEGORY,
    "process": pl.Int64,  # for GPU work, the process that launched it
    "thread": pl.Int64,
    "device": pl.Int64,  # as `stream`: only for GPU lanes
    "stream": pl.Int64,
    "lane_kind": pl.String,  # distinguishes lanes of the same thread or stream; may be empty
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "correlation": pl.UInt64,
    "external_id": pl.UInt64,
    "bytes": pl.Int64,
    "args": pl.String,
}

_RANGE_ON_THREAD, _RANGE_ACROSS_THREADS, _MARK = 59, 60, 34
_TORCH_SUFFIX = r",\s*(?:stashed )?(?:seq|op_id|sizes|input_op_ids)\s*=.*$"
_VERSION_SUFFIX = r"_(?:v\d{4,}|ptsz|ptds)(?:_(?:v\d{4,}|ptsz|ptds))*$"

_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY_KINDS = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed",
}  # fmt: skip
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}

_OTHER_HOST_TABLES = {
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (Category.OVERHEAD, "overhead"),
    "PROFILER_OVERHEAD": (Category.OVERHEAD, "overhead"),
    "CUDNN_EVENTS": (Category.OTHER, "cudnn"),
    "CUBLAS_EVENTS": (Category.OTHER, "cublas"),
    "OSRT_API": (Category.OTHER, "os_runtime"),
    "MPI_COLLECTIVES_EVENTS": (Category.OTHER, "mpi"),
    "MPI_P2P_EVENTS": (Category.OTHER, "mpi"),
    "MPI_OTHER_EVENTS": (Category.OTHER, "mpi"),
}


class Records:
    """A database that is being read, with its strings and the problems found so far."""

    def __init__(self, database: SqliteTables) -> None:
        self.database = database
        self.problems: list[tuple[str, int, str | None, str]] = []
        self.read_tables: set[str] = set()
        self.unnamed = 0

    def read(
        self, table: str, integers: tuple[str, ...], texts: tuple[str, ...] = ()
    ) -> pl.DataFrame:
        """Reads columns of a table, with what they say in `COLUMNS`, and marks it as read."""
        self.read_tables.add(table)
        return self.database.read(table, integers, texts).with_columns(_common(integers))

    def note(self, problem: str, count: int, message: str) -> None:
        """Records a problem, if its count is not 0."""
        if count:
            self.problems.append((problem, count, None, message))

    @cached_property
    def strings(self) -> pl.DataFrame:
        """All strings: `id` and `value`."""
        return (
            self.read("StringIds", ("id",), ("value",)).drop_nulls("id").unique("id", keep="first")
        )

    def with_text(self, frame: pl.DataFrame, column: str, text: str) -> pl.DataFrame:
        """Adds a column with the strings for a column of ids; null if there is none."""
        return frame.join(
            self.strings.rename({"id": column, "value": text}),
            on=column,
            how="left",
            maintain_order="left",
        )

    def shaped(self, frame: pl.DataFrame, category: Category, raw_category: str) -> pl.DataFrame:
        """Returns all of `COLUMNS`, with nulls for those missing from the frame."""
        if "category" not in frame.columns:
            frame = frame.with_columns(pl.lit(category.value).alias("category"))
        if "device" in frame.columns:
            is_odd = ~pl.col("device").is_between(-(2**31), 2**31 - 1)
            odd = int(frame.select(is_odd.sum()).item())
            self.note("odd_device", odd, "left out device numbers that no device has")
            frame = frame.with_columns(device=pl.when(~is_odd).then("device"))
        unnamed = frame["name"].null_count()
        self.unnamed += unnamed
        defaults = {"raw_category": pl.lit(raw_category), "lane_kind": pl.lit("")}
        return frame.with_columns(pl.col("name").fill_null("(name missing)")).select(
            (
                pl.col(column)
                if column in frame.columns
                else defaults.get(column, pl.lit(None)).alias(column)
            ).cast(dtype)
            for column, dtype in COLUMNS.items()
        )

    def process_names(self) -> pl.DataFrame:
        """Names of processes: `process` and `process_name`."""
        rows = self.read("PROCESSES", ("globalPid", "pid"), ("name",))
        return rows.select(
            pl.coalesce("pid", "process").alias("process"),
            pl.col("name").alias("process_name"),
        ).unique("process", keep="last", maintain_order=True)

    def thread_names(self) -> pl.DataFrame:
        """Names of threads: `process`, `thread` and `thread_name`."""
        rows = self.with_text(
            self.read("ThreadNames", ("nameId", "globalTid")), "nameId", "thread_name"
        )
        return rows.select(
            "process",
            "thread",
            "thread_name",
        ).unique(["process", "thread"], keep="last", maintain_order=True)


def _common(given: tuple[str, ...]) -> list[pl.Expr]:
    """Those of `COLUMNS` that tables of all kinds have alike, from the columns of one."""
    owner = "globalTid" if "globalTid" in given else "globalPid"
    process, correlation = pl.col(owner) // 0x1000000 % 0x1000000, pl.col("correlationId")
    unique = pl.when(correlation > 0).then(process * 2**32 + correlation % 2**32)
    known = (
        (owner, process.alias("process")),
        ("globalTid", (pl.col("globalTid") % 0x1000000).alias("thread")),
        ("deviceId", pl.col("deviceId").alias("device")),
        ("streamId", pl.col("streamId").alias("stream")),
        ("start", pl.col("start").alias("start_ns")),
        ("timestamp", pl.col("timestamp").alias("start_ns")),
        ("end", pl.col("end").alias("end_ns")),
        ("correlationId", unique.cast(pl.UInt64).alias("correlation")),
    )
    return [value for column, value in known if column in given]


def _json(frame: pl.DataFrame, **columns: pl.Expr) -> pl.Series:
    return frame.select(
        pl.struct(value.alias(key) for key, value in columns.items()).struct.json_encode()
    ).to_series()


def nvtx_ranges(records: Records) -> pl.DataFrame:
    """NVTX ranges, within a thread or across threads."""
    frame = _nvtx(records).filter(
        pl.col("eventType").is_in([_RANGE_ON_THREAD, _RANGE_ACROSS_THREADS])
    )
    text = pl.col("text")
    frame = frame.with_columns(
        text.str.replace(_TORCH_SUFFIX, "").alias("name"),
        text.str.extract(r",\s*(?:stashed )?seq\s*=\s*(\d{1,18})").cast(pl.Int64).alias("seq"),
        text.str.extract(r",\s*op_id\s*=\s*(\d{1,18})").cast(pl.Int64).alias("op_id"),
    )
    is_operator = pl.col("name").str.contains(r"^[\w.]+::\w") | pl.col("seq").is_not_null()
    frame = frame.with_columns(
        pl.when(is_operator)
        .then(pl.lit(Category.CPU_OP.value))
        .otherwise(pl.lit(Category.USER_ANNOTATION.value))
        .alias("category"),
        # Ranges across threads do not nest with the events of their thread.
        pl.when(pl.col("eventType") == _RANGE_ACROSS_THREADS)
        .then(pl.lit("ranges"))
        .otherwise(pl.lit(""))
        .alias("lane_kind"),
    )
    numbered = {
        "Sequence number": pl.col("seq"),
        "op_id": pl.col("op_id"),
        "domain": pl.col("domainId"),
    }
    frame = frame.with_columns(_json(frame, **numbered).alias("args"))
    return records.shaped(frame, Category.USER_ANNOTATION, "nvtx")


def marks(records: Records) -> pl.DataFrame:
    """NVTX marks, as instants."""
    frame = _nvtx(records).filter(pl.col("eventType") == _MARK)
    frame = frame.with_columns(pl.col("text").alias("name"))
    return records.shaped(frame.drop_nulls("start_ns"), Category.OTHER, "nvtx_mark")


def _nvtx(records: Records) -> pl.DataFrame:
    frame = records.read(
        "NVTX_EVENTS",
        ("start", "end", "eventType", "textId", "globalTid", "domainId"),
        ("text",),
    )
    return records.with_text(frame, "textId", "registered").with_columns(
        pl.coalesce("text", "registered").alias("text")
    )


def cuda_calls(records: Records) -> pl.DataFrame:
    """Calls to the CUDA runtime and driver."""
    frame = records.read(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"),
    )
    frame = records.with_text(frame, "nameId", "name").with_columns(
        pl.col("name").str.replace(_VERSION_SUFFIX, "")
    )
    is_driver = pl.col("name").str.contains("^cu[A-Z]").fill_null(value=False)
    frame = frame.with_columns(
        pl.when(is_driver)
        .then(pl.lit(Category.DRIVER.value))
        .otherwise(pl.lit(Category.RUNTIME.value))
        .alias("category"),
        pl.when(is_driver)
        .then(pl.lit("cuda_driver"))
        .otherwise(pl.lit("cuda_runtime"))
        .alias("raw_category"),
        _json(
            frame, correlation=pl.col("correlationId"), **{"return value": pl.col("returnValue")}
        ).alias("args"),
    )
    return records.shaped(frame, Category.RUNTIME, "cuda_runtime")


def other_host_events(records: Records) -> list[pl.DataFrame]:
    """Calls to other libraries, and the overhead of the profiler."""
    parts = []
    for table, (category, raw_category) in _OTHER_HOST_TABLES.items():
        frame = records.read(table, ("start", "end", "globalTid", "nameId"))
        frame = records.with_text(frame, "nameId", "name").with_columns(
            # Overhead gets separate lanes.
            pl.lit("overhead" if category is Category.OVERHEAD else "").alias("lane_kind"),
        )
        parts.append(records.shaped(frame, category, raw_category))
    return parts


_ON_DEVICE = ("start", "end", "deviceId", "streamId", "contextId", "correlationId", "globalPid")


def _device_args() -> dict[str, pl.Expr]:
    return {
        "device": pl.col("deviceId"),
        "context": pl.col("contextId"),
        "stream": pl.col("streamId"),
        "correlation": pl.col("correlationId"),
    }


def gpu_work(records: Records) -> list[pl.DataFrame]:
    """Kernels, whole graphs, copies and fills, with arguments named as in Kineto."""
    return [_kernels(records), _graphs(records), _copies(records), _fills(records)]


def _kernels(records: Records) -> pl.DataFrame:
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    memory = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId")
    names = ("demangledName", "shortName", "mangledName")
    frame = records.read("CUPTI_ACTIVITY_KIND_KERNEL", (*_ON_DEVICE, *sizes, *memory, *names))
    for name in names:
        frame = records.with_text(frame, name, f"{name} text")
    frame = frame.with_columns(pl.coalesce(f"{name} text" for name in names).alias("name"))
    shared = pl.col("staticSharedMemory").fill_null(0) + pl.col("dynamicSharedMemory").fill_null(0)
    args = _json(
        frame,
        **_device_args(),
        grid=pl.concat_list("gridX", "gridY", "gridZ"),
        block=pl.concat_list("blockX", "blockY", "blockZ"),
        **{
            "registers per thread": pl.col("registersPerThread"),
            "shared memory": shared,
            "graph node id": pl.col("graphNodeId"),
        },
    )
    return records.shaped(frame.with_columns(args.alias("args")), Category.KERNEL, "kernel")


def _graphs(records: Records) -> pl.DataFrame:
    """Whole graphs, if they were not recorded node by node: they keep the GPU busy as well."""
    frame = records.read("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (*_ON_DEVICE, "graphId", "graphExecId"))
    args = _json(frame, **_device_args(), **{"graph id": pl.col("graphId")})
    frame = frame.with_columns(pl.lit("CUDA graph").alias("name"), args.alias("args"))
    return records.shaped(frame, Category.KERNEL, "kernel")


def _copies(records: Records) -> pl.DataFrame:
    kinds = ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "graphNodeId")
    frame = records.read("CUPTI_ACTIVITY_KIND_MEMCPY", (*_ON_DEVICE, *kinds))
    frame = frame.with_columns(
        pl.format(
            "Memcpy {} ({} -> {})",
            _word("copyKind", _COPY_KINDS),
            _word("srcKind", _MEMORY_KINDS),
            _word("dstKind", _MEMORY_KINDS),
        ).alias("name")
    )
    details = {kind: pl.col(kind) for kind in kinds if kind != "copyKind"}
    args = _json(frame, **_device_args(), **details)
    return records.shaped(frame.with_columns(args.alias("args")), Category.GPU_MEMCPY, "gpu_memcpy")


def _fills(records: Records) -> pl.DataFrame:
    frame = records.read(
        "CUPTI_ACTIVITY_KIND_MEMSET", (*_ON_DEVICE, "bytes", "value", "memKind", "graphNodeId")
    )
    args = _json(frame, **_device_args(), bytes=pl.col("bytes"), value=pl.col("value"))
    frame = frame.with_columns(
        pl.format("Memset ({})", _word("memKind", _MEMORY_KINDS)).alias("name"), args.alias("args")
    )
    return records.shaped(frame, Category.GPU_MEMSET, "gpu_memset")


def _word(column: str, words: dict[int, str]) -> pl.Expr:
    return pl.col(column).replace_strict(words, default="Unknown", return_dtype=pl.String)


def synchronisation(records: Records) -> pl.DataFrame:
    """Synchronisation records, on separate lanes for the streams they wait for."""
    frame = records.read(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*_ON_DEVICE, "syncType", "eventId")
    )
    args = _json(frame, **_device_args(), wait_on_cuda_event_id=pl.col("eventId"))
    frame = frame.with_columns(
        _word("syncType", _SYNC_KINDS).alias("name"),
        pl.lit("synchronisation").alias("lane_kind"),
        args.alias("args"),
    )
    return records.shaped(frame, Category.DEVICE_SYNC, "cuda_sync")


def memory_operations(records: Records) -> pl.DataFrame:
    """Allocations and frees of device memory, as instants with signed bytes."""
    frame = records.read(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        ("start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"),
    )
    signed = pl.when(pl.col("memoryOperationType") == 1).then(-pl.col("bytes")).otherwise("bytes")
    args = _json(frame, Bytes=signed, Addr=pl.col("address"), **{"Device Id": pl.col("deviceId")})
    frame = frame.drop("bytes", "device").with_columns(
        pl.lit("[cuda memory]").alias("name"), args.alias("args")
    )
    return records.shaped(frame.drop_nulls("start_ns"), Category.OTHER, "cuda_memory")


def counters(records: Records) -> pl.DataFrame:
    """Sampled GPU metrics."""
    frame = records.read("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"))
    known = records.database.read(
        "TARGET_INFO_GPU_METRICS", ("typeId", "metricId"), ("metricName",)
    ).unique(["typeId", "metricId"], keep="first")
    frame = frame.join(known, on=["typeId", "metricId"], how="left", maintain_order="left")
    frame = frame.with_columns(
        pl.col("metricName").alias("name"),
        # The lowest byte of the type is the GPU number.
        pl.format("GPU {}", pl.col("typeId") % 256).alias("lane_kind"),
        _json(frame, value=pl.col("value")).alias("args"),
    )
    return records.shaped(frame.drop_nulls("start_ns"), Category.OTHER, "gpu_metrics")
