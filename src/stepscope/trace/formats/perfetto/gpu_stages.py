"""GPU work that is written as render stages, and counters of GPUs, as columns.

torch's own CUPTI backend writes kernels, copies and fills so in `export_chrome_trace("….pftrace")`
(seen in 2.15): one packet each, with a duration, on a lane called `[07] stream 7`. Arguments
are texts there; they get the names and types that the same profile has as JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.formats.perfetto.annotations import objects_of
from stepscope.trace.formats.perfetto.packets import (
    COMPUTE_ARGUMENTS,
    COMPUTE_KERNELS,
    GPU_SPECIFICATIONS,
    INTERNED,
    NAMES,
    TIME,
    Packets,
    texts_of,
)
from stepscope.trace.formats.perfetto.wire import FIXED64, Fields, read_fields

# Packet
_COUNTER_EVENT, _STAGE_EVENT = 52, 53
# Render stage
_DURATION, _EXTRA, _GPU, _LANE_IID, _STAGE_IID, _NAME, _KERNEL_IID, _NAME_IID, _LAUNCH = (
    2, 6, 11, 13, 14, 17, 19, 20, 21,
)  # fmt: skip
_GRID, _BLOCK, _ARGUMENTS = 1, 2, 3
_ARGUMENT_IID, _ARGUMENT_NAME, _ARGUMENT_SIGNED, _ARGUMENT_UNSIGNED = 1, 2, 3, 4
# Counters
_DESCRIPTORS = 47
_SAMPLES, _DESCRIPTOR_IID = 2, 4

_CATEGORIES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
"""Categories of the same events in torch's JSON, by the name of the stage."""
_KEYS = {
    "device id": "device",
    "context id": "context",
    "stream id": "stream",
    "registers_per_thread": "registers per thread",
    "shared_mem_dynamic": "dynamic shared memory",
    "thread_count": "threads per block",
}
_ALWAYS_TEXT = {"Process Group Name", "Process Group Description", "Process Group Ranks"}
_LANE = re.compile(r"^\[(\d{1,18})\] ")


@dataclass(frozen=True, eq=False)
class GpuStages:
    """What ran on GPUs.

    Attributes:
        slices: time_ns, dur_ns, device, lane (JSON: a number, or its name), name, category, args
            (JSON text, or null).
        counters: time_ns, device, name, value.
        lanes: Names of lanes: device, lane, title.
    """

    slices: pl.DataFrame
    counters: pl.DataFrame
    lanes: pl.DataFrame


def read_gpu_stages(data: npt.NDArray[np.uint8], packets: Packets) -> GpuStages:
    """Read them from the packets of a file."""
    packet, start, end = packets.fields.spans(_STAGE_EVENT)
    fields = read_fields(data, start, end)
    number = len(packet)
    slices = pl.DataFrame(
        {
            "time_ns": packets.fields.last(TIME, len(packets.scope))[packet],
            "dur_ns": fields.last(_DURATION, number),
            "device": fields.last(_GPU, number),
            "scope": packets.scope[packet],
            "lane_iid": fields.last(_LANE_IID, number),
            "stage_iid": fields.last(_STAGE_IID, number),
            "kernel_iid": fields.last(_KERNEL_IID, number),
            "name_iid": fields.last(_NAME_IID, number),
            "name": texts_of(data, fields, _NAME, number),
        }
    ).with_row_index("event")
    slices = packets.with_texts(
        slices,
        lane=GPU_SPECIFICATIONS,
        stage=GPU_SPECIFICATIONS,
        kernel=COMPUTE_KERNELS,
        name=NAMES,
    )
    lanes = slices["lane_text"].unique().drop_nulls().to_list()
    numbers = {name: int(found[1]) for name in lanes if (found := _LANE.match(name))}
    stage = pl.col("stage_text").fill_null("")
    slices = slices.with_columns(
        name=pl.coalesce("name", "name_text", "kernel_text", stage),
        category=stage.replace_strict(_CATEGORIES, default=stage),
        number=pl.col("lane_text").replace_strict(numbers, default=None, return_dtype=pl.Int64),
        title=pl.col("lane_text").str.replace(_LANE.pattern, ""),
    ).with_columns(
        lane=pl.coalesce(
            pl.col("number").cast(pl.String),
            pl.col("lane_text").replace_strict(
                {name: orjson.dumps(name).decode() for name in lanes},
                default=pl.col("lane_iid").cast(pl.String),
                return_dtype=pl.String,
            ),
        )
    )
    slices = slices.join(
        _arguments(data, fields, packets, slices), on="event", how="left", maintain_order="left"
    )
    named = slices.filter(pl.col("title").is_not_null())
    return GpuStages(
        slices.select("time_ns", "dur_ns", "device", "lane", "name", "category", "args"),
        _counters(data, packets),
        named.select("device", "lane", "title").unique(maintain_order=True),
    )


