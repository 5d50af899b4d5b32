# ruff: noqa: S608 - these statements are built from constants
"""The views that SQL queries can read.

Views contain names and categories as strings and join the derived columns, so that most queries
need only one view. Times are integer nanoseconds, sizes integer bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.trace import schema
from stepscope.trace.arguments import COLLECTIVE_ARGUMENTS, MEMORY_ARGUMENTS, MEMORY_EVENT

TABLES = {**schema.TABLES, **schema.DERIVED_TABLES}
"""The tables behind the views; in the database, their names are prefixed with `table_`."""


@dataclass(frozen=True)
class View:
    """A view.

    Attributes:
        meaning: What one row is.
    """

    name: str
    meaning: str
    tables: tuple[str, ...]
    sql: str


_EVENT_TABLES = ("events", "names", "lanes", "derived")

_EVENTS = """
SELECT e.event, n.name, n.category::VARCHAR AS category, n.raw_category,
    d.kind::VARCHAR AS kind, d."group", d.step, e.start_ns, e.dur_ns,
    e.start_ns + e.dur_ns AS end_ns, d.self_ns, e.device, e.stream, e.lane_id, l.pid, l.tid,
    l.is_gpu, l.thread_name, d.parent, d.depth, d.launch, d.op, d.forward,
    e.correlation, e.external_id, e.bytes
FROM table_events e
JOIN table_names n USING (name_id)
JOIN table_derived d ON d.event = e.event
LEFT JOIN table_lanes l ON l.lane_id = e.lane_id
"""

_GPU_DURATION = "coalesce(u.dur_ns, e.dur_ns)"
"""Of GPU work: what it can have lasted at most, where the recorded duration is impossible."""

_GPU_WORK = f"""
SELECT e.event, n.name, d.kind::VARCHAR AS kind, d."group", d.step, e.device, e.stream,
    e.start_ns, {_GPU_DURATION} AS dur_ns, e.start_ns + {_GPU_DURATION} AS end_ns, e.bytes,
    d.launch, d.op, o.name AS op_name, e.correlation
FROM table_events e
JOIN table_names n USING (name_id)
JOIN table_derived d ON d.event = e.event
LEFT JOIN table_overruns u ON u.event = e.event
LEFT JOIN table_events oe ON oe.event = d.op
LEFT JOIN table_names o ON o.name_id = oe.name_id
"""


_NUMBERS_OF_COLLECTIVES = dict.fromkeys(("elements_in", "elements_out", "group_size"), "BIGINT")
_OTHERS_OF_MEMORY = {"device_type": "INTEGER", "device": "INTEGER", "address": "UBIGINT"}


def _arguments(keys: dict[str, str], usual: str, types: dict[str, str]) -> str:
    """Arguments as columns, most of one type; null if missing or of another type."""
    return ",\n    ".join(
        f"TRY_CAST(json_extract_string(a.args, '$.\"{key}\"') AS {types.get(name, usual)})"
        f" AS {name}"
        for name, key in keys.items()
    )


VIEWS = (
    View("events", "one event with a duration, on a thread or GPU stream", _EVENT_TABLES, _EVENTS),
    View(
        "kernels",
        "one kernel, with the operator that launched it",
        ("events", "names", "derived", "overruns"),
        _GPU_WORK + "WHERE n.category = 'kernel'",
    ),
    View(
        "copies",
        "one copy or fill on a GPU",
        ("events", "names", "derived", "overruns"),
        _GPU_WORK + "WHERE d.kind IN ('memcpy', 'memset')",
    ),
    View(
        "launches",
        "one piece of GPU work with the call that launched it; delay_ns is the time from the end"
        " of the call to the start of the work",
        ("events", "names", "derived", "overruns"),
        """
