"""How long the steps of a graph take in the steady state, however the window happened to begin.

A window shows a few steps. It may begin while the devices are idle, because the recorder held the
host up, or while they still have work of earlier steps; and its last step leaves the host an
advantage that the window does not show. So the steps are run again and again, each time from where
the last left off: every thread goes on after its last piece, every stream after its last work,
every launch needs room in its queue, and the next batch comes at the loader's pace. Edges between
one pass and the next are part of the graph (`EdgeKind`, `CARRIED`). The time from one pass to the
next settles quickly, at what limits the steps: the host, a stream, or the arrival of batches.

A trace without steps is run once: nothing says that it repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.loops import sweep
from stepscope.analysis.graph.step_graph import CARRIED, StepGraph
from stepscope.analysis.record.pace import RecordedPace
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.jit import jit

_LONG_AGO_NS = -(1 << 60)
_MOST_PASSES = 8
_NOTABLY_SLOWED = 1.01
_NOTABLY_LONGER = 1.02
_BORDERS_DIFFER = 1.05
"""How many times as long as those of the device the host's steps seem at most, by their borders."""
_OUTRUN = 1.1
"""How many times as long as unrecorded steps what the devices need must be: more than chance."""
_MOST_SLOWED = 0.1
"""Share of a recorded piece that an unrecorded one takes at least."""
_BISECTIONS = 8
_SETTLED = 0.001
"""Two passes that differ by less than this share take what all later ones take."""


