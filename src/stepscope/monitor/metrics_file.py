"""`metrics.csv`: appends whole lines, within a limit on its size."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.monitor.columns import Column, Value, header_of
from stepscope.run.figures import error_in_words
from stepscope.run.files import LineFile, replacing


class MetricsFile:
    """The file of a sampler. Only opening it raises.

    A sample (one row per GPU, with one time) is one write, so that a kill costs at most the last
    sample. At the limit, every second sample is dropped, starting with the second; samples stay
    evenly spaced if they are taken half as often from then on.

    Args:
        path: The file; rows are appended if it exists and has the same columns.
        most_bytes: Its maximum size; None for no limit. Requires `timestamp` as the first column.
        with_header: Whether a new file gets a line of headings.

    Raises:
        OSError: The file cannot be written.
        UsageError: The file exists and has other content.

    Attributes:
        thinned: How often every second sample was dropped.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[Column],
        most_bytes: int | None = None,
        *,
        with_header: bool = True,
    ) -> None:
        self._path = path
        self._columns = tuple(columns)
        self._most_bytes = most_bytes
        self.thinned = 0
        header = f"{header_of(columns)}\n".encode() if with_header else b""
        self._header_bytes = len(header)
        begun = self._existing(header)
        self._lines = LineFile(path)
        if begun:
            # A killed sampler may have left a partial line, which must not damage the next one.
            if not begun.endswith(b"\n"):
                self._lines.write(b"\n")
        elif header:
            self._lines.write(header)
        self._size = path.stat().st_size

    @property
    def problem(self) -> str | None:
        """The first error while writing, or None."""
        return self._lines.problem

    def write(self, rows: Sequence[Sequence[str]]) -> bool:
        """Append a sample: its rows of texts. False if it is itself among the dropped ones."""
        data = "".join(f"{', '.join(row)}\n" for row in rows).encode("utf-8", "replace")
        if self._most_bytes is not None and self._size + len(data) > self._most_bytes:
            samples = self._thin()
            if samples is not None and samples % 2:
                return False
        self._lines.write(data)
        self._size += len(data)
        return True

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _existing(self, header: bytes) -> bytes:
        """The end of a file that can be appended to; empty if there is none."""
        try:
            with self._path.open("rb") as file:
                first = file.readline()
                file.seek(0, 2)
                size = file.tell()
                file.seek(max(0, size - 1))
                last = file.read(1)
        except FileNotFoundError:
            return b""
        if size and header and first != header:
            raise UsageError(
                f"{self._path}: exists with other columns: give another file, or remove it"
            )
        return last

    def _thin(self) -> int | None:
        """Drop every second sample; returns how many there were, or None if writing failed."""
        try:
            with replacing(self._path) as temporary:
                samples = self._write_thinned(temporary)
            self._lines.close()
            self._lines = LineFile(self._path)
            self._size = self._path.stat().st_size
            self.thinned += 1
            return samples
        except OSError as error:
            # Better a file that is too long than one without the next samples.
            self._most_bytes = None
            self._lines.problem = self._lines.problem or error_in_words(error)
            return None

    def _write_thinned(self, temporary: Path) -> int:
        number = -1
        with self._path.open("rb") as source, temporary.open("wb") as target:
            if self._header_bytes:
                target.write(source.readline())
            samples = itertools.groupby(source, key=lambda line: line.partition(b",")[0])
            for number, (_, lines) in enumerate(samples):
                if number % 2 == 0:
                    target.writelines(line for line in lines if line.endswith(b"\n"))
        return number + 1


def row_of(
    columns: Sequence[Column], values: Mapping[str, Value], *, with_units: bool
) -> list[str]:
    """A row's texts, in the order of the columns."""
    return [column.show(values.get(column.name), with_unit=with_units) for column in columns]
