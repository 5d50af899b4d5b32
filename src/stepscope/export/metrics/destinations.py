"""The systems that get metrics, the only place that knows them by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stepscope.export.metrics.watch import Watch, Writer


@dataclass(frozen=True)
class Destination:
    """A system, and the option of `stepscope monitor` that chooses it.

    Attributes:
        writer: Module here and class, "to_otlp:OtlpWriter"; only the chosen ones are imported.
        takes: What the option's value is, which the writer gets; None: it is a flag.
        is_served: Whether it opens a port, which nothing that fails afterwards should leave open.
    """

    name: str
    about: str
    writer: str
    takes: Literal["text", "file", "folder"] | None = None
    metavar: str | None = None
    is_served: bool = False


DESTINATIONS: tuple[Destination, ...] = (
    Destination(
        "prometheus",
        "Serve RUN and the hardware as metrics of Prometheus, at http://HOST:PORT/metrics; "
        "this machine alone can read them unless a host is given.",
        "to_prometheus:PrometheusServer",
        "text",
        "[HOST:]PORT",
        is_served=True,
    ),
    Destination(
        "prometheus-file",
        "Write the same to a file, for the textfile collector of node_exporter.",
        "to_prometheus:PrometheusFile",
        "file",
        "FILE.prom",
    ),
    Destination(
        "otlp",
        "Send the same to a collector of OpenTelemetry, such as http://localhost:4318.",
        "to_otlp:OtlpWriter",
        "text",
        "URL",
    ),
    Destination(
        "mlflow",
        "Log RUN's curves to MLflow, at MLFLOW_TRACKING_URI, until RUN has ended.",
        "to_mlflow:MlflowWriter",
    ),
    Destination("wandb", "Log the same to a new run of Weights & Biases.", "to_wandb:WandbWriter"),
    Destination(
        "tensorboard",
        "Write the same for TensorBoard, into this folder.",
        "to_tensorboard:TensorBoardWriter",
        "folder",
        "DIR",
    ),
)
"""In the order of the help."""


def writers(chosen: Mapping[str, Any], watch: Watch) -> list[Writer]:
    """A writer for each chosen destination.

    Args:
        chosen: Name to the value of its option.
    """
    found: list[Writer] = []
    for one in sorted(DESTINATIONS, key=lambda one: one.is_served):
        if one.name in chosen:
            module, _, kind = one.writer.partition(":")
            made = getattr(importlib.import_module(f"{__package__}.{module}"), kind)
            found.append(made(watch) if one.takes is None else made(watch, chosen[one.name]))
    return found
