"""Names and lanes of a file, numbered in order of first appearance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.categories import GPU_CATEGORIES, GPU_WORK, category_of, code_of
from stepscope.trace.classify import classify_names
from stepscope.trace.formats.chrome.rows import (
    HAS_DEVICE,
    HAS_FLOW,
    HAS_STREAM,
    IS_ASYNCHRONOUS,
    LARGEST_DEVICE,
    LanePair,
    NamePair,
    Rows,
    Vocabulary,
)
from stepscope.trace.schema import CATEGORY, LANES, NAMES, Category

_CATEGORIES = list(Category)
_CATEGORY_VALUES = pl.Series("category", [category.value for category in _CATEGORIES], CATEGORY)

IS_GPU_CATEGORY = np.array([category in GPU_CATEGORIES for category in _CATEGORIES])
"""For each category code, whether its events are on GPU lanes."""
IS_GPU_WORK = np.array([category in GPU_WORK for category in _CATEGORIES])
"""For each category code, whether its events are GPU work."""


def categories_of(code: npt.NDArray[np.uint8]) -> pl.Series:
    """Returns the categories for codes."""
    return _CATEGORY_VALUES[code]


class NamesAndLanes:
    """The names and lanes of one file, with their numbers and properties.

    Attributes:
        process_names: By pid.
        thread_names: By pid and tid.
    """

    def __init__(self) -> None:
        self.process_names: dict[str | None, str] = {}
        self.thread_names: dict[LanePair, str] = {}
        self._names: dict[NamePair, int] = {}
        self._lanes: dict[LanePair, int] = {}
        self._name_code: list[int] = []  # category code of each name
        self._lane_device: list[int] = []  # by lane, from the pid; -1: none
        self._lane_stream: list[int] = []  # by lane, from the tid; -1: none
        self._gpu_lanes: dict[int, tuple[int | None, int | None]] = {}

    def name_ids(self, rows: Rows, named: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
        """Returns the number of each row's name; 0 for rows that are not `named`."""
        for index in _first_appearances(rows.name[named], rows.names.found_in(self._names)):
            self._add_name(rows.names.pairs[index])
        return _numbers(rows.names.found_in(self._names), rows.name)

    def lane_ids(self, rows: Rows, named: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
        """Returns the number of each row's lane; 0 for rows that are not `named`."""
        lanes, of_row = _with_asynchronous_lanes(rows)
        for index in _first_appearances(of_row[named], lanes.found_in(self._lanes)):
            self._add_lane(lanes.pairs[index])
        return _numbers(lanes.found_in(self._lanes), of_row)

    def _add_name(self, pair: NamePair) -> None:
        if pair not in self._names:  # a name can be escaped in two ways
            self._names[pair] = len(self._names)
            self._name_code.append(code_of(category_of(pair[1])))

    def _add_lane(self, pair: LanePair) -> None:
        if pair not in self._lanes:
            self._lanes[pair] = len(self._lanes)
            device, stream = map(_lane_number, pair)
            self._lane_device.append(device if device <= LARGEST_DEVICE else -1)
            self._lane_stream.append(stream)

    def codes_of(self, name_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Returns the category code of each name."""
        return np.array(self._name_code or [0], np.uint8)[name_id]

    def devices_and_streams(
        self,
        rows: Rows,
        at: npt.NDArray[np.intp] | slice,
        lane_id: npt.NDArray[np.uint32],
        is_gpu: npt.NDArray[np.bool_],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns device and stream of GPU events, from the arguments, else from pid and tid.

        Args:
            at: The rows of interest.

        Returns:
            Devices and streams, with -1 for none.
        """
        device, stream = np.full((2, len(is_gpu)), -1)
        on_gpu = np.flatnonzero(is_gpu)
        flags, lane = rows.flags[at][on_gpu], lane_id[on_gpu]
        lane_device = np.array(self._lane_device or [-1], np.int64)[lane]
        lane_stream = np.array(self._lane_stream or [-1], np.int64)[lane]
        own = np.where((flags & HAS_DEVICE) != 0, rows.device[at][on_gpu], lane_device)
        device[on_gpu] = np.where((own >= 0) & (own <= LARGEST_DEVICE), own, -1)
        own = np.where((flags & HAS_STREAM) != 0, rows.stream[at][on_gpu], lane_stream)
        stream[on_gpu] = np.maximum(own, -1)
        return device, stream

    def mark_gpu_lanes(self, events: pl.DataFrame) -> None:
        """Makes the lanes of GPU events GPU lanes, with device and stream of their first event."""
        code = self.codes_of(events["name_id"].to_numpy())
        on_gpu = np.flatnonzero(IS_GPU_CATEGORY[code])
        lanes, first = np.unique(events["lane_id"].to_numpy()[on_gpu], return_index=True)
        for lane, row in zip(lanes.tolist(), on_gpu[first].tolist(), strict=True):
            if lane not in self._gpu_lanes:
                self._gpu_lanes[lane] = events["device"][row], events["stream"][row]

    def take_description(self, name: str, lane: LanePair, text: str | None) -> bool:
        """Takes the name of a process or thread from a metadata event; False if it has none."""
        if name not in ("process_name", "thread_name"):
            return False
        value = object_of(text).get("name")
        if not isinstance(value, str):
            return False
        if name == "process_name":
            self.process_names[lane[0]] = value
        else:
            self.thread_names[lane] = value
        return True

    def names_table(self) -> pl.DataFrame:
        """Returns the table `names`, classified."""
        names = list(self._names)
        table = pl.DataFrame(
            {
                "name_id": np.arange(len(names), dtype=np.uint32),
                "name": pl.Series([name for name, _ in names], dtype=pl.String),
                "raw_category": pl.Series([category for _, category in names], dtype=pl.String),
                "category": categories_of(np.array(self._name_code, np.uint8)),
            }
        ).with_columns(
            # VizTracer's frames, as torch writes them.
            name=pl.when(pl.col("raw_category").str.to_lowercase() == "fee")
            .then(pl.col("name").str.replace(r"^(.*) \((.*):(\d+)\)$", "$2($3): $1"))
            .otherwise("name")
        )
        return classify_names(table).select(list(NAMES)).cast(NAMES)  # type: ignore[arg-type]

    def lanes_table(self) -> pl.DataFrame:
        """Returns the table `lanes`."""
        pairs: Sequence[LanePair] = list(self._lanes)
        nothing = (None, None)
        gpu = [self._gpu_lanes.get(lane, nothing) for lane in range(len(pairs))]
        return pl.DataFrame(
            {
                "lane_id": np.arange(len(pairs), dtype=np.uint32),
                "pid": [pid for pid, _ in pairs],
                "tid": [tid for _, tid in pairs],
                "is_gpu": [lane in self._gpu_lanes for lane in range(len(pairs))],
                "device": [device for device, _ in gpu],
                "stream": [stream for _, stream in gpu],
                "process_name": [self.process_names.get(pid) for pid, _ in pairs],
                "thread_name": [self.thread_names.get(pair) for pair in pairs],
            },
            schema=LANES,
        )


def object_of(text: str | None) -> dict[str, Any]:
    """Parses a JSON object; empty if the text is not one."""
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}


def _lane_number(text: str | None) -> int:
    """Returns the number in a pid or tid: `7`, or `stream 7` in 2021; -1 for none."""
    if text is None:
        return -1
    digits = text.removeprefix("stream ").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else -1


def _numbers(known: npt.NDArray[np.int64], words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """Returns the number of each row's word; 0 for words without one, which are in no table."""
    return known.clip(0).astype(np.uint32)[words]


def _first_appearances(ids: npt.NDArray[np.int32], known: npt.NDArray[np.int64]) -> Sequence[int]:
    """Returns the `ids` that are new (-1 in `known`), in order of appearance."""
    if not len(known) or known.min() >= 0:
        return []
    new = ids[known[ids] < 0]
    distinct, first = np.unique(new, return_index=True)
    return [int(index) for index in distinct[np.argsort(first)]]


def _with_asynchronous_lanes(
    rows: Rows,
) -> tuple[Vocabulary[LanePair], npt.NDArray[np.int32]]:
    """Returns the lanes of rows, with a separate lane for each id of asynchronous events."""
    at = np.flatnonzero(IS_ASYNCHRONOUS[rows.phase])
    if not len(at):
        return rows.lanes, rows.lane
    lanes = Vocabulary(rows.lanes.pairs)
    added: dict[LanePair, int] = {}
    of_row = rows.lane.copy()
    for index in at.tolist():
        pid, tid = rows.lanes.pairs[int(rows.lane[index])]
        category = rows.names.pairs[int(rows.name[index])][1]
        number = int(rows.flow_id[index]) if rows.flags[index] & HAS_FLOW else f"tid {tid}"
        key = (pid, f"async {category or ''}:{number}")
        if key not in added:
            added[key] = len(lanes)
            lanes.pairs.append(key)
        of_row[index] = added[key]
    return lanes, of_row
