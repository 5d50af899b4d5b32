"""Parses a snapshot, pickled or in JSON, into a tree, in time and memory that its size bounds.

A first pass over the bytes checks them and counts what the tree will take; only then is memory
asked for. A file whose parts are so small that its tree would take more than three times its own
size was written by no recorder, and is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.errors import UnreadableInputError
from stepscope.memory.reading import tree as t
from stepscope.memory.reading.tree import Tree
from stepscope.memory.reading.words import VALUES_FROM, word_table
from stepscope.trace.machine.loops import in_machine_code

MOST_TREE_BYTES = 3
"""Bytes of the tree for each byte of the file, above `FREE_BYTES`."""
FREE_BYTES = 64 * 1024 * 1024
"""What any tree may take: a small file can do no harm."""
_SLICE_BYTES = 64 * 1024 * 1024
"""After so many, progress is reported and the interpreter may run other threads."""
_SPARE_MEMO = 1024

Data = npt.NDArray[np.uint8]
Progress = Callable[[int], None]


def parse(data: Data, name: str, progress: Progress | None = None) -> Tree:
    """The tree of a file.

    Args:
        data: The whole file, unpacked.
        name: What it is called in messages.
        progress: Called with numbers of bytes that were read: each byte is read twice.

    Raises:
        UnreadableInputError: It is neither a pickle of plain values nor JSON, or is damaged, or
            would take more memory than its size allows.
    """
    form = form_of(data)
    if form is None:
        raise UnreadableInputError(
            f"{name}: neither a pickle (protocol 2 to 5) nor JSON; a memory snapshot is what "
            "torch.cuda.memory._dump_snapshot writes"
        )
    walk = _Walk(data, form, name, progress)
    counted = walk.run(t.STATE_FIELDS, is_building=False)
    return walk.build(counted)


def form_of(data: Data) -> int | None:
    """`PICKLE` or `JSON` by the first bytes; None for anything else."""
    if len(data) > 1 and data[0] == 0x80 and 2 <= data[1] <= 5:
        return t.PICKLE
    head = data[:256].tobytes().removeprefix(b"\xef\xbb\xbf").lstrip()
    return t.JSON if head[:1] in (b"{", b"[") else None


class _Walk:
    """One file, walked twice."""

    def __init__(self, data: Data, form: int, name: str, progress: Progress | None) -> None:
        self.data = data
        self.form = form
        self.name = name
        self.progress = progress

    def run(self, fields: int, is_building: bool, arrays: tuple[Any, ...] | None = None) -> Any:
        """Walks through the whole file, and returns the final state."""
        state, marks = np.zeros(fields, np.int64), np.zeros(2 * t.MOST_NESTING, np.int64)
        if arrays is None:
            arrays = _tree_arrays(np.zeros(fields, np.int64), self._handle(0), self.form)
        stack = arrays[0]
        walk = compiled_walk(self.form, stack.dtype)
        size = len(self.data)
        while state[t.STATUS] == t.RUNNING:
            before = int(state[t.POSITION])
            until = min(size, before + _SLICE_BYTES)
            walk(self.data, *word_table(), state, marks, *arrays, until, is_building)
            if self.progress is not None:
                self.progress(int(state[t.POSITION]) - before)
        if state[t.STATUS] != t.DONE:
            raise UnreadableInputError(f"{self.name}: {self._reason(state)}")
        return state

    def build(self, counted: Any) -> Tree:
        """Writes the tree that was counted.

        Raises:
            UnreadableInputError: It would be too large, or the walk fails.
        """
        handle = self._handle(int(counted[t.CONTAINERS]))
        if counted[t.HIGHEST_MEMO] > counted[t.MEMO_PUTS] + _SPARE_MEMO:
            raise UnreadableInputError(
                f"{self.name}: damaged or hostile: the pickle numbers its values up to "
                f"{int(counted[t.HIGHEST_MEMO]):,}, but has only {int(counted[t.MEMO_PUTS]):,}"
            )
        if max(int(counted[field]) for field in (t.CONTAINERS, t.CHUNKS, t.DEEPEST)) >= 2**31:
            raise UnreadableInputError(
                f"{self.name}: too large: it has more than two billion parts; record fewer events "
                "(max_entries)"
            )
        needed = _tree_bytes(counted, handle)
        allowed = MOST_TREE_BYTES * len(self.data) + FREE_BYTES
        if needed > allowed:
            raise UnreadableInputError(
                f"{self.name}: hostile: reading its {len(self.data) / 1e9:.3f} GB would take "
                f"{needed / 2**30:.1f} GiB of memory, far more than any recorder's file; nothing "
                "was read"
            )
        arrays = _tree_arrays(counted, handle, self.form)
        state = self.run(t.STATE_FIELDS, is_building=True, arrays=arrays)
        kinds, firsts, _, starts, counts, nexts, items = arrays[-7:]
        base = VALUES_FROM + len(self.data)
        return Tree(
            self.data, self.form, int(state[t.ROOT]), base,
            kinds, firsts, starts, counts, nexts, items,
        )  # fmt: skip

    def _handle(self, containers: int) -> type[np.uint32] | type[np.int64]:
        """The narrowest type that holds every value of the tree."""
        highest = VALUES_FROM + len(self.data) + containers
        return np.uint32 if highest < 2**32 else np.int64

    def _reason(self, state: Any) -> str:
        status, place = int(state[t.STATUS]), int(state[t.PLACE])
        if status == t.FORBIDDEN:
            code = chr(self.data[place])
            names = [opcode.name for opcode in pickletools.opcodes if opcode.code == code]
            return (
                f"no memory snapshot: the pickle uses {names[0] if names else repr(code)} at byte "
                f"{place:,}, which may run code and which no recorder writes; nothing was executed"
            )
        what = "JSON" if self.form == t.JSON else "pickle"
        if status == t.TRUNCATED:
            return (
                f"the {what} ends early, after {len(self.data):,} bytes; the process was probably "
                "stopped while it wrote the file, or the copy is not complete"
            )
        if status == t.NESTED_TOO_DEEP:
            return f"nested deeper than any snapshot, at byte {place:,}; nothing was read"
        return f"the {what} is damaged at byte {place:,}; nothing was read"


def _tree_bytes(counted: Any, handle: type[np.uint32] | type[np.int64]) -> int:
    wide = np.dtype(handle).itemsize
    containers, chunks, items = (int(counted[f]) for f in (t.CONTAINERS, t.CHUNKS, t.ITEMS))
    stacked = int(counted[t.DEEPEST]) + 1 + int(counted[t.HIGHEST_MEMO]) + 1
    return containers * (1 + 4 + 4) + chunks * (wide + 4 + 4) + (items + stacked) * wide


def _tree_arrays(
    counted: Any, handle: type[np.uint32] | type[np.int64], form: int
) -> tuple[Any, ...]:
    containers, chunks, items = (int(counted[f]) for f in (t.CONTAINERS, t.CHUNKS, t.ITEMS))
    stack = np.empty(int(counted[t.DEEPEST]) + 1, handle)
    memo = (np.zeros(int(counted[t.HIGHEST_MEMO]) + 1, handle),) if form == t.PICKLE else ()
    return (
        stack,
        *memo,
        np.empty(containers, np.uint8),
        np.empty(containers, np.int32),
        np.empty(containers, np.int32),
        np.empty(chunks, handle),
        np.empty(chunks, np.int32),
        np.empty(chunks, np.int32),
        np.empty(items, handle),
    )


def compiled_walk(form: int, handle: np.dtype[Any]) -> Callable[..., None]:
    """The loop for a form and a type of values, as machine code."""
    if form == t.JSON:
        from stepscope.memory.reading.walk_json import walk_json

        return in_machine_code(walk_json, handle)
    from stepscope.memory.reading.walk_pickle import walk_pickle

    return in_machine_code(walk_pickle, handle)
