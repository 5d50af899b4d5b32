"""The dependency graph of the steps of a trace, which critical path and what-if replay walk on.

Nodes
    GPU work: kernels, copies and fills, each with its stream. Pieces of host threads: the main
    thread (which carries the steps) and every thread that launches GPU work, cut where something
    depends on them or they depend on something (`threads`).

Edges, each with a delay, from the end of one node to the start of another
    thread: the order of a thread's pieces.
    launch: from the launching call to its GPU work. It leaves the host where the call ends, or
        where the work begins if that is earlier (calls may outlast the start of their work).
    stream: the order of a stream's work. Its delay is negative where work overlaps on a stream.
    sync: from GPU work to the host that waited for it: synchronising calls, copies that return
        after the copy is done, and freeing of memory. What a call waited for is what the recorder
        says, else the work launched before it that ended last within it.
    wait: from GPU work of one stream to work of another. Where the recorder says which stream
        waited for which event (`sync_records`), from the last work before that event to the
        first after the wait. Without such records: where a thread made a stream wait
        (`cudaStreamWaitEvent`) between two launches, the next work waits for what the other
        streams had been given last before, if that had ended in time; and where nothing else
        explains why work began late, it waits for the work on another stream that ended just
        before.
    Some edges lead from the end of the steps to their beginning: they hold if the same steps come
        again and again (`steady_state`).
    handover: between the main thread and the thread that it hands work to, and back.
    arrival: from one batch that the main thread waited for to the next (`batch_arrivals`): from the
        end of one wait to that of the next, at the pace of the loader's workers.
    queue: from the start of GPU work to the end of the launching call that needed its place in the
        stream's queue (`launch_queue`).
    origin: the beginning of the first step, for what depends on nothing else; and for the first
        work of a stream that was still busy with work of earlier steps, the end of that.

Delays
    A node starts at the latest of its predecessors' ends plus the delays. Of the edges into a node
    the binding one carries whatever is left until the measured start: launch latency, gaps of the
    device, and what is not understood. The others carry what is typical in the trace for their
    kind, as far as it fits. So a replay of the unchanged graph gives every measured time exactly.

Where the steps begin and end
    The steps are those of `host.steady_steps`, with the same duration: with GPU work they begin
    when the devices are done with what came before, and end with the last work they launched. The
    host's part of them may begin earlier, if the host runs ahead, or later.

What is not modelled: kernels slow each other down when they overlap, and clocks vary; removing one
may make another faster. A collective's duration includes its waiting for other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analysis.graph.batch_arrivals import BatchArrivals
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int32Array, Int64Array, Intervals
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.session import Session, kept

ORIGIN = -1
CARRIED = -2
"""Source of an edge that leaves node 0 of the steps before, if they come again; node n: -2 - n."""


@dataclass(frozen=True)
class StepGraph:
    """The graph of consecutive steps; nodes in an order in which every edge points forward.

    Of a large trace it is the largest table that stays, so what only counts events has 32 bits.

    Attributes:
        steps: Numbers of the steps; empty where the trace has none: the graph spans it whole.
        origin_ns: When the first node may begin: the start of the first step on the host, or on
            the devices, if that is earlier.
        begin_ns: Start of the first step: with GPU work on the devices, else on the host.
        host_window: Start of the first step and end of the last on the host.
        mean_step_ns: Mean duration of the steps, as `host.steady_steps` has it; of several devices
            the mean of theirs.
        step_ends_ns: End of each step: when all GPU work launched up to it has ended (a running
            maximum over all devices). On a trace without GPU work, the ends of the host steps.
            They divide the time from `begin_ns` on; without steps there is one, the end of all.
        main_lane: The thread that carries the steps.
        event: Number of the GPU event of each node; -1: a piece of a thread.
        step: Index in `steps` of each node.
        step_rows: The nodes that tell when each step ends.
        is_elastic: Whether each node is a wait whose end other nodes decide (arrival, queue, and
            sync for work of earlier steps): in a replay it takes no time of its own.
        first_edge: The edges into node i stand from `first_edge[i]` to `first_edge[i + 1]`.
        source: Node that each edge leaves, `ORIGIN` for the origin; `CARRIED` and below: a node of
            the steps before.
        call: Number of the call that made each edge: launch, sync; -1: none.
        host: What the threads were doing, by cause.
        clock_lag_ns: By how much the GPUs' clock is behind the host's at least, if much of the work
            began before its launch; else 0.
        steady_state_ns: What the steps take together in the steady state (`steady_state`).
        host_scale: What a replay takes of the measured time of threads, but for waits for input,
            pauses of the collector and operators that compute on the CPU: less than 1 where
            recording slowed them down (`steady_state`).
        has_recorded_pace: Whether the steady state is that of unrecorded steps.
        arrivals: Batches that arrive while the main thread waits.
        had_store: Whether the steps were notably shorter than the pace at which batches come: some
            were in store, or the devices had work of earlier steps.
        batches_later_ns: By how much later batches come in each pass than in these steps, as they
            may (`steady_state`).
        has_outrun_record: Whether the steps of the step record were the host's alone, which ran
            ahead of the devices.
    """

    steps: tuple[int, ...]
    origin_ns: int
    begin_ns: int
    host_window: tuple[int, int]
    mean_step_ns: int
    step_ends_ns: Int64Array
    main_lane: int
    start_ns: Int64Array
    end_ns: Int64Array
    kind: npt.NDArray[np.int8]
    lane: Int32Array
    event: Int32Array
    step: Int32Array
    step_rows: StepRows
    is_elastic: BoolArray
    first_edge: Int64Array
    source: Int64Array
    delay_ns: Int64Array
    edge_kind: npt.NDArray[np.int8]
    call: Int32Array
    host: HostEvents
    arrivals: BatchArrivals
    clock_lag_ns: int
    notes: tuple[str, ...]
    steady_state_ns: int = 0
    host_scale: float = 1.0
    has_recorded_pace: bool = False
    has_outrun_record: bool = False
    had_store: bool = False
    batches_later_ns: int = 0
    session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.start_ns)

    @kept
    def input_waits(self) -> Intervals:
        """When the main thread waits for its input."""
        return self.host.of(HostCause.INPUT, lanes=(self.main_lane,))

    @kept
    def input_ns(self) -> Int64Array:
        """How long the main thread waits for its input within each piece of it."""
        return self._within(self.input_waits, self.main_lane)

    @kept
    def rare_wait_ns(self) -> Int64Array:
        """How long it waits for batches that seldom come late, within each piece of it."""
        return self._within(self.arrivals.rare, self.main_lane)

    def unslowed_of(self, lane: int) -> Intervals:
        """Moments of a thread that recording does not make longer: see `steady_state`."""
        alike = (HostCause.GARBAGE_COLLECTION, HostCause.CPU_OPERATOR)
        found = self.host.of(*alike, lanes=(lane,))
        return intervals.union(found, self.input_waits) if lane == self.main_lane else found

    @kept
    def unslowed_ns(self) -> Int64Array:
        """How long these moments are within each piece of a thread."""
        found = np.zeros(len(self), np.int64)
        for lane in self.host_lanes:
            found += self._within(self.unslowed_of(lane), lane)
        return found

    def _within(self, moments: Intervals, lane: int) -> Int64Array:
        """How long they are within each piece of a thread; 0 for all other nodes."""
        found = np.zeros(len(self), np.int64)
        rows = np.flatnonzero(~self.is_gpu & (self.lane == lane))
        found[rows] = intervals.covered(moments, self.start_ns[rows], self.end_ns[rows])
        return found

    @kept
    def dur_ns(self) -> Int64Array:
        """Measured duration of each node."""
        return self.end_ns - self.start_ns

    @kept
    def one_off_ns(self) -> Int64Array:
        """The part of each node in calls that come once and are no part of the steady state."""
        found = np.zeros(len(self), np.int64)
        if len(self.host.of(HostCause.ONE_OFF)):
            rows = np.flatnonzero(~self.is_gpu)
            columns = self.lane[rows], self.start_ns[rows], self.end_ns[rows]
            found[rows] = self.host.of_cause(HostCause.ONE_OFF, *columns)
        return found

    @kept
    def is_gpu(self) -> BoolArray:
        """Whether each node is GPU work."""
        is_gpu: BoolArray = self.kind != NodeKind.HOST
        return is_gpu

    @kept
    def host_lanes(self) -> frozenset[int]:
        """The threads that have pieces."""
        return frozenset(distinct_groups(self.lane[~self.is_gpu]))

    @kept
    def early_edges(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Edges that leave GPU work which ends after their target begins; that work; its length."""
        rows = np.flatnonzero((self.delay_ns < 0) & (self.source != ORIGIN))
        source = self.source[rows]
        source = np.where(source <= CARRIED, CARRIED - source, source)
        is_of_gpu = self.is_gpu[source]
        source = source[is_of_gpu]
        return rows[is_of_gpu], source, self.dur_ns[source]

    @kept
    def origin_edges(self) -> Int64Array:
        """Edges that leave the origin."""
        return np.flatnonzero(self.source == ORIGIN)

    @kept
    def carried_edges(self) -> Int64Array:
        """Edges that leave nodes of the steps before."""
        return np.flatnonzero(self.source <= CARRIED)

    @kept
    def arrival_edges(self) -> Int64Array:
        """Edges from one batch to the next."""
        return np.flatnonzero(self.edge_kind == EdgeKind.ARRIVAL)

    @property
    def next_batch_edges(self) -> Int64Array:
        """Edges from the batches of the steps before to the next ones."""
        return np.intersect1d(self.arrival_edges, self.carried_edges)

    def edges_of(self, *kinds: EdgeKind) -> BoolArray:
        """Whether each edge is of one of some kinds."""
        is_mine: BoolArray = np.logical_or.reduce([self.edge_kind == kind for kind in kinds])
        return is_mine

    def target_of(self, edges: Int64Array) -> Int64Array:
        """Node that each of some edges leads to."""
        return np.searchsorted(self.first_edge, edges, side="right") - 1

    @property
    def replayed_step_ns(self) -> int:
        """The mean step that replays save from.

        As measured; or as it is without recording, or without batches in store.
        """
        if not (self.has_recorded_pace or self.had_store):
            return self.mean_step_ns
        return round(self.steady_state_ns / max(1, len(self.steps)))

    @property
    def total_ns(self) -> int:
        """From the start of the first step to the end of the last."""
        return int(self.step_ends_ns[-1]) - self.begin_ns

    @property
    def step_starts_ns(self) -> Int64Array:
        """Start of each step: the end of the one before."""
        return np.concatenate(([self.begin_ns], self.step_ends_ns[:-1]))

    @kept
    def host_rows(self) -> Int64Array:
        """The pieces of the main thread within the steps on the host."""
        mine = (~self.is_gpu) & (self.lane == self.main_lane)
        rows: Int64Array = np.nonzero(mine & (self.start_ns >= self.host_window[0]))[0]
        return rows

    @kept
    def earlier_host_rows(self) -> Int64Array:
        """The pieces of the main thread before the steps begin on the host."""
        mine = (~self.is_gpu) & (self.lane == self.main_lane)
        rows: Int64Array = np.nonzero(mine & (self.start_ns < self.host_window[0]))[0]
        return rows

    @kept
    def host_time_ns(self) -> int:
        """How long the main thread took for the steps, waits included."""
        rows = self.host_rows
        return int(self.end_ns[rows].max() - self.start_ns[rows].min()) if len(rows) else 0


