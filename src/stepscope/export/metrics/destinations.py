"""The systems that get metrics, the only place that knows them by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.export.metrics.watch import Watch, Writer


@dataclass(frozen=True)
class Destinations:
    """Which systems get metrics.

    Attributes:
        address: Where to serve them to Prometheus: "PORT" or "HOST:PORT".
        textfile: The file to write for node_exporter.
        endpoint: URL of a collector of OpenTelemetry.
    """

    address: str | None = None
    textfile: Path | None = None
    endpoint: str | None = None
    to_mlflow: bool = False
    to_wandb: bool = False
    board: Path | None = None

    def writers(self, watch: Watch) -> list[Writer]:
        """A writer for each; only their clients are imported."""
        found: list[Writer] = []
        if self.textfile is not None:
            from stepscope.export.metrics.to_prometheus import PrometheusFile

            found.append(PrometheusFile(watch, self.textfile))
        if self.endpoint is not None:
            from stepscope.export.metrics.to_otlp import OtlpWriter

            found.append(OtlpWriter(watch, self.endpoint))
        if self.to_mlflow:
            from stepscope.export.metrics.to_mlflow import MlflowWriter

            found.append(MlflowWriter(watch))
        if self.to_wandb:
            from stepscope.export.metrics.to_wandb import WandbWriter

            found.append(WandbWriter(watch))
        if self.board is not None:
            from stepscope.export.metrics.to_tensorboard import TensorBoardWriter

            found.append(TensorBoardWriter(watch, self.board))
        if self.address is not None:
            from stepscope.export.metrics.to_prometheus import PrometheusServer

            found.append(PrometheusServer(watch, self.address))
        return found
