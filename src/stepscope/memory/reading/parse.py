"""Parses a snapshot into a tree, in time and memory that its size bounds.

A first pass over the bytes of a pickle checks them and counts what the tree will take; only then is
memory asked for. A file whose parts are so small that its tree would take more than three times its
own size was written by no recorder, and is refused. A snapshot in JSON, which torch does not write,
is made a pickle first.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from stepscope.errors import UnreadableInputError
from stepscope.memory.reading import walk_pickle as w
from stepscope.memory.reading.keywords import VALUES_FROM, keyword_table
from stepscope.memory.reading.tree import Tree
from stepscope.run.side_json import parse_json
from stepscope.trace.machine.jit import jit

MOST_TREE_BYTES = 3
"""Bytes of the tree for each byte of the file, above `FREE_BYTES`."""
FREE_BYTES = 64 * 1024 * 1024
"""What any tree may take: a small file can do no harm."""
_SLICE_BYTES = 64 * 1024 * 1024
"""After so many, progress is reported and the interpreter may run other threads."""
_SPARE_MEMO = 1024
_MOST_JSON_BYTES = 256 * 1024 * 1024
_MOST_VALUE_BYTES = 8
"""Bytes of Python's values for each byte of JSON, above `FREE_BYTES`; recorders have about four."""

Data = npt.NDArray[np.uint8]
Progress = Callable[[int], None]


def parse(data: Data, name: str, progress: Progress | None = None) -> Tree:
    """The tree of a file.

    `progress` is called with numbers of bytes that were read: each byte is read twice.
    """
    if not (len(data) > 1 and data[0] == 0x80 and 2 <= data[1] <= 5):
        data = _from_json(data, name)
    walk = _Walk(data, name, progress)
    counted = walk.run(is_building=False)
    return walk.build(counted)


def _from_json(data: Data, name: str) -> Data:
    text = data.tobytes().removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] not in (b"{", b"["):
        raise UnreadableInputError(
            f"{name}: neither a pickle (protocol 2 to 5) nor JSON; a memory snapshot is what "
            "torch.cuda.memory._dump_snapshot writes"
        )
    if len(text) > _MOST_JSON_BYTES:
        raise UnreadableInputError(
            f"{name}: {len(text) / 1e9:.1f} GB of JSON are too much to read: save the snapshot as "
            "torch.cuda.memory._dump_snapshot does, as a pickle"
        )
    # What Python's values take: numbers and texts, and lists and dictionaries.
    taken = 64 * text.count(b",") + 120 * (text.count(b"{") + text.count(b"["))
    if taken > _MOST_VALUE_BYTES * len(text) + FREE_BYTES:
        raise _hostile(name, len(text), taken)
    try:
        return np.frombuffer(pickle.dumps(parse_json(text), 4), np.uint8)
    except orjson.JSONDecodeError as error:
        if text.rstrip()[-1:] not in (b"}", b"]") or error.pos >= len(error.doc.rstrip()) - 1:
            raise UnreadableInputError(f"{name}: {_ends_early('JSON', len(text))}") from error
        raise UnreadableInputError(
            f"{name}: the JSON is damaged at character {error.pos:,}; nothing was read"
        ) from error
    except RecursionError as error:
        raise UnreadableInputError(
            f"{name}: nested deeper than any snapshot; nothing was read"
        ) from error


def _ends_early(what: str, size: int) -> str:
    return (
        f"the {what} ends early, after {size:,} bytes; the process was probably stopped while it "
        "wrote the file, or the copy is not complete"
    )


def _hostile(name: str, size: int, needed: int) -> UnreadableInputError:
    return UnreadableInputError(
        f"{name}: hostile: reading its {size / 1e9:.3f} GB would take {needed / 2**30:.1f} GiB of "
        "memory, far more than any recorder's file; nothing was read"
    )


