"""What a page shows beside the diagnosis: the answers about the window of the rank shown.

The diagnosis itself keeps no table of a trace. Only an output that asks for details pays for them:
`window_answers` makes them, and `read_ranks` keeps them. A page of what is kept shall start at
once: this module imports no analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.analysis.selection.rows import Beginning
from stepscope.analysis.selection.scope import AnsweredScope

BUCKETS = 120
"""Equal parts of the step, for what is not drawn slice by slice."""


@dataclass(frozen=True)
class Slice:
    """A slice of a lane.

    Attributes:
        start_ns: From the beginning of the step on; cut to the step.
        what: The word of its colour: a kind of GPU work, a category, or a cause of idle time.
    """

    start_ns: int
    dur_ns: int
    name: str
    what: str


@dataclass(frozen=True)
class StepLane:
    """A lane of the step.

    Attributes:
        slices: The slices that are drawn one by one, in order of time.
        rest: For each of `BUCKETS` equal parts of the step, the share that other slices cover.
        rest_what: The word of the colour of most of these; empty: there are none.
    """

    title: str
    slices: tuple[Slice, ...]
    rest: tuple[float, ...]
    rest_what: str
    others: int


@dataclass(frozen=True)
class TypicalStep:
    """A step.

    Attributes:
        device: The GPU whose step it is; None: the host's.
    """

    step: int
    device: int | None
    dur_ns: int
    lanes: tuple[StepLane, ...]


MOST_ROWS = 300
"""Rows of each table."""
TABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "kernels": {
        "groups": ("group", "kind", "count", "total_ns", "work_share", "mean_ns"),
        "kernels": (
            "name", "group", "count", "total_ns", "work_share", "mean_ns", "p50_ns", "max_ns",
        ),
    },
    "operators": {
        "table": (
            "name", "group", "count", "kernels", "device_self_ns", "device_total_ns",
            "host_self_ns", "host_total_ns", "backward_device_ns", "recomputed_device_ns",
        )
    },
    "modules": {
        "table": (
            "path", "calls", "forward_device_total_ns", "backward_device_total_ns",
            "recomputed_device_total_ns", "forward_host_total_ns", "backward_host_total_ns",
        )
    },
    "communication": {
        "devices": (
            "device", "collectives", "communication_ns", "overlapped_ns", "exposed_ns",
            "overlap_share",
        ),
        "sizes": (
            "kind", "message_bytes", "dtype", "group", "group_size", "count", "total_ns",
            "median_ns", "max_ns", "exposed_ns", "bus_bandwidth_gb_per_s",
        ),
    },
    "memory": {
        "devices": (
            "kind", "device", "allocations", "frees", "peak_allocated_bytes",
            "peak_reserved_bytes", "capacity_bytes", "peak_share",
        ),
        "at_peak": (
            "operator", "inner_operator", "frame", "device", "allocations", "live_bytes",
            "peak_share",
        ),
    },
}  # fmt: skip
"""Tables of each answer, and their columns, in the order of a page."""


@dataclass(frozen=True)
class DetailedAnswer:
    """The answer to a question about a window.

    Attributes:
        tables: Its tables by field, in the order of a page: the columns that a page shows.
    """

    question: str
    tables: dict[str, Beginning]
    scope: AnsweredScope
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """Who recorded a trace, and where; see `analysis.contents.Contents`.

    Attributes:
        accelerator: The kind of device; None without calls of a device's runtime.
    """

    path: str
    producer: str
    accelerator: str | None
    gpus: tuple[str, ...]
    backend: str | None
    header: dict[str, Any]


@dataclass(frozen=True)
class WindowDetails:
    """A window in detail.

    Attributes:
        answers: The answer to each question that has one, in the order of a page.
        notes: Why the others have none.
    """

    recording: Recording
    answers: tuple[DetailedAnswer, ...]
    notes: tuple[str, ...]
    step: TypicalStep | None