@dataclass(frozen=True)
class StepRows:
    """The nodes that tell when steps end: GPU work; without any, pieces of the main thread.

    Attributes:
        first: Where the nodes of each step that has any begin.
        step: Index of that step.
    """

    rows: Int64Array
    first: Int64Array
    step: Int32Array

    def ends(self, end_ns: Int64Array, steps: int, begin_ns: int) -> Int64Array:
        """End of each step as `StepGraph.step_ends_ns` defines it, from the ends of the nodes."""
        latest = np.full(max(1, steps), begin_ns, np.int64)
        if len(self.rows):
            last = np.maximum.reduceat(end_ns[self.rows], self.first)
            latest[self.step] = np.maximum(last, begin_ns)
        ends: Int64Array = np.maximum.accumulate(latest)
        return ends


def rows_of_steps(kind: npt.NDArray[np.int8], is_main: BoolArray, step: Int32Array) -> StepRows:
    """Which nodes tell when each step ends."""
    is_gpu = kind != NodeKind.HOST
    rows = np.nonzero(is_gpu if is_gpu.any() else is_main)[0]
    rows = rows[np.argsort(step[rows], kind="stable")]
    of_row = step[rows]
    first = np.nonzero(np.append(True, of_row[1:] != of_row[:-1])[: len(rows)])[0]
    return StepRows(rows, first, of_row[first])
