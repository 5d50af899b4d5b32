"""`--to speedscope`: the chosen part of each trace as flame graphs."""

from __future__ import annotations

from stepscope.export.flame_json import write_speedscope
from stepscope.export.lag import lag_notes
from stepscope.export.request import Exported, Request, Source, Write, each_in_a_file
from stepscope.export.selection import cut


def export(asked: Request) -> Exported:
    """Write one file per trace."""
    notes: list[str] = []

    def one(source: Source, write: Write) -> str:
        found = cut(source.ref.open(), asked.selection)
        notes.extend(lag_notes(found, asked.selection, asked.rank_of(source)))
        return f"{write_speedscope(found, write):,} slices"

    files, said = each_in_a_file(asked, ".speedscope.json", one)
    return Exported(files, said, tuple(notes))
