"""Opens what a path stands for as memory: a snapshot, or the host's memory in a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.analysis.calls.allocations import has_only_host_memory
from stepscope.analysis.memory.trace_history import calls_of_requests, history_of_trace, of_gpus
from stepscope.analysis.record.metrics import bytes_of, column_of, read_metrics
from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.census import Census
from stepscope.memory.opening import (
    census_beside,
    find_snapshots,
    open_snapshot,
    read_censuses,
)
from stepscope.memory.recognition import is_snapshot_file, snapshots_in
from stepscope.memory.schema import Action
from stepscope.memory.simulator.operations import ReleaseCause, releases_of
from stepscope.memory.view import SAMPLES, MemoryView, SampledMemory
from stepscope.opening.reader import RankRun, Run
from stepscope.run.files import is_regular
from stepscope.run.layout import SNAPSHOTS_DIRECTORY, RankLayout
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.paths import TraceRef, resolve_path

_OF_HOST = "the host's memory in a trace"


@dataclass(frozen=True)
class OpenedMemory:
    """Memory that questions can be asked about.

    Attributes:
        others: How many other files the path also stands for.
    """

    view: MemoryView
    path: str
    others: int = 0

    def remark(self, asked: str) -> str:
        """Which file was opened, if what was asked for stands for several; else nothing."""
        return f"{self.path}: the newest; {asked} has {self.others} more" if self.others else ""


def open_memory(path: str, rank: int | None = None, metrics: str | None = None) -> OpenedMemory:
    """Opens memory.

    Args:
        path: A snapshot, a trace, a run directory (its newest snapshot is taken, and without one
            the last trace of the rank), a directory of snapshots, or a URL of a snapshot.
        rank: The rank of a run; None: the first.
        metrics: A file with samples of the GPU's memory; None: the one beside.
    """
    trace = find_trace(path, rank)
    if trace is not None:
        return OpenedMemory(memory_of_trace(trace.open(), trace.name), trace.name)
    *others, found = find_snapshots(path, rank)
    view = open_snapshot(found)
    return OpenedMemory(_with_samples(view, found, metrics), found, len(others))


def find_trace(path: str, rank: int | None = None) -> TraceRef | None:
    """The trace whose memory `open_memory` opens for a path; None where it opens no trace."""
    if not path:
        raise UnreadableInputError("the path is empty: give . for this directory")
    place = Path(path)
    if place.is_file():
        return None if is_snapshot_file(path) else resolve_path(path).one_trace()
    if not place.is_dir():
        return None
    try:
        find_snapshots(path, rank)
    except UnreadableInputError:
        try:
            return resolve_path(path).rank(rank).last_with(None)
        except UnreadableInputError:
            pass  # `find_snapshots` says it better
    return None


def memory_of_rank(rank: RankRun, trace: Trace | None) -> MemoryView | None:
    """The memory that a rank recorded: its newest snapshot, else the host's memory in its trace.

    The host's memory counts with a census, and where the trace shows no other, with its stacks:
    beside a GPU's memory, it is not what a training runs out of.
    """
    census: Census | None = None
    remarks: tuple[str, ...] = ()
    if rank.manifest is not None:
        layout = RankLayout(rank.directory)
        snapshots = snapshots_in(layout.snapshots)
        if snapshots:
            newest = str(snapshots[-1])
            return _with_samples(open_snapshot(newest), newest, None)
        if trace is not None:
            found = [path for path in layout.censuses if path.is_file()]
            census, remarks = read_censuses(found)
    if trace is None or (census is None and not has_only_host_memory(trace)):
        return None
    history = history_of_trace(trace, census)
    if census is None and history.frames.is_empty():
        return None
    return MemoryView(history, census, remarks=remarks, kind=_OF_HOST)


def newest_snapshots(run: Run) -> list[str]:
    """The newest snapshot of each rank of a run that recorded any, in order."""
    found = (snapshots_in(RankLayout(rank.directory).snapshots) for rank in run.ranks)
    return [str(files[-1]) for files in found if files]


def _with_samples(view: MemoryView, path: str, metrics: str | None) -> MemoryView:
    """A view with samples of the GPU's memory: of a file, or those in the folder of its rank."""
    if metrics is not None:
        return replace(view, sampled=sampled_memory(Path(metrics)))
    folder = Path(path).absolute().parent
    if "://" in path or folder.name != SNAPSHOTS_DIRECTORY:
        return view
    beside = RankLayout(folder.parent).metrics
    if not is_regular(beside):
        return view
    try:
        return replace(view, sampled=sampled_memory(beside))
    except UnreadableInputError:  # sampled on a machine without a GPU
        return view


