"""What was left out of a snapshot, repaired, or looks wrong, counted by kind."""

from __future__ import annotations

import polars as pl

from stepscope.memory.schema import PROBLEMS

MESSAGES = {
    "not_a_record": "entries that are no events, segments, blocks or annotations were skipped",
    "unknown_word": "actions and states that this version does not know: such events are kept as "
    "'other', such blocks as allocated",
    "extra_keys": "keys that the tables have no place for were not kept",
    "bad_value": "numbers that are missing, negative or not whole were left out",
    "too_many_pools": "events of more than a thousand pools: the pool of the others is not known",
    "odd_frame": "entries of stacks that are no frames were left out",
    "cut_value": "values that are too long, or nested too deep, were cut",
    "host_memory": "entries about pinned host memory were not kept",
    "trailing_data": "bytes after the end of the snapshot were ignored",
}
"""Every kind of problem and what was done about it."""


class Problems:
    """A tally of problems."""

    def __init__(self) -> None:
        self._tally: dict[str, int] = {}

    def add(self, kind: str, count: int) -> None:
        """Counts occurrences of a kind of `MESSAGES`."""
        if count > 0:
            self._tally[kind] = self._tally.get(kind, 0) + count

    def frame(self) -> pl.DataFrame:
        """The table `problems` of the schema, ordered by kind."""
        rows = [(kind, count, MESSAGES[kind]) for kind, count in sorted(self._tally.items())]
        return pl.DataFrame(rows, schema=PROBLEMS, orient="row")
