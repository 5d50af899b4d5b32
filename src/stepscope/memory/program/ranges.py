"""Ranges of the program: steps and phases, from annotations in a snapshot, or from its stacks.

torch's recorder keeps beginnings and ends of the program's annotations with their times: of steps
(`ProfilerStep#7`), of optimizers (`Optimizer.step#AdamW.step`), of loaders
(`enumerate(DataLoader)#…`), and whatever the program marks itself.

Where the program marks no steps, the stacks of its requests show them. An optimizer's step makes
temporaries, and its first one the state: what comes between two of these is one step. Where the
optimizer allocates nothing (fused ones do not, after the first step), a stack that comes again and
again at even distances is where each step begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import numpy as np
import polars as pl

from stepscope.memory.program.lines import lines_of, stacks_with
from stepscope.memory.schema import Action, Snapshot, Types
from stepscope.trace.derive.nesting import innermost_at


class Phase(str, Enum):
    """What a training step is made of."""

    INPUT = "input"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    CHECKPOINT = "checkpoint"


PHASE = pl.Enum([member.value for member in Phase])

RANGES: Types = {
    "range": pl.Int32,  # row number, from 0, in order of beginnings
    "device": pl.Int32,
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,  # null: the snapshot was taken within it
    "depth": pl.Int32,  # how many ranges of the device it is in
    "step": pl.Int64,  # of a step, its number
    "phase": PHASE,  # what the name stands for; null: nothing known
}
"""One row per range."""

_OPTIMIZER_STEP = r"^Optimizer\.step#"
_STEP = re.compile(r"^(?:ProfilerStep#|step[ _#:]*)(\d+)$", re.IGNORECASE)
_PHASES = tuple(
    (phase, re.compile(words, re.IGNORECASE))
    for phase, words in (
        (Phase.OPTIMIZER, r"optimi[sz]er|zero_grad"),
        (Phase.INPUT, r"dataload|data_load|fetch|next_batch"),
        (Phase.BACKWARD, r"backward|\bbwd\b"),
        (Phase.FORWARD, r"forward|\bfwd\b"),
        (Phase.COMMUNICATION, r"all_?reduce|all_?gather|reduce_?scatter|nccl|c10d"),
        (Phase.CHECKPOINT, r"save_checkpoint|checkpoint_save|state_dict"),
    )
)


_OPTIMIZERS_FILES = (
    r"(?:torch/optim|bitsandbytes/optim|apex/optimizers|deepspeed/(?:ops|runtime)|torchao/optim|"
    r"galore|muon)[^:]*:(?:_?step\w*|_\w*_tensor_\w+|_fused_\w+|_init_group|update\w*)$"
)
_FEWEST = 3
_LEAST_FREED = 0.5
"""Of the requests: what must be freed again. What loads a model repeats itself as well."""
_UNEVEN = 0.35
"""Standard deviation of the distances between steps, as a part of their mean."""
_SPAN = 0.5
"""Of the history: what the steps must at least be spread over."""

STEPS: Types = {
    "device": pl.Int32,
    "step": pl.Int64,  # from 0 on each device
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""One row per step that ended, in order of time."""


@dataclass(frozen=True)
class DerivedSteps:
    """Steps that nobody marked.

    Attributes:
        table: With the columns of `STEPS`.
        basis: A phrase on how they are known; empty without steps.
    """

    table: pl.DataFrame
    basis: str = ""