class Passes(NamedTuple):
    """The steps of a graph, run with some durations, delays and edges.

    Attributes:
        start_ns: Start of each node in the first pass, which begins as the window did.
        cycle_ns: How long the steps take together in the steady state.
        waited_ns: How long the main thread waits for batches in it.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    cycle_ns: int
    waited_ns: int


def with_steady_state(graph: StepGraph, pace: RecordedPace | None = None) -> StepGraph:
    """The graph with what its steps take in the steady state, at most as long as measured.

    A host that was ahead at the start made them shorter than they would be later. Nothing is
    promised of time that was not measured, unless batches limit the steps: at what pace these come
    was measured, and steps that had some in store are shorter than all later ones.

    Where late batches do not show their pace exactly, steps without another cause may have to wait
    for them all the same: batches come as late as they may, but no later than the steps need them.

    Recording slows the host's threads, but not the devices, nor waits for input, nor the garbage
    collector, which runs no operators, nor operators that compute on the CPU. Where the pace of
    unrecorded steps is known, all other pieces of threads are shortened alike, by as little as
    makes the steps take what those do. Where batches set the pace, compared is what the host takes
    beside waiting for them: devices work during these waits, so steps without them take longer than
    that. A host that waits for the devices in each step waits less for them after its batch was
    late: its steps whose batch was ready are compared with those of no waits for batches. Where the
    devices need longer, by their events if the record has them, unrecorded steps were the host's
    alone, which ran ahead of them: then the host alone takes what they do. So are those between
    steps that are slow every so many steps, if the host waits for the devices in some steps, but
    not in all.
    """
    is_kept = np.ones(len(graph.source), np.bool_)
    has_batches = len(graph.arrivals) > 0
    batches = (graph.edge_kind == EdgeKind.ARRIVAL) & has_batches

    def cycle_ns(scale: float, kept: BoolArray, *, host_only: bool = False) -> int:
        dur = replayed_durations(graph, scale)
        if kept is not is_kept and has_batches:
            dur -= np.minimum(graph.input_ns, dur)
        if host_only:
            dur[graph.is_gpu] = 0
        return run_passes(graph, dur, graph.delay_ns, kept).cycle_ns

    def beside_batches_ns(scale: float) -> int:
        dur = replayed_durations(graph, scale)
        passes = run_passes(graph, dur, graph.delay_ns, is_kept)
        fixed = np.minimum(graph.input_ns, dur)[graph.host_rows]
        return passes.cycle_ns - passes.waited_ns - int(fixed.sum())

    if pace is None or not graph.steps or not graph.is_gpu.any():
        steady_ns = cycle_ns(1.0, is_kept)
        shown_ns = graph.mean_step_ns * len(graph.steps)
        is_paced = has_batches and graph.arrivals.has_pace
        least_ns = max(_NOTABLY_LONGER * shown_ns, shown_ns + graph.arrivals.error_ns)
        if is_paced and steady_ns > least_ns and shown_ns > 0:
            later_ns = graph.arrivals.rounds_ns - graph.arrivals.cycle_ns
            in_rounds, paced_ns = graph, steady_ns
            if later_ns:
                in_rounds = _with_later_batches(graph, later_ns)
                paced_ns = run_passes(
                    in_rounds, replayed_durations(graph, 1.0), in_rounds.delay_ns, is_kept
                ).cycle_ns
            if paced_ns > least_ns:
                return replace(in_rounds, steady_state_ns=paced_ns, had_store=True)
        graph = replace(graph, steady_state_ns=min(steady_ns, graph.total_ns))
        latest_ns = min(graph.arrivals.longest_ns, graph.steady_state_ns)
        later_ns = int(latest_ns) - graph.arrivals.cycle_ns
        if not is_paced or later_ns <= 0:
            return graph
        return replace(_with_later_batches(graph, later_ns), batches_later_ns=later_ns)
    own = is_kept & ~batches
    alone = own & ~graph.edges_of(EdgeKind.SYNC, EdgeKind.QUEUE)
    wanted_ns = (pace.own_ns if has_batches else pace.step_ns) * len(graph.steps)
    least_ns = cycle_ns(_MOST_SLOWED, own)
    needed_ns = least_ns if pace.device_ns is None else pace.device_ns * len(graph.steps)
    # A host that waits for the devices in each step never runs ahead by more than one.
    waits = graph.target_of(np.flatnonzero(graph.edge_kind == EdgeKind.SYNC))
    waiting_steps = len(np.unique(graph.step[waits]))
    is_free = 2 * waiting_steps < len(graph.steps)
    is_ahead = is_free and needed_ns > _NOTABLY_SLOWED * pace.mean_ns * len(graph.steps)
    between_ns = pace.between_ns * len(graph.steps)
    if 0 < waiting_steps < len(graph.steps) and 0 < _OUTRUN * between_ns < least_ns:
        is_ahead, wanted_ns = True, between_ns
    taken_ns: Callable[[float], int] = partial(cycle_ns, kept=own)
    if is_ahead:
        taken_ns = partial(cycle_ns, kept=alone, host_only=True)
    elif has_batches and pace.ready_ns and waiting_steps == len(graph.steps):
        wanted_ns = pace.ready_ns * len(graph.steps)
    elif has_batches and pace.batch_ns:
        taken_ns, least_ns = beside_batches_ns, beside_batches_ns(_MOST_SLOWED)
    limit_ns = (wanted_ns if is_ahead else max(wanted_ns, least_ns)) * _NOTABLY_SLOWED
    scale = 1.0
    if taken_ns(1.0) > limit_ns:
        by_device = (pace.device_ns or 0) / max(1, pace.mean_ns)
        if not is_ahead and not pace.epoch_start_ns and by_device * _BORDERS_DIFFER > 1:
            # Where a host runs ahead in some steps, the mean of its steps is less exact.
            limit_ns = min(limit_ns, max(wanted_ns * by_device, least_ns * (1 + _SETTLED)))
        low, high = _MOST_SLOWED, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if taken_ns(middle) <= limit_ns else (low, middle)
        scale = low
    has_pace = scale < 1.0 or (has_batches and pace.batch_ns > 0)
    steady_ns = cycle_ns(scale, is_kept)
    if has_batches and pace.batch_ns:
        # A window may take longer by what recording adds elsewhere, as to a rank that it waits for.
        longest_ns = max(pace.batch_ns, pace.step_ns, pace.device_ns or 0)
        steady_ns = min(steady_ns, longest_ns * len(graph.steps))
    return replace(
        graph,
        host_scale=scale,
        steady_state_ns=steady_ns if has_pace else min(steady_ns, graph.total_ns),
        has_recorded_pace=has_pace,
        has_outrun_record=needed_ns > _OUTRUN * pace.mean_ns * len(graph.steps),
    )


def _with_later_batches(graph: StepGraph, later_ns: int) -> StepGraph:
    """The graph with batches that come later in each pass, or sooner."""
    delay_ns = graph.delay_ns.copy()
    delay_ns[graph.next_batch_edges] += later_ns
    return replace(graph, delay_ns=delay_ns)


def replayed_durations(graph: StepGraph, host_scale: float) -> Int64Array:
    """Duration of each node in a replay.

    Waits whose end the graph knows take no time of their own, and one-off calls none at all.
    """
    dur = np.where(graph.is_elastic, 0, graph.dur_ns - graph.one_off_ns)
    if host_scale != 1.0:
        same = np.minimum(graph.unslowed_ns, dur)
        scaled = np.round((dur - same) * host_scale).astype(np.int64) + same
        dur = np.where(graph.is_gpu, dur, scaled)
    return dur


def run_passes(
    graph: StepGraph, dur_ns: Int64Array, delay_ns: Int64Array, is_kept: BoolArray
) -> Passes:
    """Run the steps until they take the same time again and again."""
    from_origin, carried, arrivals = (
        edges[is_kept[edges]]
        for edges in (graph.origin_edges, graph.carried_edges, graph.arrival_edges)
    )
    within = is_kept.copy()
    within[from_origin] = within[carried] = False
    earliest = np.full(len(graph), graph.origin_ns)
    np.maximum.at(earliest, graph.target_of(from_origin), graph.origin_ns + delay_ns[from_origin])
    first_start, first_end = _sweep(graph, dur_ns, delay_ns, within, earliest)
    if not graph.steps:
        ends_ns = graph.step_rows.ends(first_end, 0, graph.begin_ns)
        return Passes(first_start, first_end, int(ends_ns[-1]) - graph.begin_ns, 0)
    source, target = CARRIED - graph.source[carried], graph.target_of(carried)
    is_even = (graph.edge_kind[carried] == EdgeKind.ARRIVAL) & (source == target)
    batches, batch_edges = target[is_even], carried[is_even]
    carried, source, target = carried[~is_even], source[~is_even], target[~is_even]
    # Workers make batches at an even pace, whenever the host comes for them.
    sooner_ns = graph.delay_ns[batch_edges] - delay_ns[batch_edges]
    all_batches_ns = int(graph.delay_ns[batch_edges].max(initial=0) - sooner_ns.sum())
    turns = np.arange(len(batches)) / max(1, len(batches))
    come_ns = first_start[batches[:1]] + np.round(turns * all_batches_ns).astype(np.int64)
    main = graph.host_rows
    before = graph.earlier_host_rows
    if len(before):
        dur_ns = dur_ns.copy()
        dur_ns[before] = 0
    loose = from_origin[graph.edge_kind[from_origin] == EdgeKind.ORIGIN]
    loose = loose[~graph.is_gpu[graph.target_of(loose)]]
    loose_target = graph.target_of(loose)
    end = first_end
    cycles: list[int] = []
    marks = _marks(graph, end)
    for _ in range(_MOST_PASSES):
        earliest = np.full(len(graph), _LONG_AGO_NS)
        if len(main):
            # What depends on nothing begins when it did, seen from the start of the host's steps.
            origin_ns = int(end[main[-1]]) - (graph.host_window[0] - graph.origin_ns)
            earliest[loose_target] = origin_ns + delay_ns[loose]
            earliest[before] = _LONG_AGO_NS
        np.maximum.at(earliest, target, end[source] + delay_ns[carried])
        come_ns += all_batches_ns
        earliest[batches] = np.maximum(earliest[batches], come_ns)
        last_ns = end[main[-1:]]
        start, end = _sweep(graph, dur_ns, delay_ns, within, earliest)
        previous, marks = marks, _marks(graph, end)
        cycles.append(max(one - other for one, other in zip(marks, previous, strict=True)))
        if len(cycles) > 1 and abs(cycles[-1] - cycles[-2]) <= _SETTLED * cycles[-1]:
            cycle_ns = cycles[-1]
            break
    else:
        settled = cycles[_MOST_PASSES // 2 :]
        cycle_ns = sum(settled) // len(settled)
    waited_ns = 0
    if len(arrivals):
        waits = start[main] - np.concatenate((last_ns, end[main[:-1]]))
        waited_ns = int(waits[np.isin(main, graph.target_of(arrivals))].sum())
    return Passes(first_start, first_end, cycle_ns, waited_ns)


def _marks(graph: StepGraph, end_ns: Int64Array) -> tuple[int, ...]:
    """When the main thread and the devices are done with the steps."""
    main, rows = graph.host_rows, graph.step_rows.rows
    marks = [int(end_ns[rows].max())] if len(rows) else []
    return (*marks, int(end_ns[main[-1]])) if len(main) else tuple(marks)


def _sweep(
    graph: StepGraph,
    dur_ns: Int64Array,
    delay_ns: Int64Array,
    is_kept: BoolArray,
    earliest_ns: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Start and end of each node, none of which starts before its earliest time."""
    start, end = earliest_ns, np.empty(len(graph), np.int64)
    jit(sweep)(graph.first_edge, graph.source, delay_ns, is_kept, dur_ns, start, end)
    return start, end
