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
        home: Module here and function that writes it.
        suffix: What a file of its is called after the trace; empty: a folder.
        endings: Endings of a destination that choose the format.
    """

    name: str
    about: str
    home: str
    suffix: str = ""
    endings: tuple[str, ...] = ()

    def export(self, asked: Request) -> Exported:
        """Write it."""
        module, _, function = self.home.partition(":")
        found: Callable[[Request], Exported] = getattr(
            importlib.import_module(f"stepscope.export.{module}"), function
        )
        return found(asked)


TARGETS: tuple[Target, ...] = (
    Target(
        "perfetto",
        "for ui.perfetto.dev: nothing dropped, with findings, idle causes and counters",
        "to_perfetto:export",
        ".pftrace",
        (".pftrace", ".pftrace.gz", ".perfetto-trace"),
    ),
    Target(
        "chrome",
        "Chrome JSON as torch writes it, cut to what was chosen",
        "to_chrome:export",
        ".json.gz",
        (".json", ".json.gz"),
    ),
    Target("csv", "every answer as CSV files, in a folder", "answer_tables:to_csv"),
    Target("parquet", "every answer as Parquet files, in a folder", "answer_tables:to_parquet"),
    Target("xlsx", "every table as a sheet of one workbook", "to_xlsx:export", ".xlsx", (".xlsx",)),
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