@dataclass(frozen=True)
class Ranges:
    """The ranges of a snapshot.

    Attributes:
        table: With the columns of `RANGES`.
        unmatched: Ends without a beginning, which were left out.
        derived: Steps from the stacks of requests, for where the program marked none.
    """

    table: pl.DataFrame
    unmatched: int
    derived: DerivedSteps

    @property
    def steps(self) -> pl.DataFrame:
        """The steps: device, step, start_ns, end_ns; in order of time.

        They are the ranges that are named as steps. A step without an end lasts to the beginning
        of the next. Where no range is named so, each call of the first optimizer ends a step:
        torch marks these by itself. Where it marked none either, they are those of `derived`.
        """
        steps = self.table.filter(pl.col("step").is_not_null()).sort("device", "start_ns")
        if steps.is_empty():
            steps = self._steps_by_optimizer()
            return self.derived.table if steps.is_empty() else steps
        following = pl.col("start_ns").shift(-1).over("device")
        return steps.select("device", "step", "start_ns", pl.coalesce("end_ns", following))

    @property
    def steps_basis(self) -> str:
        """How steps are known that the program did not mark; empty where it did."""
        return self.derived.basis

    def _steps_by_optimizer(self) -> pl.DataFrame:
        calls = self.table.filter(
            pl.col("name").str.contains(_OPTIMIZER_STEP) & pl.col("end_ns").is_not_null()
        ).sort("device", "start_ns")
        first = calls.group_by("device", maintain_order=True).agg(
            pl.col("name").first().alias("first_name")
        )
        begins = self.table.group_by("device").agg(pl.col("start_ns").min().alias("begin_ns"))
        return (
            calls.join(first, on="device", maintain_order="left")
            .filter(pl.col("name") == pl.col("first_name"))
            .join(begins, on="device", maintain_order="left")
            .select(
                "device",
                pl.int_range(pl.len(), dtype=pl.Int64).over("device").alias("step"),
                pl.col("end_ns")
                .shift(1)
                .over("device")
                .fill_null(pl.col("begin_ns"))
                .alias("start_ns"),
                "end_ns",
            )
        )


def ranges_of(snapshot: Snapshot) -> Ranges:
    """Pairs beginnings and ends.

    On each device an end closes the innermost open range of its name.
    """
    rows: list[list[object]] = []
    open_ranges: dict[int, list[int]] = {}
    unmatched = 0
    for device, name, is_start, time_ns in snapshot.annotations.iter_rows():
        stack = open_ranges.setdefault(device, [])
        if is_start:
            stack.append(len(rows))
            rows.append([device, name, time_ns, None, len(stack) - 1])
            continue
        place = next((k for k in reversed(range(len(stack))) if rows[stack[k]][1] == name), None)
        if place is None:
            unmatched += 1
            continue
        rows[stack.pop(place)][3] = time_ns
    columns = ["device", "name", "start_ns", "end_ns", "depth"]
    table = pl.DataFrame(
        rows, schema={column: RANGES[column] for column in columns}, orient="row"
    ).with_row_index("range")
    names = table["name"].to_list()
    has_steps = any(_STEP.match(name) or re.match(_OPTIMIZER_STEP, name) for name in names)
    return Ranges(
        table.with_columns(
            step=pl.Series([_step_number(name) for name in names], dtype=pl.Int64),
            phase=pl.Series([phase_of(name) for name in names], dtype=PHASE),
        ).select(pl.col(column).cast(kind) for column, kind in RANGES.items()),
        unmatched,
        DerivedSteps(pl.DataFrame(schema=STEPS)) if has_steps else _derived_steps(snapshot),
    )


def _step_number(name: str) -> int | None:
    found = _STEP.match(name)
    return int(found[1][:18]) if found else None


def phase_of(name: str) -> str | None:
    """The phase that the name of a range stands for; None where it tells none."""
    if _STEP.match(name):
        return None
    return next((phase.value for phase, words in _PHASES if words.search(name)), None)


def innermost(ranges: pl.DataFrame, device: pl.Series, time_ns: pl.Series) -> pl.Series:
    """The innermost of some ranges at each time, as a row number of `ranges`; null: none.

    The ranges are rows of `RANGES` that nest on each device; no range is around a time that is
    null.
    """
    found = np.full(len(device), -1, np.int64)
    devices, times = device.to_numpy(), time_ns.fill_null(-(2**62)).to_numpy()
    for number in ranges["device"].unique().to_list():
        mine = ranges.with_row_index("row").filter(pl.col("device") == number)
        # What is innermost at a boundary is so until the next: moments are many, ranges few.
        begins, ends = mine["start_ns"].to_numpy(), mine["end_ns"].fill_null(2**61).to_numpy()
        cuts = np.unique(np.concatenate((begins, ends)))
        lanes = np.zeros(len(mine) + len(cuts), np.int64)
        holder = innermost_at(lanes[: len(mine)], begins, ends, lanes[len(mine) :], cuts)
        rows = np.append(mine["row"].to_numpy().astype(np.int64), -1)
        of_device = np.flatnonzero(devices == number)
        place = np.searchsorted(cuts, times[of_device], side="right") - 1
        found[of_device] = rows[np.append(holder, -1)[place]]
    series = pl.Series(found)
    return series.set(series < 0, None)


