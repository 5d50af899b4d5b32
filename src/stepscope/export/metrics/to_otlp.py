"""Metrics by OpenTelemetry's protocol (OTLP over HTTP), through the official SDK."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stepscope.errors import UsageError
from stepscope.export.metrics.table import METRICS, Metric, Moment

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader

    from stepscope.export.metrics.watch import Watch

_PATH = "/v1/metrics"
_ATTRIBUTES = {"host": "host.name"}
"""Labels with a name in OpenTelemetry's conventions; others are "stepscope.LABEL"."""


class OtlpWriter:
    """Sends the current values to a collector.

    Headers, certificates and compression come from `OTEL_EXPORTER_OTLP_…`, and the resource from
    `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`, as for every program with the SDK.

    Args:
        endpoint: The collector's URL; without a path, "/v1/metrics" is added.
        reader: What collects the values; by default one that sends them to the endpoint.
    """

    name = "OpenTelemetry"
    is_served = False
    is_done = False

    def __init__(self, watch: Watch, endpoint: str, reader: MetricReader | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise UsageError(
                "metrics by OTLP need OpenTelemetry's SDK: pip install 'stepscope[otel]'"
            ) from error
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise UsageError(
                f"--otlp {endpoint[:80]}: give the URL of a collector's HTTP port, such as "
                "http://localhost:4318"
            )
        self.where = endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{_PATH}"
        # The interval is ours: the reader sends on request.
        self._reader = reader or PeriodicExportingMetricReader(
            OTLPMetricExporter(self.where), export_interval_millis=math.inf
        )
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "stepscope"}))
        self._provider = MeterProvider([self._reader], resource)
        self._watch = watch
        self._moment = Moment(None)
        meter = self._provider.get_meter("stepscope")
        for metric in METRICS:
            create = (
                meter.create_observable_counter
                if metric.is_counter
                else meter.create_observable_gauge
            )
            create(f"stepscope.{metric.name}", [self._observe(metric)], metric.unit, metric.help)

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        names = [_ATTRIBUTES.get(label, f"stepscope.{label}") for label in metric.labels]

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            for labels, value in metric.measure(self._moment):
                yield Observation(value, dict(zip(names, labels, strict=True)))

        return observe

    def write(self) -> None:
        """Send the current values. The SDK retries, and logs what it cannot send."""
        self._moment = self._watch.moment()
        self._reader.collect()

    def close(self) -> None:
        """Stop."""
        self._provider.shutdown()
