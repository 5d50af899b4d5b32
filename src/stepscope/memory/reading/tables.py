"""The tables of a snapshot, from the tree of its file. What they mean: `stepscope.memory.schema`.

Every variant of the schema since torch 2.0 is understood: blocks with a history and without an
address, events without a time, pools as tuples or lists, state without events, a bare list of
segments. What a file does not say becomes null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.memory.reading import records, stacks
from stepscope.memory.reading.keywords import NUMBERS, UNSET
from stepscope.memory.reading.records import NO_CODE, Dictionaries, Records, dictionaries_in
from stepscope.memory.reading.tree import DICT, Tree
from stepscope.memory.reading.values import (
    MISSING,
    MOST_RICH_VALUES,
    Plain,
    Texts,
    as_json,
    contained,
    text_of,
)
from stepscope.memory.schema import (
    ACTION,
    ANNOTATIONS,
    BLOCK_STATE,
    BLOCKS,
    EVENTS,
    FRAMES,
    HOST_BYTES,
    POOLS,
    PROBLEMS,
    SEGMENTS,
    Action,
    Snapshot,
)
from stepscope.trace.arrays.nullable import nullable
from stepscope.trace.machine.jit import jit

_MOST_DEVICES = 4096
_HIGHEST_DEVICE = 2**31 - 1
_MOST_ANNOTATIONS = 1_000_000
_MOST_SETTINGS = 2_000
_FREE_TEXT_BYTES = 64 * 1024 * 1024
_OTHER_ACTION = ACTION.categories.to_list().index(Action.OTHER.value)

MESSAGES = {
    "not_a_record": "entries that are no events, segments, blocks or annotations were skipped",
    "unknown_word": "actions and states that this version does not know: such events are kept as "
    "'other', such blocks as allocated",
    "extra_keys": "keys that the tables have no place for were not kept",
    "bad_value": "numbers that are negative or not whole were left out",
    "too_many_pools": "events of more than a thousand pools: the pool of the others is not known",
    "odd_frame": "entries of stacks that are no frames were left out",
    "cut_value": "values that are too long, or nested too deep, were cut",
    "host_memory": "events of pinned host memory were not kept",
}
"""Every kind of problem and what was done about it."""

Array = npt.NDArray[Any]


def tables_of(tree: Tree, name: str, progress: Callable[[int], None] | None = None) -> Snapshot:
    """Reads the tables.

    `progress` is called with numbers of bytes that were converted: each byte once.
    """
    return _Reader(tree, name, progress).read()


@dataclass(frozen=True)
class _Sections:
    """Where the parts of a file are: containers of the tree, and the value of the settings."""

    segments: int | None
    histories: dict[int, int]  # by device
    annotations: int | None
    settings: int
    host_segments: int | None


class _Reader:
    def __init__(self, tree: Tree, name: str, progress: Callable[[int], None] | None) -> None:
        self.tree = tree
        self.name = name
        self._progress = progress
        self.problems: Counter[str] = Counter()
        self.tallies = np.zeros(records.TALLIES, np.int64)
        self.known_pools = records.no_pools()
        self.texts = Texts(tree)

    def read(self) -> Snapshot:
        sections = self._sections()
        segments, blocks, segment_of = self._segments(sections.segments)
        events, device_of = self._events(sections.histories)
        self._advance()
        frames_of = [events["frames"], blocks["frames"], segments["frames"]]
        interned = stacks.interned(self.tree, frames_of)
        if interned is None:
            raise self._hostile("its stacks are made to take forever to compare")
        self.problems["odd_frame"] += interned.odd_frames
        found, frames = interned.of_rows, interned.frames
        self._advance()
        for place, problem in (
            (records.EXTRA_KEYS, "extra_keys"),
            (records.BAD_VALUES, "bad_value"),
            (records.POOLS_LOST, "too_many_pools"),
        ):
            self.problems[problem] += int(self.tallies[place])
        tables = {
            "events": self._events_table(events, device_of, found[0]).lazy(),
            "segments": _segments_table(segments, found[2]),
            "blocks": self._blocks_table(blocks, segments, segment_of, found[1]),
            "frames": self._frames(frames),
            "stacks": interned.table,
            "pools": self._pools(),
            "annotations": self._annotations(sections.annotations),
        }
        settings = self._settings(sections.settings)
        if sections.host_segments is not None and (host := self._host(sections.host_segments)):
            settings[HOST_BYTES] = host
        problems = [(kind, n, MESSAGES[kind]) for kind, n in sorted(self.problems.items()) if n]
        return Snapshot(
            path=self.name,
            **tables,  # type: ignore[arg-type]
            texts=self.texts.table(),
            problems=pl.DataFrame(problems, schema=PROBLEMS, orient="row"),
            settings=settings,
        )

    def _compiled(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        return jit(loop, self.tree.items.dtype)

    def _advance(self) -> None:
        """Reports a third of the work."""
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
            return _Sections(root, {}, None, UNSET, None)
        content = contained(tree, root, 200)
        parts = dict(zip(content[::2], content[1::2], strict=False))

        def list_under(key: str) -> int | None:
            return self._list(parts.get(NUMBERS[key], UNSET))

        segments, traces = list_under("segments"), list_under("device_traces")
        if segments is None and traces is None:
            raise self._no_snapshot()
        if segments is not None:
            self._check_segments(segments)
        histories = {}
        values = [] if traces is None else contained(tree, traces, _MOST_DEVICES)
        for device, value in enumerate(values[:_MOST_DEVICES]):
            history = self._list(value)
            if history is None:
                self.problems["not_a_record"] += 1
            else:
                histories[device] = history
        host, host_traces = list_under("host_segments"), list_under("host_traces")
        if host_traces is not None:
            self.problems["host_memory"] += self._entries(host_traces)
        settings = parts.get(NUMBERS["allocator_settings"], UNSET)
        return _Sections(segments, histories, list_under("external_annotations"), settings, host)

    def _list(self, value: int) -> int | None:
        container = value - self.tree.base
        return container if container >= 0 and self.tree.kinds[container] != DICT else None

    def _length(self, *lists: int) -> int:
        count = self._compiled(records.count_values)
        return int(count(self.tree.arrays, np.array(lists, np.int32)))

    def _entries(self, container: int) -> int:
        """How many entries a list has, or the lists in it."""
        inner = [self._list(value) for value in contained(self.tree, container, _MOST_DEVICES)]
        return sum(1 if one is None else self._length(one) for one in inner)

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

    def _dictionaries(self, lists: Array, what: str) -> Dictionaries:
        """The records in some lists; there are no more than the file has containers."""
        found = dictionaries_in(self.tree, lists.astype(np.int32), len(self.tree.kinds))
        if found is None:
            raise self._hostile(f"{what} over and over")
        self.problems["not_a_record"] += found.others
        return found

    def _records(self, schema: records.RecordSchema, containers: Array) -> Records:
        return Records(self.tree, schema, containers, self.known_pools, self.tallies)

    def _segments(self, segments: int | None) -> tuple[Records, Records, Array]:
        """Segments, blocks, and the row of each block's segment."""
        tree = self.tree
        what = "its list of segments repeats the same blocks"
        lists = np.array([] if segments is None else [segments])
        found = self._records(records.SEGMENT, self._dictionaries(lists, what).containers)
        blocks_of = found["blocks"].astype(np.int64) - tree.base
        rows = np.flatnonzero(blocks_of >= 0)
        rows = rows[tree.kinds[blocks_of[rows]] != DICT]
        inside = self._dictionaries(blocks_of[rows], what)
        blocks = self._records(records.BLOCK, inside.containers)
        self._add_uses(blocks)
        return found, blocks, rows[inside.owners]

    def _host(self, segments: int) -> int:
        """What was reserved of pinned host memory."""
        what = "its host segments repeat the same entries"
        containers = self._dictionaries(np.array([segments]), what).containers
        apart = np.zeros(records.TALLIES, np.int64)  # the form of the entries may change
        found = Records(self.tree, records.SEGMENT, containers, records.no_pools(), apart)
        size = found["total_size"]
        return int(size[size != MISSING].sum())

    def _add_uses(self, blocks: Records) -> None:
        """What the blocks of torch 2.0 say in a history: their last use is its first entry."""
        tree = self.tree
        rows = np.flatnonzero(blocks["history"].astype(np.int64) >= tree.base)
        chunks = tree.firsts[blocks["history"][rows].astype(np.int64) - tree.base]
        rows, chunks = rows[chunks >= 0], chunks[chunks >= 0]
        entries = tree.items[tree.starts[chunks]].astype(np.int64) - tree.base
        rows, entries = rows[entries >= 0], entries[entries >= 0]
        is_record = tree.kinds[entries] == DICT
        rows = rows[is_record]
        uses = self._records(records.USE_OF_BLOCK, entries[is_record].astype(np.int32))
        asked = blocks["requested_size"]
        asked[rows] = np.where(asked[rows] == MISSING, uses["real_size"], asked[rows])
        blocks["frames"][rows] = uses["frames"]

    def _events(self, histories: dict[int, int]) -> tuple[Records, Array]:
        what = "its histories repeat the same events"
        found = self._dictionaries(np.array(list(histories.values())), what)
        devices = np.array([*histories, 0], np.int32)
        return self._records(records.EVENT, found.containers), devices[found.owners]

    # -- stacks

    def _frames(self, frames: npt.NDArray[np.int32]) -> pl.DataFrame:
        tree = self.tree
        handle = tree.items.dtype
        names, filenames = np.empty(len(frames), handle), np.empty(len(frames), handle)
        lines, says_more = np.empty(len(frames), np.int64), np.empty(len(frames), np.bool_)
        self._compiled(stacks.read_frames)(tree.arrays, frames, names, filenames, lines, says_more)
        more: list[str | None] = [None] * len(frames)
        for row in np.flatnonzero(says_more)[:MOST_RICH_VALUES]:
            more[row] = self._more_of(int(frames[row]))
        self.problems["cut_value"] += max(int(says_more.sum()) - MOST_RICH_VALUES, 0)
        return pl.DataFrame(
            {
                "frame": np.arange(len(frames), dtype=np.uint32),
                "name": self._strings(names),
                "filename": self._strings(filenames),
                "line": _known(lines),
                "more": pl.Series(more, dtype=pl.String),
            },
            schema=FRAMES,
        )

    def _more_of(self, frame: int) -> str | None:
        plain = Plain(self.tree, 200)
        value = plain.of(frame + self.tree.base)
        for key in ("name", "filename", "line"):
            value.pop(key, None)
        self.problems["cut_value"] += plain.is_cut
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

    # -- tables

    def _events_table(self, events: Records, device_of: Array, of_row: Array) -> pl.DataFrame:
        action = events["action"]
        self.problems["unknown_word"] += int((action == NO_CODE).sum())
        action = np.where(action == NO_CODE, _OTHER_ACTION, action)
        names = ACTION.categories.to_list()
        is_snapshot = action == names.index(Action.SNAPSHOT.value)
        is_oom = action == names.index(Action.OOM.value)
        address = events["addr"]  # of a failed request: what the device had free
        texts = [self.texts.of(events[key]) for key in ("user_metadata", "category")]
        self.problems["cut_value"] += self.texts.is_cut
        return pl.DataFrame(
            {
                "event": np.arange(len(action), dtype=np.int64),
                "device": device_of,
                "action": _enum_of(action, ACTION),
                "address": _known(np.where(is_oom | is_snapshot, MISSING, address)),
                "size_bytes": _known(events["size"]),
                "stream": _known(events["stream"]),
                "time_ns": _known(events["time_us"]),
                "device_free_bytes": _known(np.where(is_oom, address, MISSING)),
                "pool": _known(events["pool_id"], records.NO_POOL),
                "stack": _known(of_row, stacks.NO_STACK),
                "metadata": texts[0],
                "category": texts[1],
            },
            schema=EVENTS,
        )

    def _blocks_table(
        self, blocks: Records, segments: Records, segment_of: Array, of_row: Array
    ) -> pl.DataFrame:
        size, state = blocks["size"], blocks["state"]
        self.problems["bad_value"] += int((size == MISSING).sum())
        self.problems["unknown_word"] += int((state == NO_CODE).sum())
        size = np.where(size == MISSING, 0, size)
        address = _added_up(blocks["address"], size, segments["address"], segment_of)
        return pl.DataFrame(
            {
                "block": np.arange(len(size), dtype=np.int64),
                "segment": segment_of,
                "address": _known(address),
                "size_bytes": size,
                "requested_bytes": _known(blocks["requested_size"]),
                "state": _enum_of(np.where(state == NO_CODE, 0, state), BLOCK_STATE),
                "stack": _known(of_row, stacks.NO_STACK),
            },
            schema=BLOCKS,
        )

    def _pools(self) -> pl.DataFrame:
        pairs = self.known_pools.reshape(-1, 2)[1 : 1 + self.known_pools[0]]
        columns = {
            "pool": np.arange(len(pairs)), "first": pairs[:, 0].copy(), "second": pairs[:, 1].copy()
        }  # fmt: skip
        return pl.DataFrame(columns, schema=POOLS)

    def _settings(self, settings: int) -> dict[str, Any]:
        if settings == UNSET:
            return {}
        plain = Plain(self.tree, _MOST_SETTINGS)
        value = plain.of(settings)
        self.problems["cut_value"] += plain.is_cut
        return value if isinstance(value, dict) else {}

    def _annotations(self, annotations: int | None) -> pl.DataFrame:
        rows: list[tuple[int, str, bool, int]] = []
        if annotations is not None:
            self.problems["cut_value"] += max(self._length(annotations) - _MOST_ANNOTATIONS, 0)
            for value in contained(self.tree, annotations, _MOST_ANNOTATIONS):
                row = _annotation(Plain(self.tree, 40).of(value))
                if row is None:
                    self.problems["not_a_record"] += 1
                else:
                    rows.append(row)
        return pl.DataFrame(rows, schema=ANNOTATIONS, orient="row")