# -- steps that nobody marked


def _derived_steps(snapshot: Snapshot) -> DerivedSteps:
    """The steps of each device; none where too little repeats, or the events have no times."""
    requests = (
        snapshot.events.filter(pl.col("action") == Action.ALLOC.value)
        .select("device", "time_ns", "stack")
        .drop_nulls()
        .collect()
    )
    freed: dict[object, int] = dict(
        snapshot.events.filter(pl.col("action") == Action.FREE_COMPLETED.value)
        .group_by("device")
        .len()
        .collect()
        .iter_rows()
    )
    if requests.is_empty():
        return DerivedSteps(pl.DataFrame(schema=STEPS))
    of_optimizer = stacks_with(snapshot, _OPTIMIZERS_FILES)
    tables, bases = [], []
    devices = requests["device"].unique(maintain_order=True)
    for device in devices:
        mine = requests if len(devices) == 1 else requests.filter(pl.col("device") == device)
        cuts, basis = _by_optimizer(mine, of_optimizer), "each ends with the optimizer's requests"
        is_loop = freed.get(device, 0) >= _LEAST_FREED * len(mine)
        if len(cuts) <= _FEWEST and is_loop:
            cuts, basis = _by_period(mine, snapshot)
        if len(cuts) <= _FEWEST:
            continue
        bases.append(basis)
        tables.append(
            pl.DataFrame(
                {
                    "device": [device] * (len(cuts) - 1),
                    "step": range(len(cuts) - 1),
                    "start_ns": cuts[:-1],
                    "end_ns": cuts[1:],
                },
                schema=STEPS,
            )
        )
    if not tables:
        return DerivedSteps(pl.DataFrame(schema=STEPS))
    return DerivedSteps(pl.concat(tables).sort("device", "start_ns"), bases[0])


def _by_optimizer(requests: pl.DataFrame, of_optimizer: pl.Series) -> list[int]:
    """When the steps end, after the beginning of the first."""
    times = requests["time_ns"].to_numpy()
    inside = of_optimizer.gather(requests["stack"]).to_numpy()
    is_last = inside & ~np.append(inside[1:], False)
    ends = times[is_last].tolist()
    return [int(times[0]), *ends]


def _by_period(requests: pl.DataFrame, snapshot: Snapshot) -> tuple[list[int], str]:
    """When the steps begin, and how that is known."""
    placed = requests.with_row_index("place")
    counts = (
        placed.group_by("stack")
        .agg(pl.len().alias("count"), pl.col("place").min().alias("first"))
        .filter(pl.col("count") > _FEWEST)
    )
    # What a loop does in each turn has as many requests as the loop has turns. Of the numbers that
    # most stacks share, the first that comes evenly is that of the steps.
    groups = (
        counts.group_by("count")
        .agg(pl.len().alias("stacks"), pl.col("stack").sort_by("first").first())
        .sort("stacks", "count", descending=[True, False])
    )
    for stack in groups["stack"].to_list():
        rows = placed.filter(pl.col("stack") == stack)
        places = rows["place"].to_numpy().astype(np.int64)
        gaps = np.diff(places)[1:]  # the first step may do more than the others
        is_even = gaps.std() <= _UNEVEN * gaps.mean()
        if gaps.mean() > 1 and is_even and places[-1] - places[0] >= _SPAN * len(placed):
            line = lines_of(snapshot)["line"][stack]
            return rows["time_ns"].to_list(), f"each begins where {line} allocates"
    return [], ""