SELECT c.event AS call, cn.name AS call_name, c.lane_id AS call_lane_id,
    c.start_ns AS call_start_ns, c.dur_ns AS call_dur_ns, w.event AS work, wn.name AS work_name,
    d.kind::VARCHAR AS kind, d."group", w.device, w.stream, w.start_ns AS work_start_ns,
    coalesce(u.dur_ns, w.dur_ns) AS work_dur_ns, w.start_ns - c.start_ns - c.dur_ns AS delay_ns,
    d.step, d.op
FROM table_derived d
JOIN table_events w ON w.event = d.event
JOIN table_names wn ON wn.name_id = w.name_id
JOIN table_events c ON c.event = d.launch
JOIN table_names cn ON cn.name_id = c.name_id
LEFT JOIN table_overruns u ON u.event = w.event
WHERE w.category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
""",
    ),
    View(
        "collectives",
        "one collective on a GPU, with its metadata",
        ("events", "names", "derived", "args", "overruns"),
        f"""
SELECT e.event, n.name, d."group", d.step, e.device, e.stream, e.start_ns,
    {_GPU_DURATION} AS dur_ns, e.start_ns + {_GPU_DURATION} AS end_ns,
    {_arguments(COLLECTIVE_ARGUMENTS, "VARCHAR", _NUMBERS_OF_COLLECTIVES)},
    d.launch, d.op
FROM table_events e
JOIN table_names n USING (name_id)
JOIN table_derived d ON d.event = e.event
LEFT JOIN table_args a ON a.event = e.event
LEFT JOIN table_overruns u ON u.event = e.event
WHERE d.kind = 'communication'
""",
    ),
    View(
        "memory",
        "one allocation or free of the caching allocator; bytes is negative for a free",
        ("instants", "names", "lanes"),
        f"""
SELECT a.time_ns, a.lane_id, l.tid,
    {_arguments(MEMORY_ARGUMENTS, "BIGINT", _OTHERS_OF_MEMORY)}
FROM table_instants a
JOIN table_names n USING (name_id)
LEFT JOIN table_lanes l ON l.lane_id = a.lane_id
WHERE n.name = '{MEMORY_EVENT}'
""",
    ),
    View(
        "steps",
        "one step on the host clock",
        ("host_steps",),
        "SELECT *, end_ns - start_ns AS dur_ns FROM table_host_steps",
    ),
    View(
        "device_steps",
        "one step on the clock of one device",
        ("device_steps",),
        "SELECT *, end_ns - start_ns AS dur_ns FROM table_device_steps",
    ),
    View(
        "instants",
        "one event without a duration",
        ("instants", "names"),
        "SELECT n.name, n.raw_category, i.lane_id, i.time_ns, i.args"
        " FROM table_instants i JOIN table_names n USING (name_id)",
    ),
    View(
        "counters",
        "one sample; args holds the series and values as JSON",
        ("counters", "names"),
        "SELECT n.name, c.lane_id, c.time_ns, c.args"
        " FROM table_counters c JOIN table_names n USING (name_id)",
    ),
    View(
        "flows",
        "one end of an arrow between two events",
        ("flows", "names"),
        "SELECT f.flow_id, n.name, f.lane_id, f.time_ns, f.phase"
        " FROM table_flows f JOIN table_names n USING (name_id)",
    ),
    View(
        "args",
        "the remaining arguments of one event, as JSON",
        ("args",),
        "SELECT event, args FROM table_args",
    ),
    View(
        "names",
        "one distinct name, classified",
        ("names",),
        "SELECT name_id, name, raw_category, category::VARCHAR AS category,"
        ' kind::VARCHAR AS kind, "group" FROM table_names',
    ),
    View("lanes", "one CPU thread or GPU stream", ("lanes",), "SELECT * FROM table_lanes"),
    View(
        "metadata",
        "one top-level key of the file, with its value as JSON",
        ("metadata",),
        "SELECT * FROM table_metadata",
    ),
    View(
        "problems",
        "one kind of problem: something that was repaired or skipped, or looks wrong",
        ("problems",),
        "SELECT * FROM table_problems",
    ),
)
