"""The formats that `stepscope export` writes, the only place that knows them by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.export.request import Exported, Request


@dataclass(frozen=True)
class Target:
    """A format.

    Attributes:
        suffix: What a file of its is called after the trace; empty: a folder.
        endings: Endings of a destination that choose the format.
    """

    name: str
    about: str
    suffix: str
    endings: tuple[str, ...]

    def export(self, asked: Request) -> Exported:
        """Write it."""
        module = importlib.import_module(f"stepscope.export.to_{self.name}")
        function: Callable[[Request], Exported] = module.export
        return function(asked)


TARGETS: tuple[Target, ...] = (
    Target(
        "perfetto",
        "for ui.perfetto.dev: nothing dropped, with findings, idle causes and counters",
        ".pftrace",
        (".pftrace", ".pftrace.gz", ".perfetto-trace"),
    ),
    Target(
        "chrome",
        "Chrome JSON as torch writes it, cut to what was chosen",
        ".json.gz",
        (".json", ".json.gz"),
    ),
    Target("csv", "every answer as CSV files, in a folder", "", ()),
    Target("parquet", "every answer as Parquet files, in a folder", "", ()),
    Target("xlsx", "every table as a sheet of one workbook", ".xlsx", (".xlsx",)),
)


def target_of(name: str | None, destination: str | None) -> Target | None:
    """The format of a name, or of a destination's ending; None where neither says it."""
    if name is not None:
        return next(target for target in TARGETS if target.name == name)
    if destination is None:
        return None
    ends = {ending: target for target in TARGETS for ending in target.endings}
    found = [ending for ending in ends if destination.lower().endswith(ending)]
    return ends[max(found, key=len)] if found else None
