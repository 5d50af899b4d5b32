"""A run's curves in MLflow, through its own client."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.export.metrics.curves import Curves, Point

if TYPE_CHECKING:
    from mlflow.entities import Metric

    from stepscope.export.metrics.watch import Watch

_BATCH = 1000
"""The most values that MLflow takes at a time."""


class MlflowWriter:
    """Logs curves to a run of MLflow: that of `MLFLOW_RUN_ID`, or a new one.

    Server and experiment come from `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME`, as for every
    program with the client. A run that the training made is left running.
    """

    name = "MLflow"
    is_served = False

    def __init__(self, watch: Watch) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise UsageError(
                "curves in MLflow need its client: pip install 'stepscope[mlflow]'"
            ) from error
        self.is_done = False
        self.where = mlflow.get_tracking_uri()
        self._given = os.environ.get("MLFLOW_RUN_ID")
        self._run = self._given
        self._curves = Curves(watch)
        self._unsent: list[Metric] = []
        try:
            self._client = mlflow.MlflowClient()
            if self._given:
                self._client.get_run(self._given)
            else:
                self._experiment = self._find_experiment()
        except Exception as error:
            raise UnreadableInputError(
                f"{self.where}: cannot be used by MLflow: {error}"
            ) from error

    def _find_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if name is None:
            return os.environ.get("MLFLOW_EXPERIMENT_ID", "0")
        found = self._client.get_experiment_by_name(name)
        made = self._client.create_experiment(name) if found is None else found.experiment_id
        return str(made)

    def write(self) -> None:
        """Log the points since the last time."""
        from mlflow.entities import Metric

        points = self._curves.new_points()
        if points and self._run is None:
            self._run = self._create_run(points[0])
        self._unsent += [
            Metric(_key(name), value, point.time_ns // 1_000_000, point.step)
            for point in points
            for name, value in point.values.items()
        ]
        while self._unsent:
            self._client.log_batch(self._run, self._unsent[:_BATCH])
            del self._unsent[:_BATCH]
        self.is_done = self._curves.has_ended

    def _create_run(self, first: Point) -> str:
        assert self._curves.path is not None
        made = self._client.create_run(
            self._experiment,
            start_time=first.time_ns // 1_000_000,
            run_name=self._curves.path.name,
            tags={"stepscope.run": str(self._curves.path)},
        )
        return str(made.info.run_id)

    def close(self) -> None:
        """Say that the run has ended, if it is ours."""
        if self._run is not None and self._given is None:
            self._client.set_terminated(self._run, "FINISHED" if self.is_done else "KILLED")


def _key(name: str) -> str:
    """The name of a curve as a key: MLflow's stores keep no key below another."""
    group, _, rest = name.partition("/")
    return f"{group}/" + re.sub(r"[^\w.: -]", "_", rest.replace("/", "."), flags=re.ASCII)