def _arguments(
    data: npt.NDArray[np.uint8], fields: Fields, packets: Packets, slices: pl.DataFrame
) -> pl.DataFrame:
    """The arguments of each slice that has some: event, args."""
    launched = _launches(data, fields, packets, slices["scope"].to_numpy())
    event, start, end = fields.spans(_EXTRA)
    entries = read_fields(data, start, end)
    extra = pl.DataFrame(
        {
            "event": event,
            "key": texts_of(data, entries, 1, len(event)),
            "value": texts_of(data, entries, 2, len(event)),
        }
    ).drop_nulls()
    distinct = extra.select("key", "value").unique()
    typed = distinct.with_columns(
        typed=pl.Series(
            [_typed(key, value) for key, value in distinct.iter_rows()], dtype=pl.String
        )
    )
    extra = extra.join(typed, on=["key", "value"], how="left", maintain_order="left").select(
        "event", "key", value="typed"
    )
    pairs = pl.concat([extra, launched]).with_columns(
        pl.col("event").cast(pl.UInt32), pl.col("key").replace(_KEYS)
    )
    # Work of a CUDA graph can be drawn on a lane of its own; JSON has that lane as the stream.
    on_lane = slices.filter(pl.col("number").is_not_null()).select(
        "event", stream=pl.col("number").cast(pl.String)
    )
    pairs = pairs.join(on_lane, on="event", how="left", maintain_order="left")
    moved = (pl.col("key") == "stream") & (pl.col("value") != pl.col("stream"))
    drawn = pairs.filter(moved).select("event", key=pl.lit("stream"), value="stream")
    pairs = pairs.with_columns(
        key=pl.when(moved).then(pl.lit("original_stream")).otherwise("key")
    ).select("event", "key", "value")
    pairs = pl.concat([pairs, drawn])
    keys = {key: orjson.dumps(key).decode() for key in pairs["key"].unique().to_list()}
    return objects_of(
        pairs.with_columns(pl.col("key").replace_strict(keys, return_dtype=pl.String))
    )


def _typed(key: str, text: str) -> str:
    """A text as the JSON value that it was made from: anything but a string stands for itself."""
    if key not in _ALWAYS_TEXT:
        try:
            if not isinstance(orjson.loads(text), str):
                return text
        except orjson.JSONDecodeError:
            pass
    return orjson.dumps(text).decode()


def _launches(
    data: npt.NDArray[np.uint8], fields: Fields, packets: Packets, scope: Int64Array
) -> pl.DataFrame:
    """Grid, block and numbers of launches: event, key, value (JSON text)."""
    event, start, end = fields.spans(_LAUNCH)
    launches = read_fields(data, start, end)
    parts = []
    for number, key in ((_GRID, "grid"), (_BLOCK, "block")):
        launch, first, last = launches.spans(number)
        size = read_fields(data, first, last)
        x, y, z = (pl.Series(size.last(axis, len(launch))).cast(pl.String) for axis in (1, 2, 3))
        sizes = pl.DataFrame({"x": x, "y": y, "z": z})
        parts.append(
            sizes.select(
                pl.Series("event", event[launch]),
                key=pl.lit(key),
                value=pl.format("[{}, {}, {}]", "x", "y", "z"),
            )
        )
    launch, first, last = launches.spans(_ARGUMENTS)
    arguments = read_fields(data, first, last)
    count = len(launch)
    value = arguments.last(_ARGUMENT_UNSIGNED, count) + arguments.last(_ARGUMENT_SIGNED, count)
    named = pl.DataFrame(
        {
            "event": event[launch],
            "scope": scope[event[launch]],
            "argument_iid": arguments.last(_ARGUMENT_IID, count),
            "name": texts_of(data, arguments, _ARGUMENT_NAME, count),
            "value": pl.Series(value).cast(pl.String),
        }
    )
    named = packets.with_texts(named, argument=COMPUTE_ARGUMENTS).select(
        "event", key=pl.coalesce("name", "argument_text"), value="value"
    )
    parts.append(named.drop_nulls())
    return pl.concat(parts)


def _counters(data: npt.NDArray[np.uint8], packets: Packets) -> pl.DataFrame:
    """Samples of counters whose descriptors are interned, as torch writes them."""
    packet, start, end = packets.fields.spans(_COUNTER_EVENT)
    fields = read_fields(data, start, end)
    event, first, last = fields.spans(_SAMPLES)
    samples = read_fields(data, first, last)
    value = samples.last(2, len(event)).astype(np.float64)
    doubles = samples.of(3, FIXED64)
    value[samples.message[doubles]] = samples.value[doubles].view(np.float64)
    return (
        pl.DataFrame(
            {
                "time_ns": packets.fields.last(TIME, len(packets.scope))[packet[event]],
                "scope": packets.scope[packet[event]],
                "iid": fields.last(_DESCRIPTOR_IID, len(packet))[event],
                "counter": samples.last(1, len(event)),
                "value": value,
            }
        )
        .join(
            _descriptors(data, packets),
            on=["scope", "iid", "counter"],
            how="inner",
            maintain_order="left",
        )
        .select("time_ns", "device", "name", "value")
    )


def _descriptors(data: npt.NDArray[np.uint8], packets: Packets) -> pl.DataFrame:
    """What each counter is called: scope, iid, counter, device, name."""
    packet, start, end = packets.fields.spans(INTERNED)
    group, first, last = read_fields(data, start, end).spans(_DESCRIPTORS)
    entries = read_fields(data, first, last)
    of, inner_first, inner_last = entries.spans(2)
    descriptor, spec_first, spec_last = read_fields(data, inner_first, inner_last).spans(1)
    specs = read_fields(data, spec_first, spec_last)
    entry = of[descriptor]
    return (
        pl.DataFrame(
            {
                "scope": packets.scope[packet[group[entry]]],
                "iid": entries.last(1, len(group))[entry],
                "counter": specs.last(1, len(entry)),
                "device": entries.last(3, len(group))[entry],
                "name": texts_of(data, specs, 2, len(entry)),
            }
        )
        .drop_nulls()
        .unique(["scope", "iid", "counter"], keep="last", maintain_order=True)
    )
