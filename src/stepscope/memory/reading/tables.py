"""The tables of a snapshot, from the tree of its file. What they mean: `stepscope.memory.schema`.

Every variant of the schema since torch 2.0 is understood: blocks with a history and without an
address, events without a time, pools as tuples or lists, state without events, a bare list of
segments. What a file does not say becomes null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.memory.reading import event_records, records, segment_records, stacks
from stepscope.memory.reading.columns import (
    Array,
    Columns,
    blocks_table,
    enum_of,
    known,
    segments_table,
    stacks_table,
)
from stepscope.memory.reading.problems import Problems
from stepscope.memory.reading.texts import MOST_RICH_VALUES, Texts, as_json
from stepscope.memory.reading.tree import DICT, Tree
from stepscope.memory.reading.values import MISSING, Plain, contained, text_of
from stepscope.memory.reading.words import NUMBERS
from stepscope.memory.schema import (
    ACTION,
    ANNOTATIONS,
    EVENTS,
    FRAMES,
    POOLS,
    Action,
    Types,
)
from stepscope.trace.machine.loops import in_machine_code

_MOST_DEVICES = 4096
_MOST_ANNOTATIONS = 1_000_000
_MOST_SETTINGS = 2_000
_WORK_PER_BYTE = 20
_FREE_TEXT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Tables:
    """The tables of one file, in memory, and what the allocator was set to."""

    events: pl.DataFrame
    segments: pl.DataFrame
    blocks: pl.DataFrame
    frames: pl.DataFrame
    stacks: pl.DataFrame
    pools: pl.DataFrame
    texts: pl.DataFrame
    annotations: pl.DataFrame
    problems: pl.DataFrame
    settings: dict[str, Any]


def tables_of(tree: Tree, name: str, progress: Callable[[int], None] | None = None) -> Tables:
    """Reads the tables.

    Args:
        tree: Of the file.
        name: What the file is called in messages.
        progress: Called with numbers of bytes of the file that were converted: each byte once.

    Raises:
        UnreadableInputError: It is no snapshot, or was made to take more than its size allows.
    """
    return _Reader(tree, name, progress).read()


class _Reader:
    """One file, on its way from a tree to tables."""

    def __init__(self, tree: Tree, name: str, progress: Callable[[int], None] | None) -> None:
        self.tree = tree
        self.name = name
        self._progress = progress
        self.problems = Problems()
        self.arrays = (
            tree.data, tree.kinds, tree.firsts, tree.starts, tree.counts, tree.nexts, tree.items,
        )  # fmt: skip
        self.tallies = np.zeros(records.TALLIES, np.int64)
        self.known_pools = records.no_pools()
        self.texts = Texts(tree)

    def read(self) -> Tables:
        """All tables.

        Raises:
            UnreadableInputError: It is no snapshot, or hostile.
        """
        sections = self._sections()
        segments, blocks = self._segments(sections.segments)
        events = self._events(sections.histories)
        self._advance()
        found, frames, stack_rows = self._stacks([events, blocks, segments])
        self._advance()
        self._tell_tallies()
        settings, annotations = self._settings(sections), self._annotations(sections)
        frames_table = self._frames(frames)  # before the texts: it may report problems
        return Tables(
            events=self._events_table(events, found[0]),
            segments=segments_table(segments, found[2]),
            blocks=blocks_table(blocks, found[1]),
            frames=frames_table,
            stacks=stack_rows,
            pools=self._pools(),
            texts=self.texts.table(),
            annotations=annotations,
            problems=self.problems.frame(),
            settings=settings,
        )

    def _compiled(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        """A loop as machine code for the tree's type of values."""
        return in_machine_code(loop, self.tree.items.dtype)

    def _advance(self) -> None:
        """Says that a third of the work is done."""
        if self._progress is not None:
            self._progress(len(self.tree.data) // 3)

    # -- the parts of the file

    def _sections(self) -> _Sections:
        tree = self.tree
        root = tree.root - tree.base
        if root < 0:
            raise self._no_snapshot()
        if tree.kinds[root] != DICT:  # a bare list of segments
            self._check_segments(root)
            return _Sections(root, [], None, None)
        segments = self._container("segments")
        traces = self._container("device_traces")
        if segments is None and traces is None:
            raise self._no_snapshot()
        if segments is not None:
            self._check_segments(segments)
        histories = []
        for value in [] if traces is None else contained(tree, traces, _MOST_DEVICES):
            container = value - tree.base
            is_list = container >= 0 and tree.kinds[container] != DICT
            histories.append(container if is_list else None)
            if not is_list:
                self.problems.add("not_a_record", 1)
        for key in ("host_segments", "host_traces"):
            host = self._container(key)
            self.problems.add("host_memory", 0 if host is None else self._entries(host))
        return _Sections(
            segments,
            histories[:_MOST_DEVICES],
            self._container("external_annotations"),
            self._value("allocator_settings"),
        )

    def _value(self, key: str) -> int:
        tree = self.tree
        return int(
            records.find_value(
                tree.root - tree.base, NUMBERS[key],
                tree.firsts, tree.starts, tree.counts, tree.nexts, tree.items,
            )
        )  # fmt: skip

    def _container(self, key: str) -> int | None:
        """The list under a key of the file."""
        container = self._value(key) - self.tree.base
        return container if container >= 0 and self.tree.kinds[container] != DICT else None

    def _length(self, container: int) -> int:
        tree = self.tree
        return int(records.length_of(container, tree.firsts, tree.counts, tree.nexts))

    def _entries(self, container: int) -> int:
        """How many entries a list has, or the lists in it."""
        entries = 0
        for value in contained(self.tree, container, _MOST_DEVICES):
            inner = value - self.tree.base
            is_list = inner >= 0 and self.tree.kinds[inner] != DICT
            entries += self._length(inner) if is_list else 1
        return entries

    def _check_segments(self, segments: int) -> None:
        """A list of segments consists of dictionaries that have blocks or an address."""
        tree = self.tree
        first = contained(tree, segments, 1)
        if not first:
            return
        container = first[0] - tree.base
        keys = set()
        if container >= 0 and tree.kinds[container] == DICT:
            keys = set(contained(tree, container, 200)[::2])
        if not keys & {NUMBERS["blocks"], NUMBERS["total_size"], NUMBERS["address"]}:
            raise self._no_snapshot()

    def _no_snapshot(self) -> UnreadableInputError:
        return UnreadableInputError(
            f"{self.name}: no memory snapshot: it has neither segments nor device_traces; "
            "torch.cuda.memory._dump_snapshot writes one"
        )

    def _hostile(self, what: str) -> UnreadableInputError:
        return UnreadableInputError(f"{self.name}: hostile: {what}; nothing was kept")

    # -- records

    def _segments(self, segments: int | None) -> tuple[Columns, Columns]:
        tree = self.tree
        count = 0 if segments is None else self._length(segments)
        block_count = 0
        if segments is not None:
            count_blocks = self._compiled(segment_records.count_blocks)
            block_count = count_blocks(tree.base, self.arrays, segments)
        if count + block_count > len(tree.kinds):
            raise self._hostile("its list of segments repeats the same blocks over and over")
        handle = tree.items.dtype
        columns = Columns(
            count, "i4", "i8", "i8", "i8", "i8", "i8", "i8", "u1", "i4", "u1", frames=handle
        )
        blocks = Columns(block_count, "i4", "i8", "i8", "i8", "u1", frames=handle)
        if segments is not None:
            ends = np.zeros(2, np.int64)
            self._compiled(segment_records.read_segments)(
                tree.form, tree.base, self.arrays, segments, columns.arrays, blocks.arrays,
                self.known_pools, segment_records.STATE_CODES, self.tallies, ends,
            )  # fmt: skip
            count, block_count = (int(end) for end in ends)
        return columns.cut(count), blocks.cut(block_count)

    def _events(self, histories: list[int | None]) -> Columns:
        tree = self.tree
        known = [history for history in histories if history is not None]
        count = sum(self._length(history) for history in known)
        if count > len(tree.kinds):
            raise self._hostile("its histories repeat the same events over and over")
        handle = tree.items.dtype.str
        columns = Columns(
            count, "i4", "u1", "i8", "i8", "i8", "i8", "i4",
            frames=handle, others=(handle, handle, handle, handle),
        )  # fmt: skip
        row = 0
        for device, history in enumerate(histories):
            if history is not None:
                row = self._compiled(event_records.read_events)(
                    tree.form, tree.base, self.arrays, history, device, row, columns.arrays,
                    self.known_pools, event_records.ACTION_CODES, self.tallies,
                )  # fmt: skip
        return columns.cut(row)

    def _tell_tallies(self) -> None:
        for place, problem in (
            (records.NOT_A_RECORD, "not_a_record"),
            (records.UNKNOWN_WORDS, "unknown_word"),
            (records.EXTRA_KEYS, "extra_keys"),
            (records.BAD_VALUES, "bad_value"),
            (records.POOLS_LOST, "too_many_pools"),
        ):
            self.problems.add(problem, int(self.tallies[place]))

    # -- stacks

    def _stacks(
        self, columns: list[Columns]
    ) -> tuple[list[Array], npt.NDArray[np.int32], pl.DataFrame]:
        """The number of each row's stack, the frames, and the table of stacks."""
        tree = self.tree
        dictionaries = int(np.count_nonzero(tree.kinds == DICT))
        lists = len(tree.kinds) - dictionaries
        numbers = np.full(len(tree.kinds), -1, np.int32)
        frames, frame_slots = np.empty(dictionaries, np.int32), _slots(dictionaries)
        found_stacks, stack_slots = np.empty(lists, np.int32), _slots(lists)
        state = np.zeros(stacks.STATE_FIELDS, np.int64)
        state[stacks.MOST_WORK] = _WORK_PER_BYTE * len(tree.data) + 1_000_000
        found = []
        for column in columns:
            of_row = np.empty(len(column.frames), np.uint32)
            self._compiled(stacks.intern_stacks)(
                tree.form, tree.base, self.arrays, column.frames, of_row, numbers,
                frames, frame_slots, found_stacks, stack_slots, state,
            )  # fmt: skip
            if state[stacks.WORK] >= state[stacks.MOST_WORK]:
                raise self._hostile("its stacks are made to take forever to compare")
            found.append(of_row)
        self.problems.add("odd_frame", int(state[stacks.ODD_FRAMES]))
        kept = found_stacks[: state[stacks.STACK_COUNT]]
        rows = self._compiled(stacks.count_frames)(self.arrays, kept)
        of_stack, of_frame = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
        rows = self._compiled(stacks.list_frames)(
            tree.base, self.arrays, kept, numbers, of_stack, of_frame
        )
        table = stacks_table(of_stack[:rows], of_frame[:rows], len(kept))
        return found, frames[: state[stacks.FRAME_COUNT]].copy(), table

    def _frames(self, frames: npt.NDArray[np.int32]) -> pl.DataFrame:
        tree = self.tree
        handle = tree.items.dtype
        names, filenames = np.empty(len(frames), handle), np.empty(len(frames), handle)
        lines, says_more = np.empty(len(frames), np.int64), np.empty(len(frames), np.bool_)
        self._compiled(stacks.read_frames)(
            tree.form, self.arrays, frames, names, filenames, lines, says_more
        )
        more: list[str | None] = [None] * len(frames)
        for row in np.flatnonzero(says_more)[:MOST_RICH_VALUES]:
            more[row] = self._more_of(int(frames[row]))
        self.problems.add("cut_value", max(int(says_more.sum()) - MOST_RICH_VALUES, 0))
        return pl.DataFrame(
            {
                "frame": np.arange(len(frames), dtype=np.uint32),
                "name": self._strings(names),
                "filename": self._strings(filenames),
                "line": known(lines),
                "more": pl.Series(more, dtype=pl.String),
            },
            schema=FRAMES,
        )

    def _more_of(self, frame: int) -> str | None:
        plain = Plain(self.tree, 200)
        value = plain.of(frame + self.tree.base)
        for key in ("name", "filename", "line"):
            value.pop(key, None)
        if plain.is_cut:
            self.problems.add("cut_value", 1)
        return as_json(value) if value else None

    def _strings(self, values: Array) -> pl.Series:
        """The texts of values of the tree, each decoded once."""
        distinct, places = np.unique(values, return_inverse=True)
        texts = [text_of(self.tree, int(value)) for value in distinct]
        lengths = np.array([len(text or "") for text in texts], np.int64)
        total = int(lengths[places].sum()) if len(places) else 0
        if total > len(self.tree.data) + _FREE_TEXT_BYTES:
            raise self._hostile(f"the names of its frames would take {total / 2**30:.1f} GiB")
        return pl.Series(texts, dtype=pl.String).gather(places.astype(np.uint32))

    # -- small parts

    def _events_table(self, columns: Columns, of_row: Array) -> pl.DataFrame:
        device, action, address, size, stream, time, pool, _, *others = columns.arrays
        is_oom, is_snapshot = (
            action == ACTION.categories.to_list().index(kind.value)
            for kind in (Action.OOM, Action.SNAPSHOT)
        )
        metadata, context, category, forward = (self.texts.of(column) for column in others)
        if self.texts.is_cut:
            self.problems.add("cut_value", 1)
        return pl.DataFrame(
            {
                "event": np.arange(len(action), dtype=np.int64),
                "device": device,
                "action": enum_of(action, ACTION),
                "address": known(np.where(is_oom | is_snapshot, MISSING, address)),
                "size_bytes": known(size),
                "stream": known(stream),
                "time_ns": known(time),
                "device_free_bytes": known(np.where(is_oom, address, MISSING)),
                "pool": known(pool, -1),
                "stack": known(of_row, stacks.NO_STACK),
                "metadata": metadata,
                "compile_context": context,
                "category": category,
                "forward_stack": forward,
            },
            schema=EVENTS,
        )

    def _pools(self) -> pl.DataFrame:
        pairs = self.known_pools.reshape(-1, 2)[1 : 1 + self.known_pools[0]]
        table: dict[str, Array] = {
            "pool": np.arange(len(pairs), dtype=np.int32),
            "first": pairs[:, 0].copy(),
            "second": pairs[:, 1].copy(),
        }
        return _table(table, POOLS)

    def _settings(self, sections: _Sections) -> dict[str, Any]:
        if not sections.settings:
            return {}
        plain = Plain(self.tree, _MOST_SETTINGS)
        value = plain.of(sections.settings)
        if plain.is_cut:
            self.problems.add("cut_value", 1)
        return value if isinstance(value, dict) else {}

    def _annotations(self, sections: _Sections) -> pl.DataFrame:
        rows: list[tuple[int, str, bool, int]] = []
        bad = 0
        if sections.annotations is not None:
            count = self._length(sections.annotations)
            self.problems.add("cut_value", max(count - _MOST_ANNOTATIONS, 0))
            for value in contained(self.tree, sections.annotations, _MOST_ANNOTATIONS):
                row = _annotation(Plain(self.tree, 40).of(value))
                bad += row is None
                rows += [] if row is None else [row]
        self.problems.add("not_a_record", bad)
        return pl.DataFrame(rows, schema=ANNOTATIONS, orient="row")


@dataclass(frozen=True)
class _Sections:
    """Where the parts of a file are: containers of the tree, and the value of the settings."""

    segments: int | None
    histories: list[int | None]
    annotations: int | None
    settings: int | None


def _annotation(value: Any) -> tuple[int, str, bool, int] | None:
    if not isinstance(value, dict):
        return None
    name, stage, device, time_us = (value.get(k) for k in ("name", "stage", "device", "time_us"))
    if not isinstance(name, str) or stage not in ("START", "END") or not isinstance(time_us, int):
        return None
    if not isinstance(device, int) or not 0 <= device < _MOST_DEVICES or abs(time_us) > 2**53:
        return None
    return device, name, stage == "START", time_us * 1000


def _table(columns: dict[str, Array], types: Types) -> pl.DataFrame:
    return pl.DataFrame(columns, schema=types)


def _slots(count: int) -> npt.NDArray[np.int32]:
    """A table of hashes, at most half full with so many entries."""
    return np.full(1 << max(2 * count, 2).bit_length(), -1, np.int32)
