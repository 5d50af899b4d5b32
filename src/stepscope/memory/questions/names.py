"""The names of the questions about snapshots. Importing it imports no question.

Among the questions about traces their names begin with "memory-"; one that cannot do without
options of its own has no such name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.memory.questions.table import MemoryQuestion


ABOUT: Mapping[str, str] = {
    "overview": "why a request failed, what leaks, the numbers, and what the peak consists of",
    "peak": "what was held when most was: by category, line, module and size",
    "held": "what is held at any other moment (--at)",
    "timeline": "allocated, reserved, and what the allocated bytes are for, over time",
    "growth": "what survives the steps, and the line that leaks",
    "oom": "why a request failed, what held the memory, and what would have helped",
    "fragmentation": "what is reserved and not in use, and what pins it",
    "settings": "what other values of PYTORCH_CUDA_ALLOC_CONF would have reserved (--settings)",
    "diff": "what changed between two moments (--before-at) or two snapshots (--before)",
    "outside": "memory outside torch's allocator (the CUDA context, NCCL), if metrics were sampled",
    "fit": "the peak at another batch size or sequence length, from runs at two or three sizes",
    "shard": "the peak if more ranks share the model's state (ZeRO, FSDP)",
}
"""What each question answers, in one line; in the order of the list."""

NEEDS: Mapping[str, str] = {
    "diff": "--before FILE",
    "fit": "--size 4 --also OTHER=8 --target 16",
}
"""Options that a question cannot do without, as on the command line."""

PREFIX = "memory-"


def names() -> Iterator[tuple[str, str]]:
    """Name of each question, and what it answers."""
    for name, about in ABOUT.items():
        if name not in NEEDS:
            yield PREFIX + name, about


def memory_question(name: str, paths: Sequence[str]) -> MemoryQuestion | None:
    """The question about snapshots that a name stands for; None: it is one about traces.

    `memory` itself is a question about traces, and about snapshots the overview.
    """
    asked = name.removeprefix(PREFIX) if name.startswith(PREFIX) else None
    if name == "memory" and paths:
        from stepscope.memory.recognition import is_snapshot_file

        asked = "overview" if all(map(is_snapshot_file, paths)) else None
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