class _Walk:
    def __init__(self, data: Data, name: str, progress: Progress | None) -> None:
        self.data = data
        self.name = name
        self.progress = progress

    def run(self, is_building: bool, arrays: tuple[Any, ...] | None = None) -> Any:
        state, marks = np.zeros(w.STATE_FIELDS, np.int64), np.zeros(w.MOST_NESTING, np.int64)
        if arrays is None:
            arrays = _tree_arrays(np.zeros(w.STATE_FIELDS, np.int64), self._handle(0))
        stack = arrays[0]
        walk = compiled_walk(stack.dtype)
        size = len(self.data)
        while state[w.STATUS] == w.RUNNING:
            before = int(state[w.POSITION])
            until = min(size, before + _SLICE_BYTES)
            walk(self.data, *keyword_table(), state, marks, *arrays, until, is_building)
            if self.progress is not None:
                self.progress(int(state[w.POSITION]) - before)
        if state[w.STATUS] != w.DONE:
            raise UnreadableInputError(f"{self.name}: {self._reason(state)}")
        return state

    def build(self, counted: Any) -> Tree:
        handle = self._handle(int(counted[w.CONTAINERS]))
        if counted[w.HIGHEST_MEMO] > counted[w.MEMO_PUTS] + _SPARE_MEMO:
            raise UnreadableInputError(
                f"{self.name}: damaged or hostile: the pickle numbers its values up to "
                f"{int(counted[w.HIGHEST_MEMO]):,}, but has only {int(counted[w.MEMO_PUTS]):,}"
            )
        if max(int(counted[field]) for field in (w.CONTAINERS, w.CHUNKS, w.DEEPEST)) >= 2**31:
            raise UnreadableInputError(
                f"{self.name}: too large: it has more than two billion parts; record fewer events "
                "(max_entries)"
            )
        needed = _tree_bytes(counted, handle)
        allowed = MOST_TREE_BYTES * len(self.data) + FREE_BYTES
        if needed > allowed:
            raise _hostile(self.name, len(self.data), needed)
        arrays = _tree_arrays(counted, handle)
        state = self.run(is_building=True, arrays=arrays)
        kinds, firsts, _, starts, counts, nexts, items = arrays[-7:]
        base = VALUES_FROM + len(self.data)
        return Tree(
            self.data, int(state[w.ROOT]), base, kinds, firsts, starts, counts, nexts, items
        )

    def _handle(self, containers: int) -> type[np.uint32] | type[np.int64]:
        """The narrowest type that holds every value of the tree."""
        highest = VALUES_FROM + len(self.data) + containers
        return np.uint32 if highest < 2**32 else np.int64

    def _reason(self, state: Any) -> str:
        status, place = int(state[w.STATUS]), int(state[w.PLACE])
        if status == w.FORBIDDEN:
            code = chr(self.data[place])
            names = [opcode.name for opcode in pickletools.opcodes if opcode.code == code]
            return (
                f"no memory snapshot: the pickle uses {names[0] if names else repr(code)} at byte "
                f"{place:,}, which may run code and which no recorder writes; nothing was executed"
            )
        if status == w.TRUNCATED:
            return _ends_early("pickle", len(self.data))
        if status == w.NESTED_TOO_DEEP:
            return f"nested deeper than any snapshot, at byte {place:,}; nothing was read"
        return f"the pickle is damaged at byte {place:,}; nothing was read"


def _tree_bytes(counted: Any, handle: type[np.uint32] | type[np.int64]) -> int:
    wide = np.dtype(handle).itemsize
    containers, chunks, items = (int(counted[f]) for f in (w.CONTAINERS, w.CHUNKS, w.ITEMS))
    stacked = int(counted[w.DEEPEST]) + 1 + int(counted[w.HIGHEST_MEMO]) + 1
    return containers * (1 + 4 + 4) + chunks * (wide + 4 + 4) + (items + stacked) * wide


def _tree_arrays(counted: Any, handle: type[np.uint32] | type[np.int64]) -> tuple[Any, ...]:
    containers, chunks, items = (int(counted[f]) for f in (w.CONTAINERS, w.CHUNKS, w.ITEMS))
    return (
        np.empty(int(counted[w.DEEPEST]) + 1, handle),
        np.zeros(int(counted[w.HIGHEST_MEMO]) + 1, handle),
        np.empty(containers, np.uint8),
        np.empty(containers, np.int32),
        np.empty(containers, np.int32),
        np.empty(chunks, handle),
        np.empty(chunks, np.int32),
        np.empty(chunks, np.int32),
        np.empty(items, handle),
    )


def compiled_walk(handle: np.dtype[Any]) -> Callable[..., None]:
    """The loop for a type of values, as machine code."""
    return jit(w.walk_pickle, handle)
