"""Questions about memory snapshots among those about traces, under names that begin with "memory-".

A question that cannot do without options of its own has no such name. Importing this module imports
no question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.memory.questions.names import ABOUT, NEEDS

if TYPE_CHECKING:
    from stepscope.memory.questions.table import MemoryQuestion

PREFIX = "memory-"


def names() -> Iterator[tuple[str, str]]:
    """Name of each question, and what it answers."""
    for name, about in ABOUT.items():
        if name not in NEEDS:
            yield PREFIX + name, about


def memory_question(name: str, paths: Sequence[str]) -> MemoryQuestion | None:
    """The question about snapshots that a name stands for; None: it is one about traces.

    `memory` itself is a question about traces, and about snapshots the overview.

    Raises:
        UsageError: There is no such question about snapshots, or it needs options.
    """
    asked = name.removeprefix(PREFIX) if name.startswith(PREFIX) else None
    if name == "memory" and paths:
        from stepscope.memory.recognition import is_snapshot_file, is_timeline_file

        is_memory = (is_snapshot_file(path) or is_timeline_file(path) for path in paths)
        asked = "overview" if all(is_memory) else None
    if asked is None:
        return None
    if asked in NEEDS:
        path = paths[0] if paths else "PATH"
        raise UsageError(
            f"'{name}' needs options that show does not have: "
            f"stepscope memory {path} {asked} {NEEDS[asked]}"
        )
    from stepscope.memory.questions.table import question

    return question(asked)
