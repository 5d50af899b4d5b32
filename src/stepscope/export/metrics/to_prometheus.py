"""Metrics for Prometheus: a server for its scrapes, and a file for node_exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.export.metrics.table import METRICS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

    from stepscope.export.metrics.watch import Watch


class _Collector:
    """Reads a run anew each time that its metrics are asked for."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def describe(self) -> Iterator[Family]:
        """Nothing, so that to register it reads no run."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """The metrics at this moment; those without a value are left out."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        moment = self._watch.moment()
        for metric in METRICS:
            kind: Any = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.prometheus_name, metric.help, labels=list(metric.labels))
            for labels, value in metric.measure(moment):
                family.add_metric(list(labels), value)
            if family.samples:
                yield family


class PrometheusServer:
    """Serves metrics until the process ends.

    Args:
        address: "PORT" on this machine alone, or "HOST:PORT".
    """

    name = "Prometheus"
    is_served = True
    is_done = False

    def __init__(self, watch: Watch, address: str) -> None:
        registry = _registry(watch)
        from prometheus_client import start_http_server

        host, _, port = address.rpartition(":")
        host = host or "127.0.0.1"
        if not port.isdecimal() or int(port) >= 1 << 16:
            raise UsageError(f"--prometheus {address[:40]}: give a port, or HOST:PORT")
        try:
            self._server, _ = start_http_server(int(port), host, registry)
        except OSError as error:
            raise UnreadableInputError(
                f"{host}:{port}: cannot be served: {error.strerror or error}"
            ) from error
        self.where = f"http://{host}:{self._server.server_port}/metrics"

    def write(self) -> None:
        """Nothing: Prometheus asks."""

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()


class PrometheusFile:
    """Writes metrics to a file, through a temporary one."""

    name = "Prometheus"
    is_served = False
    is_done = False

    def __init__(self, watch: Watch, path: Path) -> None:
        self._registry = _registry(watch)
        self.where = str(path)

    def write(self) -> None:
        """Write the current values."""
        from prometheus_client import write_to_textfile

        try:
            write_to_textfile(self.where, self._registry)
        except OSError as error:
            raise UnreadableInputError(
                f"{self.where}: cannot be written: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """The file stays."""


def _registry(watch: Watch) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise UsageError(
            "metrics for Prometheus need its client: pip install 'stepscope[prometheus]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(_Collector(watch))
    return registry
