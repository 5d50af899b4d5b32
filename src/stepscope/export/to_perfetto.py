"""`--to perfetto`: all chosen traces in one file, on one clock, with what Stepscope knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.export.overlays import overlays_of
from stepscope.export.request import Exported, Request, file_writer
from stepscope.export.selection import cut, lag_notes
from stepscope.export.track_events import OneOfSeveral, write_perfetto
from stepscope.fleet.job import read_job
from stepscope.fleet.stragglers import stragglers_of_job

if TYPE_CHECKING:
    from stepscope.advice.finding import Finding

_RECORDED = "clocks of the ranks are taken as recorded: {}"


def export(asked: Request) -> Exported:
    """Write one file."""
    notes: list[str] = []
    offsets = _offsets(asked, notes) if len(asked.sources) > 1 else {}
    written = []
    with file_writer(asked.destination) as write:
        findings, reason = _diagnosed(asked)
        is_alone = len(asked.target.ranks) == 1
        for number, source in enumerate(asked.sources):
            trace, rank = source.open(), source.rank
            part = cut(trace, asked.steps)
            notes.extend(lag_notes(part, asked.steps, asked.rank_of(source)))
            several = None
            if len(asked.sources) > 1:
                to_unix = trace.base_time_ns - offsets.get(rank, 0)
                several = OneOfSeveral(number, f"rank {rank}", max(to_unix, -part.start_ns))
            mine = [one for one in findings if is_alone or one.rank == rank]
            overlays = overlays_of(trace, mine, part.start_ns, part.end_ns, source.metrics)
            written.append(write_perfetto(part, overlays, write, several))
            if left_out := written[-1].left_out:
                notes.append(
                    f"rank {rank}: {left_out:,} slices overlap too many others and are left out"
                )
            if written[-1].moved_ns and part.start_ns < 0:
                notes.append(f"rank {rank}: times start at 0, because they were negative")
    slices = sum(one.slices for one in written)
    added = sum(one.annotations for one in written)
    values = sum(one.counters for one in written)
    summary = f"{slices:,} slices, {added:,} annotations and {values:,} counter values"
    return Exported((asked.destination,), summary, (*notes, *reason))


def _diagnosed(asked: Request) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings of the run, and why there are none if it cannot be judged."""
    if not asked.with_findings or asked.target.path == "-":
        return (), ()
    from stepscope.advice.diagnosis import diagnose

    try:
        return tuple(diagnose(asked.target.run).findings), ()
    except StepscopeError as error:
        return (), (f"findings are not marked: {error}",)


def _offsets(asked: Request, notes: list[str]) -> dict[int, int]:
    """What to take off each rank's clock, from collectives that they joined together."""
    try:
        found = stragglers_of_job(read_job(asked.sources))
    except StepscopeError as error:
        notes.append(_RECORDED.format(error))
        return {}
    notes.append(found.clock_reason)
    return dict(found.ranks.select("rank", "offset_ns").iter_rows())