def memory_of_trace(trace: Trace, path: str) -> MemoryView:
    """The host's memory as a trace shows it.

    Raises:
        UnreadableInputError: The trace has no memory events of the host.
    """
    known, remarks = read_censuses(census_beside(Path(path)))
    history = history_of_trace(trace, known)
    if gpus_note := of_gpus(trace):
        remarks = (gpus_note, *remarks)
    calls = partial(calls_of_requests, trace)
    return MemoryView(history, known, remarks, kind=_OF_HOST, calls=calls)


def sampled_memory(path: Path) -> tuple[SampledMemory, ...]:
    """The samples of each GPU's memory.

    Args:
        path: A `metrics.csv`, or what nvidia-smi wrote.

    Raises:
        UnreadableInputError: It cannot be read, or has no samples of a GPU's memory.
    """
    frame, _ = read_metrics(path)
    frame = frame.select(
        column_of(frame, "index").cast(pl.Int64).alias("index"),
        column_of(frame, "name", pl.String).alias("name"),
        column_of(frame, "time_ns", pl.Int64).alias("time_ns"),
        bytes_of(column_of(frame, "memory.used")).alias("used_bytes"),
        bytes_of(column_of(frame, "memory.total")).alias("total_bytes"),
    ).drop_nulls(["time_ns", "used_bytes"])
    if frame.is_empty():
        raise UnreadableInputError(
            f"{path}: no samples of a GPU's memory: none has a timestamp and memory.used"
        )
    return tuple(
        _of_one(part, str(path)) for part in frame.partition_by("index", maintain_order=True)
    )


def _of_one(rows: pl.DataFrame, source: str) -> SampledMemory:
    index, name = rows["index"][0], rows["name"].drop_nulls()
    totals = rows["total_bytes"].drop_nulls()
    gpu = "the sampled GPU" if index is None else f"GPU {index}"
    return SampledMemory(
        source=source,
        index=index,
        gpu=f"{gpu} ({name[0]})" if len(name) else gpu,
        total_bytes=int(totals[-1]) if len(totals) else None,
        samples=rows.select(pl.col(column) for column in SAMPLES).sort("time_ns"),
    )


_CALLS = [
    action.value
    for action in (
        Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP,
    )
]  # fmt: skip


def allocator_meanwhile(
    view: MemoryView, device: int, first_ns: Int64Array, last_ns: Int64Array
) -> pl.DataFrame:
    """What the allocator of a device did in some stretches of time.

    Args:
        first_ns: When each stretch begins, in nanoseconds since 1970.
        last_ns: When it ends; the end counts.

    Returns:
        retries (the device had no room: everything cached was given back first) and device_calls
        (segments that were got from the device or given back), row for row.
    """
    curve = view.curve(device).drop_nulls("time_ns")
    mine = view.snapshot.events.filter(pl.col("device") == device)
    calls = mine.filter(pl.col("action").cast(pl.String).is_in(_CALLS)).select("time_ns")
    called = np.sort(calls.collect()["time_ns"].drop_nulls().to_numpy())
    asked = [one.asked_event for one in releases_of(view.replay, device)
             if one.cause is ReleaseCause.RETRY]  # fmt: skip
    retried = np.sort(curve.filter(pl.col("event").is_in(asked))["time_ns"].to_numpy())

    def within(moments: Int64Array) -> Int64Array:
        first = np.searchsorted(moments, first_ns, side="left")
        return np.asarray(np.searchsorted(moments, last_ns, side="right") - first)

    return pl.DataFrame({"retries": within(retried), "device_calls": within(called)})
