"""Samples of this machine, as text for display."""

from __future__ import annotations

import os

from stepscope.monitor.columns import DEFAULT_COLUMNS
from stepscope.monitor.notes import Notes
from stepscope.monitor.sampler import Sampler, Watched


class LocalSampler:
    """Samples this machine. The first sample opens the drivers.

    Args:
        ids: GPUs to sample; empty for the visible ones.
    """

    def __init__(self, ids: tuple[str, ...] = ()) -> None:
        self._ids = ids
        self._sampler: Sampler | None = None

    def read(self) -> list[dict[str, str]]:
        """Take a sample: a row per GPU, as texts by column.

        Raises:
            UsageError: A requested GPU does not exist.
        """
        if self._sampler is None:
            watched = Watched(os.getpid(), is_root=False, ids=self._ids)
            self._sampler = Sampler(DEFAULT_COLUMNS, watched, Notes())
        return [
            {
                column.name: column.show(row.get(column.name), with_unit=True)
                for column in DEFAULT_COLUMNS
            }
            for row in self._sampler.read()
        ]

    def close(self) -> None:
        """Release the drivers."""
        if self._sampler is not None:
            self._sampler.close()
