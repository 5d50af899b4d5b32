"""Prints samples as nvidia-smi does: `--query-gpu=… --format=csv -l 1`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.monitor.columns import Value
from stepscope.monitor.metrics_file import row_of
from stepscope.monitor.sampler import Sampler, Ticks


@dataclass(frozen=True)
class CsvFormat:
    """The output format, as in nvidia-smi's `--format`.

    Attributes:
        has_header: Whether the headings are printed.
        has_units: Whether values have their unit.
    """

    has_header: bool = True
    has_units: bool = True

    @staticmethod
    def parse(text: str) -> CsvFormat:
        """The format in "csv", "csv,noheader" or "csv,noheader,nounits".

        Raises:
            UsageError: The text is none of these.
        """
        words = [word.strip() for word in text.split(",")]
        unknown = set(words) - {"csv", "noheader", "nounits"}
        if "csv" not in words or unknown:
            raise UsageError(f"--format={text}: give csv, csv,noheader or csv,noheader,nounits")
        return CsvFormat("noheader" not in words, "nounits" not in words)


def stream(
    sampler: Sampler,
    show: Callable[[list[list[str]]], object],
    layout: CsvFormat,
    interval_s: float | None,
    most_samples: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Take samples and show them.

    Args:
        sampler: Takes the samples.
        show: Called with each sample: its rows, with a text for each column.
        layout: How they are printed.
        interval_s: Seconds from one to the next; None for a single sample.
        most_samples: Number of samples; None for no limit.
        is_over: Called before each sample; ends the sampling if it returns True.
    """

    def texts(rows: list[dict[str, Value]]) -> list[list[str]]:
        return [row_of(sampler.columns, row, with_units=layout.has_units) for row in rows]

    if interval_s is None:
        show(texts(sampler.read_once()))
        return
    ticks = Ticks(interval_s)
    taken = 0
    while most_samples is None or taken < most_samples:
        time.sleep(ticks.wait_s())
        if is_over():
            return
        ticks.advance()
        show(texts(sampler.read()))
        taken += 1
