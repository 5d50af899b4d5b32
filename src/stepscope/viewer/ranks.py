"""The ranks of a run as a map over steps, the one to blame first, with the cause.

The numbers are those of `stepscope show ranks` and `stepscope show stragglers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.partition import cause_label
from stepscope.errors import UsageError
from stepscope.fleet.job import Job, read_job
from stepscope.fleet.rank_map import RankMap, rank_map
from stepscope.fleet.stragglers import Stragglers, stragglers_of_job
from stepscope.report.pictures import pictures_of
from stepscope.trace.paths import resolve_traces
from stepscope.viewer.background import Background

MOST_STEPS = 2000
MEASURES = {
    "own_ns": "Own time",
    "wall_ns": "Step",
    "input_ns": "Input",
    "compute_ns": "Compute",
    "exposed_comm_ns": "Exposed communication",
    "copies_ns": "Exposed copies",
    "other_ns": "Other idle time",
    "wait_ns": "Wait for other ranks",
}
"""What can be mapped: columns of the map's steps, and what they are called.

The step itself is alike on all ranks that wait for each other, so it is not the first.
"""


@dataclass(frozen=True, eq=False)
class JobRanks:
    """The ranks of a job, ready to be drawn.

    Attributes:
        stragglers: Who makes whom wait; None where that is unknown.
        problem: Why not.
        order: The ranks in the order of the rows: the greatest caused wait first, else the most
            own time.
        steps: The steps in the order of the columns.
    """

    job: Job
    map: RankMap
    stragglers: Stragglers | None
    problem: str
    order: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, job: Job) -> JobRanks:
        """Ask the questions.

        Raises:
            UsageError: No rank has steps.
        """
        stragglers, problem = None, ""
        try:
            stragglers = stragglers_of_job(job)
        except UsageError as error:
            problem = str(error)
        found = rank_map(job, stragglers)
        by_own = found.ranks["rank"].to_list()
        blamed = [] if stragglers is None else stragglers.ranks.filter(
            pl.col("caused_wait_ns") > 0
        )["rank"].to_list()  # fmt: skip
        order = tuple(dict.fromkeys([*blamed, *by_own]))
        steps = found.steps["step"].unique().sort().tail(MOST_STEPS)
        return cls(job, found, stragglers, problem, order, tuple(steps))

    def matrix(self, measure: str) -> npt.NDArray[np.float64]:
        """A measure by rank and step, in their order; NaN where a rank has no such step.

        Raises:
            UsageError: There is no such measure.
        """
        if measure not in MEASURES:
            raise UsageError(f"a map is of {', '.join(MEASURES)}")
        rows = pl.DataFrame({"rank": self.order, "row": range(len(self.order))})
        columns = pl.DataFrame({"step": self.steps, "column": range(len(self.steps))})
        placed = self.map.steps.join(rows, on="rank").join(columns, on="step")
        found = np.full((len(self.order), len(self.steps)), np.nan)
        found[placed["row"].to_numpy(), placed["column"].to_numpy()] = (
            placed[measure].cast(pl.Float64).to_numpy()
        )
        return found

    def about(self, places: Mapping[str, int]) -> dict[str, Any]:
        """Everything but the map itself.

        Args:
            places: Of each trace's path, its place among the traces of the viewer.
        """
        names = {part.rank: part.name for part in self.job.parts}
        mapped = {row["rank"]: row for row in self.map.ranks.iter_rows(named=True)}
        blame: dict[int, dict[str, Any]] = {}
        causes: list[dict[str, Any]] = []
        pictures: list[Mapping[str, Any]] = []
        notes = self.map.notes
        if self.stragglers is not None:
            pictures = [one.drawn for one in pictures_of("stragglers", self.stragglers)]
            notes = (*notes, *self.stragglers.notes)
            blame = {row["rank"]: row for row in self.stragglers.ranks.iter_rows(named=True)}
            notable = self.stragglers.causes.filter("is_notable")
            causes = [
                {**row, "cause": cause_label(row["cause"])} for row in notable.iter_rows(named=True)
            ]
        stragglers: dict[int, str] = {}
        for row in reversed(causes):
            suspects = {row["rank"], *(row["indistinguishable_from"] or ())}
            if len(suspects) < len(self.order):  # what all might have, none is accused of
                stragglers |= dict.fromkeys(suspects, row["cause"])
        return {
            "pictures": pictures,
            "measures": [{"name": name, "title": title} for name, title in MEASURES.items()],
            "steps": list(self.steps),
            "left_out_steps": self.map.steps["step"].n_unique() - len(self.steps),
            "ranks": [
                {
                    **mapped[rank],
                    "caused_wait_ns": blame[rank]["caused_wait_ns"] if rank in blame else None,
                    "cause": stragglers.get(rank),
                    "trace": places.get(names[rank]),
                }
                for rank in self.order
            ],
            "world_size": self.job.world_size,
            "verdict": self.problem if self.stragglers is None else self.stragglers.verdict,
            "slowest_rank": self.map.slowest_by_own_time,
            "mean_step_ns": self.map.mean_step_ns,
            "causes": causes,
            "parts": self.map.parts.to_dicts(),
            "notes": list(dict.fromkeys(notes)),
        }


def ranks_of(run: tuple[str, ...]) -> Background[JobRanks]:
    """The ranks of a run, read in the background when they are first looked at.

    Args:
        run: What was given on the command line for it.
    """

    def work(enter: Callable[[str], None]) -> JobRanks:
        job = read_job(
            resolve_traces(run),
            progress=lambda done, of: enter(f"reading {done:,} of {of:,} ranks"),
        )
        enter("comparing the ranks")
        return JobRanks.of(job)

    return Background("map of ranks", work)
