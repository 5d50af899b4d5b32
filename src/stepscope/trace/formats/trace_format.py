"""`TraceFormat`, the interface of a trace format, and `Input`, what its reader gets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.tables import Frames, Tables


@dataclass(frozen=True)
class Input:
    """An opened trace, passed to a reader.

    Attributes:
        name: Path or URL, for messages.
        plain_file: The local file with exactly this content; None if the trace is compressed, at a
            URL, or a stream.
        problems: Problems of the compressed stream, complete once the content has been read.
    """

    name: str
    plain_file: Path | None
    content: Content
    problems: Problems

    @contextmanager
    def as_file(self, suffix: str = "") -> Iterator[Path]:
        """Provides the content as a plain local file, for readers that need one.

        Args:
            suffix: Suffix of the temporary file, if one is created, for programs that require it.
        """
        if self.plain_file is not None:
            yield self.plain_file
            return
        self.content.expect_no_events()
        with tempfile.TemporaryDirectory(prefix="stepscope-") as directory:
            path = Path(directory) / f"trace{suffix}"
            with path.open("wb") as target:
                target.writelines(self.content)
            yield path


@dataclass(frozen=True)
class TraceFormat:
    """A trace format.

    The modules that define formats are imported whenever a trace is opened, so `read` and `stream`
    should import heavy dependencies themselves.

    Attributes:
        recognises: Whether content that starts with these bytes (at most 64 KiB) has this format.
        read: Reads a trace into memory. Raises `UnreadableInputError` if it cannot be read, and
            reports in `Tables.problems` what was repaired or skipped.
        stream: Reads a trace of any size in bounded memory, passing on chunks of the tables that
            grow with it. None if the format is only read into memory; such traces get no store.
    """

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Input], Tables]
    stream: Callable[[Input, Callable[[Frames], None]], Frames] | None = None
