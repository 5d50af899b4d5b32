"""What is asked of a trace: details, search, totals, flame graphs, tables, findings, comparison."""

from __future__ import annotations

from typing import Any

from stepscope.errors import UsageError
from stepscope.viewer.routes.answers import Asked, Endpoint


def _event(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.events import event_in_full

    content = asked.whole
    event = asked.number("event", 0, 2**53)
    return content.at_once(
        lambda: event_in_full(content.trace, content.index, content.links, event, content.attained)
    )


def _gap(asked: Asked) -> dict[str, Any]:
    """A stretch of idle time: its cause, what ended it, what the host did meanwhile."""
    from stepscope.viewer.gaps import gap

    content = asked.whole
    segments = content.extras.idle
    if segments is None:
        raise UsageError("idle time could not be worked out")
    row = asked.number("row", 0, max(0, len(segments) - 1))
    found = segments.row(row, named=True)
    return content.at_once(lambda: gap(content.trace, content.index, content.forest, found))


def _search(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.search import search

    content = asked.content
    after = asked.number("after", -(2**53), 2**53, default=0)
    skip = asked.number("skip", 0, 2**53, default=0)
    return search(content.index, content.names, asked.text("text"), after, skip)


def _range(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.ranges import range_totals

    content = asked.whole
    start, end = asked.range_ns()
    return content.at_once(lambda: range_totals(content.basis, content.forest, start, end))


def _flame(asked: Asked) -> object:
    from stepscope.viewer.flame import FlameBy, flame

    content = asked.whole
    start, end = asked.range_ns()
    kind = asked.text("by", FlameBy.HOST.value)
    if kind not in {one.value for one in FlameBy}:
        raise UsageError(f"a flame graph is by {', '.join(one.value for one in FlameBy)}")
    lanes = asked.numbers("lanes")
    return content.at_once(
        lambda: flame(content.trace, content.forest, start, end, FlameBy(kind), lanes)
    )


def _questions(asked: Asked) -> dict[str, Any]:  # noqa: ARG001 - the same for every trace
    from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
    from stepscope.analysis.questions import QUESTIONS

    return {
        "questions": [
            {"name": one.name, "about": one.about} for one in QUESTIONS if not one.over_ranks
        ],
        "causes": list(IDLE_CAUSES),
    }


def _table(asked: Asked) -> dict[str, Any]:
    from stepscope.analysis.questions import question
    from stepscope.analysis.selection.scope import Scope
    from stepscope.report.answer import NOTHING, shown_numbers, tables_of, title_of
    from stepscope.report.pictures import pictures_of
    from stepscope.report.scope import describe_scope
    from stepscope.viewer.tables import for_page

    content = asked.whole
    chosen = question(asked.text("question"))
    if chosen.over_ranks:
        raise UsageError(f"'{chosen.name}' is asked of several ranks at once")
    scope = Scope(steps=asked.numbers("steps"), devices=asked.numbers("devices"))
    result = content.alone(
        lambda: chosen.ask_of_run(content.trace, content.origin.step_record, scope)
    )
    origin = content.index.origin_ns
    tables = tables_of(result, chosen)
    return {
        "question": chosen.name,
        "about": chosen.about,
        "numbers": [
            {"label": label, "shown": shown}
            for label, shown in shown_numbers(result, tables, origin)
        ],
        "pictures": [one.drawn for one in pictures_of(chosen.name, result, origin)],
        "tables": [
            {"name": name, "title": title_of(name, chosen), **for_page(frame, origin)}
            for name, frame in tables.items()
        ],
        "nothing": "" if any(map(len, tables.values())) else NOTHING,
        "scope": describe_scope(result.scope),
        "notes": list(result.notes),
    }


def _critical_path(asked: Asked) -> bytes:
    """The pieces of the critical path that are on a lane, in order of time; see `encoding`."""
    import numpy as np

    from stepscope.analysis.critical_path import critical_path
    from stepscope.viewer.encoding import encode

    content = asked.whole
    segments = content.alone(lambda: critical_path(content.trace).segments).drop_nulls("lane_id")
    times = segments.select("start_ns", "end_ns") - content.index.origin_ns
    start, end = (times[name].to_numpy().astype(np.float64) for name in times.columns)
    lane = segments["lane_id"].to_numpy().astype(np.uint32)
    return encode({}, {"start": start, "end": end, "lane": lane})


def _findings(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.findings import findings_of

    opened = asked.library.find(asked.identifier)
    content = asked.whole
    return content.alone(lambda: findings_of(opened.origin.run, content, opened.origin.rank))


def _compare(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.findings import comparison_of

    before, after = asked.whole, asked.library.whole(asked.text("with"))
    with before.unchanged(), after.unchanged():
        return comparison_of(before, after)


ENDPOINTS = (
    Endpoint("/api/traces/{id}/event", _event),
    Endpoint("/api/traces/{id}/gap", _gap),
    Endpoint("/api/traces/{id}/search", _search),
    Endpoint("/api/traces/{id}/range", _range),
    Endpoint("/api/traces/{id}/flame", _flame),
    Endpoint("/api/questions", _questions),
    Endpoint("/api/traces/{id}/table", _table),
    Endpoint("/api/traces/{id}/critical-path", _critical_path),
    Endpoint("/api/traces/{id}/findings", _findings),
    Endpoint("/api/traces/{id}/compare", _compare),
)
