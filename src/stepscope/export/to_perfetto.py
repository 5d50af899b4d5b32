"""`--to perfetto`: all chosen traces in one file, on one clock, with what Stepscope knows."""

from __future__ import annotations

from stepscope.errors import StepscopeError
from stepscope.export.overlays import overlays_of
from stepscope.export.request import Exported, Request, Source, file_writer
from stepscope.export.selection import Cut, cut, lag_notes
from stepscope.export.track_events import OneOfSeveral, Written, write_perfetto
from stepscope.fleet.job import read_job
from stepscope.fleet.stragglers import stragglers_of_job

_RECORDED = "clocks of the ranks are taken as recorded: {}"


def export(asked: Request) -> Exported:
    """Write one file."""
    notes: list[str] = []
    offsets = _offsets(asked, notes) if len(asked.sources) > 1 else {}
    written = []
    with file_writer(asked.destination) as write:
        for number, source in enumerate(asked.sources):
            trace = source.ref.open()
            part = cut(trace, asked.steps)
            notes.extend(lag_notes(part, asked.steps, asked.rank_of(source)))
            several = None
            if len(asked.sources) > 1:
                to_unix = trace.base_time_ns - offsets.get(source.rank, 0)
                title = f"rank {source.rank}"
                several = OneOfSeveral(number, title, max(to_unix, -part.start_ns))
            overlays = overlays_of(
                trace,
                asked.findings_of(source.rank),
                part.start_ns,
                part.end_ns,
                source.metrics,
            )
            written.append(write_perfetto(part, overlays, write, several))
            _note(part, written[-1], source, notes)
    if asked.without_findings:
        notes.append(asked.without_findings)
    return Exported((asked.destination,), _summary(written), tuple(notes))


def _offsets(asked: Request, notes: list[str]) -> dict[int, int]:
    """What to take off each rank's clock, from collectives that they joined together."""
    try:
        found = stragglers_of_job(read_job([source.ref for source in asked.sources]))
    except StepscopeError as error:
        notes.append(_RECORDED.format(error))
        return {}
    notes.append(found.clock_reason)
    return dict(found.ranks.select("rank", "offset_ns").iter_rows())


def _note(part: Cut, written: Written, source: Source, notes: list[str]) -> None:
    if written.left_out:
        notes.append(
            f"rank {source.rank}: {written.left_out:,} slices overlap too many others and are left"
            " out"
        )
    if written.moved_ns and part.start_ns < 0:
        notes.append(f"rank {source.rank}: times start at 0, because they were negative")


def _summary(written: list[Written]) -> str:
    slices = sum(one.slices for one in written)
    added = sum(one.annotations for one in written)
    values = sum(one.counters for one in written)
    return f"{slices:,} slices, {added:,} annotations and {values:,} counter values"
