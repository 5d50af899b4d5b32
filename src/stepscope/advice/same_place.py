"""Outliers among collectives that are the same ones in each step: no accidents."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.advice.point_to_point import without_point_to_point
from stepscope.advice.window_view import WindowView
from stepscope.analysis.communication import analyse_communication
from stepscope.run.figures import ordinal

_FEWEST_STEPS = 3
_MOSTLY = 0.8
_MOST_NAMED = 3


@dataclass(frozen=True)
class SamePlace:
    """Collectives of each step.

    Attributes:
        kinds: The kind of each.
        places: Its place among those of its kind in a step, from 1.
        counts: How many of its kind a step has.
        steps: In how many steps at least they are outliers.
        of: How many steps there are.
    """

    kinds: tuple[str, ...]
    places: tuple[int, ...]
    counts: tuple[int, ...]
    steps: int
    of: int

    @property
    def title(self) -> str:
        """The subject of a sentence, with its verb: "one reduce_scatter in each step takes"."""
        times = "each step" if self.steps == self.of else "nearly each step"
        if len(self.places) == 1:
            return f"one {self.kinds[0]} in {times}, always the same, takes"
        kind = self.kinds[0] if len(set(self.kinds)) == 1 else "collectives"
        return f"the same {len(self.places)} {kind} in {times} take"

    @property
    def words(self) -> str:
        """Which they are, and in how many steps."""
        named = [
            f"{ordinal(place)} {kind} of {count}"
            for kind, place, count in zip(self.kinds, self.places, self.counts, strict=True)
        ]
        more = ", …" if len(named) > _MOST_NAMED else ""
        return f"{', '.join(named[:_MOST_NAMED])}{more}, in {self.steps} of {self.of} steps"


def of_each_step(window: WindowView, odd: pl.DataFrame) -> SamePlace | None:
    """The outliers, if nearly all are the same collectives of nearly each step.

    A place counts that has an outlier in at least four fifths of at least three steps; at least
    four fifths of all outliers must be at such places, and fewer than half of the collectives of
    their kind: where more are, it is another kind of problem.

    Args:
        window: The window.
        odd: The outliers, with column `event`.
    """
    steps = len(window.graph.steps)
    if steps < _FEWEST_STEPS or odd.is_empty():
        return None
    everything = without_point_to_point(
        analyse_communication(window.trace, window.scope).collectives
    )
    nodes = window.work["event", "step"]
    placed = (
        everything.drop("step")
        .join(nodes, on="event", maintain_order="left")
        .drop_nulls("step")
        .with_columns(
            place=pl.int_range(1, pl.len() + 1).over("step", "device", "kind"),
            count=pl.len().over("step", "device", "kind"),
        )
    )
    found = (
        placed.join(odd.select("event"), on="event", how="semi")
        .group_by("device", "kind", "place")
        .agg(pl.col("step").n_unique().alias("steps"), pl.len(), pl.col("count").max())
        .filter(pl.col("steps") >= max(_FEWEST_STEPS, _MOSTLY * steps))
        .sort("kind", "place", "device")
    )
    if found.is_empty() or int(found["len"].sum()) < _MOSTLY * len(odd):
        return None
    named = found.group_by("kind", "place", maintain_order=True).agg(
        pl.col("steps").min(), pl.col("count").max()
    )
    if any(
        2 * row["len"] > row["count"]
        for row in named.group_by("kind").agg(pl.len(), pl.col("count").max()).iter_rows(named=True)
    ):
        return None
    return SamePlace(
        tuple(named["kind"]),
        tuple(named["place"]),
        tuple(named["count"]),
        int(named["steps"].min()),  # type: ignore[arg-type]
        steps,
    )