def _added_up(address: Array, size: Array, segment_address: Array, segment_of: Array) -> Array:
    """Addresses of blocks; one that the file leaves out begins where the block before it ends."""
    is_known = address != MISSING
    if is_known.all():
        return address
    rows = np.arange(len(address))
    is_first = np.diff(segment_of, prepend=-1) != 0
    anchor = np.maximum.accumulate(np.where(is_known | is_first, rows, 0))
    begin = np.where(is_known[anchor], address[anchor], segment_address[segment_of])
    before = np.cumsum(size) - size
    return np.where(begin == MISSING, MISSING, begin + before - before[anchor])


def _segments_table(segments: Records, of_row: Array) -> pl.DataFrame:
    device = segments["device"]
    large = segments["segment_type"]
    return pl.DataFrame(
        {
            "segment": np.arange(len(device), dtype=np.int32),
            "device": np.where(device == MISSING, 0, np.minimum(device, _HIGHEST_DEVICE)),
            "address": _known(segments["address"]),
            "size_bytes": _known(segments["total_size"]),
            "stream": _known(segments["stream"]),
            "is_large": _known(large, NO_CODE).cast(pl.Boolean),
            "pool": _known(segments["segment_pool_id"], records.NO_POOL),
            "is_expandable": pl.Series(segments["is_expandable"] == 1),
            "stack": _known(of_row, stacks.NO_STACK),
        },
        schema=SEGMENTS,
    )


def _known(values: Array, missing: int = MISSING) -> pl.Series:
    """A column of numbers, with null for the one that stands for it."""
    return nullable(values, values != missing, "")


def _enum_of(codes: Array, kind: pl.Enum) -> pl.Series:
    return pl.Series(kind.categories, dtype=kind).gather(codes)


def _annotation(value: Any) -> tuple[int, str, bool, int] | None:
    if not isinstance(value, dict):
        return None
    name, stage, device, time_us = (value.get(k) for k in ("name", "stage", "device", "time_us"))
    if not isinstance(name, str) or stage not in ("START", "END") or not isinstance(time_us, int):
        return None
    if not isinstance(device, int) or not 0 <= device < _MOST_DEVICES or abs(time_us) > 2**53:
        return None
    return device, name, stage == "START", time_us * 1000
