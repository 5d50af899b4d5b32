"""Will it fit: the peak if more ranks share the model's state (ZeRO, FSDP).

Each rank then holds its part of the optimizer's state, of the gradients too, or of the parameters
as well; activations, inputs and temporaries stay as they are. The bytes of the divided categories
are divided in the recorded history, which is replayed through the model of the allocator.

What travels needs room, too. A unit is what is gathered or reduced at once: the parameters of one
numbered block of the model ("layers.3"), or of one module at its top. With gradients divided, the
whole gradient of the largest unit exists until it is reduced; with parameters divided, two units
are gathered at a time besides, the present one and the next. These buffers are stated, and held for
the whole of the history. Of a run that is sharded already the recording has them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.bounded import (
    Peaks,
    Run,
    observed_peaks,
    predicted_peaks,
)
from stepscope.memory.questions.composition import peak
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import EXACT_SIZES, Types
from stepscope.run.figures import percent

_USUAL_TARGETS = (2.0, 4.0, 8.0)
_BLOCK = re.compile(r"^(?:.*?\.)?\d+(?=\.)")
_NOTABLE = 0.01

_STATE = MemoryCategory.OPTIMIZER_STATE.value
_GRADIENT = MemoryCategory.GRADIENT.value
_PARAMETER = MemoryCategory.PARAMETER.value
_UNKNOWN = MemoryCategory.UNKNOWN.value


@dataclass(frozen=True)
class _Stage:
    """What is divided, and how many units of parameters and of gradients travel at a time."""

    name: str
    divided: tuple[str, ...]
    units: int


_STAGES = (
    _Stage("optimizer state (ZeRO 1)", (_STATE,), 0),
    _Stage("and gradients (ZeRO 2)", (_STATE, _GRADIENT), 1),
    _Stage("and parameters (ZeRO 3, FSDP)", (_STATE, _GRADIENT, _PARAMETER), 3),
)
NOTHING = "as recorded"
_KEPT = (
    "activations, inputs and temporaries stay as they are, those of the optimizer's step too, "
    "although they shrink with the state: the peak may be a little lower"
)

TARGETS: Types = {
    "ranks": pl.Int64,
    "divided": pl.String,
    "is_observed": pl.Boolean,
    "peak_requested_bytes": pl.Int64,
    "peak_allocated_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "saved_bytes": pl.Int64,
    "buffer_bytes": pl.Int64,
    "fits": pl.Boolean,
}


@dataclass(frozen=True)
class Shard:
    """The peak at other sharding degrees.

    Attributes:
        ranks: How many ranks shared the state in the run that the prediction is made from.
        unknown_share: How much of the peak is of unknown category: it is not divided.
        unit_bytes: The parameters of the largest unit, on all ranks together.
        capacity_bytes: What the device has for the allocator; None: not given.
        targets: One row for the run, one for its simulation, with which the others are compared,
            then for each target one for each of what can be divided: ranks, divided, is_observed,
            peak_requested_bytes, peak_allocated_bytes (rounded to blocks), peak_reserved_bytes,
            saved_bytes (of the reserved peak, both by simulation; null for the run), buffer_bytes
            (what travels, within the peaks; null for the run), fits (null without a capacity).
    """

    device: int
    ranks: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    unknown_share: float
    unit_bytes: int
    capacity_bytes: int | None
    settings: str
    targets: pl.DataFrame
    notes: tuple[str, ...]


def shard(
    run: Run,
    targets: Sequence[float] = (),
    device: int | None = None,
    capacity_bytes: int | None = None,
) -> Shard:
    """Predicts the peak at other sharding degrees; `targets` are 2, 4 and 8 ranks by default.

    The size of the run is the number of ranks that share its state.
    """
    asked = tuple(targets) or _USUAL_TARGETS
    for number in (*asked, run.size):
        if number < 1 or number != int(number):
            raise UsageError(f"{number:g} is no number of ranks")
    chosen = run.view.device(device)
    held = dict(peak(run.view, chosen).categories.select("category", "allocated_bytes").iter_rows())
    if not any(held.get(kind) for kind in (_STATE, _GRADIENT, _PARAMETER)):
        raise UsageError(
            f"{run.view.snapshot.path}: nothing of the peak is known to be parameters, gradients "
            "or optimizer state, which sharding divides: record with memory_census=True"
        )
    settings = settings_of(run.view.snapshot.settings)
    model = _Model(run, chosen)
    # Simulations are compared with a simulation: of host memory, say, nothing is rounded.
    simulated = predicted_peaks(run.view.replay, chosen, settings, capacity_bytes)
    rows = [
        _row(run.size, NOTHING, observed_peaks(run.view, chosen), is_observed=True),
        _row(run.size, f"{NOTHING}, simulated", simulated, 0, 0),
    ]
    for ranks in asked:
        for stage in _STAGES:
            peaks = predicted_peaks(model.at(ranks, stage), chosen, settings, capacity_bytes)
            saved = simulated.reserved_bytes - peaks.reserved_bytes
            row = _row(ranks, stage.name, peaks, saved, model.buffer_bytes(stage))
            rows.append(row)
    share = held.get(_UNKNOWN, 0) / max(1, sum(held.values()))
    return Shard(
        device=chosen,
        ranks=int(run.size),
        parameter_bytes=held.get(_PARAMETER, 0),
        gradient_bytes=held.get(_GRADIENT, 0),
        optimizer_state_bytes=held.get(_STATE, 0),
        unknown_share=share,
        unit_bytes=model.unit_bytes,
        capacity_bytes=capacity_bytes,
        settings=str(settings),
        targets=pl.DataFrame(rows, schema=TARGETS, orient="row"),
        notes=(*_notes(run, share, held.get(_PARAMETER, 0)), *run.view.notes(chosen)),
    )


def _notes(base: Run, unknown_share: float, parameter_bytes: int) -> list[str]:
    notes = [_KEPT]
    if base.view.categories.is_inference:
        notes.append(
            "the program only computes: ZeRO 1 and 2 divide nothing of it, and tensor or pipeline "
            "parallelism, which is not simulated, divides weights and caches without the buffers"
        )
    if not parameter_bytes:
        notes.append("no parameters are known at the peak: dividing them changes nothing")
    if unknown_share >= _NOTABLE:
        notes.append(
            f"{percent(unknown_share)} of the peak is of unknown category, and is not divided: "
            "record with memory_census=True"
        )
    if base.view.snapshot.settings.get(EXACT_SIZES):
        notes.append(
            "recorded on the host, which has no caching allocator: what the predictions reserve is "
            "what a GPU's allocator would"
        )
    if base.size > 1:
        notes.append(
            "the run is sharded already: what travels is in its recording, and no buffers are added"
        )
    return notes


class _Model:
    """The history of one run, and what of it is divided."""

    def __init__(self, run: Run, device: int) -> None:
        self.ranks = run.size
        self.device = device
        self._replay: Replay = run.view.replay
        mine = run.view.allocations
        self._categories = mine["category"]
        self.unit_bytes = int(_largest_unit(mine.filter(pl.col("device") == device)) * run.size)

    def buffer_bytes(self, stage: _Stage) -> int:
        """What travels at a time and is not in the recording."""
        return stage.units * self.unit_bytes if self.ranks == 1 else 0

    def at(self, ranks: float, stage: _Stage) -> Replay:
        """The history if so many ranks share the state."""
        size = pl.col("requested_bytes")
        is_divided = self._categories.is_in(stage.divided) & (
            self._replay.allocations["device"] == self.device
        )
        divided = (size * (self.ranks / ranks)).ceil().cast(pl.Int64).clip(lower_bound=1)
        allocations = self._replay.allocations.with_columns(
            requested_bytes=pl.when(is_divided).then(divided).otherwise(size)
        )
        buffers = self.buffer_bytes(stage)
        if buffers:
            held = {
                "allocation": len(allocations), "device": self.device, "address": 0,
                "requested_bytes": buffers, "size_bytes": buffers, "stream": 0, "pool": 0,
                "is_given_back_before": False,
            }  # fmt: skip
            row = pl.DataFrame([held]).select(
                (pl.col(name) if name in held else pl.lit(None)).cast(kind).alias(name)
                for name, kind in allocations.schema.items()
            )
            allocations = pl.concat([allocations, row])
        return replace(self._replay, allocations=allocations)


def _largest_unit(allocations: pl.DataFrame) -> int:
    """The parameters of the largest unit; one without a name is a unit of its own."""
    parameters = allocations.filter(pl.col("category") == _PARAMETER)
    # A parameter that was replaced meanwhile, at another address, counts once.
    named = (
        parameters.filter(pl.col("name").is_not_null())
        .group_by("name")
        .agg(pl.col("requested_bytes").max())
    )
    sums: dict[str, int] = {}
    for name, size in named.iter_rows():
        block = _BLOCK.match(name)
        unit = block[0] if block else name.partition(".")[0]
        sums[unit] = sums.get(unit, 0) + size
    unnamed = parameters.filter(pl.col("name").is_null())["requested_bytes"].to_list()
    return max([*sums.values(), *unnamed], default=0)


def _row(
    ranks: float,
    divided: str,
    peaks: Peaks,
    saved_bytes: int | None = None,
    buffer_bytes: int | None = None,
    *,
    is_observed: bool = False,
) -> tuple[object, ...]:
    sizes = (peaks.requested_bytes, peaks.allocated_bytes, peaks.reserved_bytes)
    return (int(ranks), divided, is_observed, *sizes, saved_bytes, buffer_bytes, peaks.fits)
