"""What a trace format is to the rest of the program, and what its reader gets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.tables import Chunk, SmallTables, Tables


@dataclass(frozen=True)
class Input:
    """An opened trace, as a reader gets it.

    Attributes:
        name: What messages call it: its path or URL.
        plain_file: The local file that holds exactly the content; None for what is compressed, at
            a URL, or a stream.
        content: The uncompressed bytes, from the first on.
        problems: What was wrong with the compressed stream; complete once the content is used up.
    """

    name: str
    plain_file: Path | None
    content: Content
    problems: Problems

    @contextmanager
    def as_file(self, suffix: str = "") -> Iterator[Path]:
        """The content as a plain local file, for readers that need one.

        Args:
            suffix: The name's ending, for programs that insist on one. It is given to a temporary
                file; a file that exists already keeps its name.
        """
        if self.plain_file is not None:
            yield self.plain_file
            return
        with tempfile.TemporaryDirectory(prefix="stepscope-") as directory:
            path = Path(directory) / f"trace{suffix}"
            with path.open("wb") as target:
                target.writelines(self.content)
            yield path


@dataclass(frozen=True)
class TraceFormat:
    """A format that traces come in.

    Modules that define one are imported whenever any trace is opened: heavy imports belong inside
    `read` and `stream`.

    Attributes:
        name: One word.
        plural: What messages call traces of this format.
        recognises: Whether content that begins with these bytes (64 KiB, fewer of a smaller file)
            is of this format.
        read: Reads a trace into memory. Raises `UnreadableInputError` for what cannot be read, and
            counts in `Tables.problems` what was repaired or skipped.
        stream: Reads a trace of any size in bounded memory, handing over the rows of the tables
            that grow with it. None for a format that is only read into memory: no store is made of
            such traces.
    """

    name: str
    plural: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Input], Tables]
    stream: Callable[[Input, Callable[[Chunk], None]], SmallTables] | None = None
