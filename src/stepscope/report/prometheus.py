"""A run and its hardware as metrics of Prometheus, for a scrape or a textfile collector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.record.live import LiveSample, LiveState
from stepscope.analysis.record.progress import Progress
from stepscope.analysis.record.watching import RankView, RunView
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.run.metrics import THROTTLE_MASK

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

    from stepscope.advice.finding import Finding

_MIB = 1 << 20
_ENDED = ("finished", "failed", "stopped")
_OF_GPU = (
    # Column of a sample; metric, what it is, and how much of its unit one of the column's is.
    ("utilization.gpu", "gpu_busy_ratio", "Share of time in which any kernel ran", 0.01),
    ("memory.used", "gpu_memory_used_bytes", "Device memory in use by all processes", _MIB),
    ("memory.total", "gpu_memory_total_bytes", "Device memory", _MIB),
    ("power.draw", "gpu_power_watts", "Power draw of the board", 1),
    ("temperature.gpu", "gpu_temperature_celsius", "Temperature of the chip", 1),
    ("gpm.sm", "gpu_multiprocessors_busy_ratio", "Share of busy multiprocessors", 0.01),
    ("gpm.tensor", "gpu_tensor_cores_busy_ratio", "Time in which tensor cores were busy", 0.01),
)
_OF_HOST = (
    ("host.cpu.utilization", "host_cpu_busy_ratio", "Share of the machine's CPUs in use", 0.01),
    ("host.memory.used", "host_memory_used_bytes", "Memory of the machine in use", _MIB),
    ("cgroup.memory.used", "cgroup_memory_used_bytes", "Memory that the control group uses", _MIB),
    ("cgroup.memory.limit", "cgroup_memory_limit_bytes", "The control group's limit", _MIB),
)

_OF_PROGRESS: tuple[tuple[str, str, Callable[[Progress], float | None]], ...] = (
    ("last_step", "Number of the last step that ended", lambda one: float(one.last_step)),
    (
        "steps_per_second",
        "The latest steps, over the time that they and what lies between them took",
        lambda one: one.steps_per_second,
    ),
    ("step_seconds", "Median of the latest training steps", lambda one: one.median_ns / 1e9),
    ("tokens_per_second", "Tokens of the latest steps", lambda one: one.tokens_per_second),
)


class RunCollector:
    """Reads a run anew for each scrape. Nothing of it is in the training process.

    Args:
        look: Gets the current state.
        findings: Gets the findings of a run that has ended. Called once per run.
    """

    def __init__(
        self,
        look: Callable[[], LiveState],
        findings: Callable[[Path], tuple[Finding, ...]],
    ) -> None:
        self._look = look
        self._findings = findings
        self._found: tuple[Path, tuple[Finding, ...]] | None = None

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing, so that to register it reads no run."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics at this moment."""
        state = self._look()
        yield _family("up", "Whether a run was found", {}, [((), float(state.run is not None))])
        if state.run is not None:
            yield from _of_ranks(state.run)
            yield from self._of_findings(state.run)
        yield from _of_samples(state.samples)

    def _of_findings(self, run: RunView) -> Iterator[GaugeMetricFamily]:
        states = [view.manifest.state for view in run.ranks if view.manifest is not None]
        if not states or any(state not in _ENDED for state in states):
            return
        if self._found is None or self._found[0] != run.path:
            try:
                self._found = (run.path, self._findings(run.path))
            except StepscopeError:
                self._found = (run.path, ())
        labels = ("run", "finding", "severity", "rank")
        rows = [
            ((run.path.name, one.id, one.severity.value, str(one.rank)), (one.saving_ns or 0) / 1e9)
            for one in self._found[1]
        ]
        yield _family(
            "finding_saving_seconds",
            "What fixing a finding saves per step; 0 where that is not estimated",
            labels,
            rows,
        )


def export(
    collector: RunCollector,
    address: str | None,
    textfile: Path | None,
    interval_s: float,
    count: int | None,
    say: Callable[[str], None],
) -> None:
    """Serve metrics, or write them to a file time and again, until interrupted.

    Args:
        collector: The metrics.
        address: "PORT" on this machine alone, or "HOST:PORT"; None: they are not served.
        textfile: The file to write, through a temporary one; None: none is written.
        interval_s: Seconds between writes.
        count: Number of writes; None for no limit.
        say: Told where the metrics are.

    Raises:
        UsageError: The client of Prometheus is not installed, or the address is none.
        UnreadableInputError: The address cannot be used, or the file cannot be written.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
    except ImportError as error:
        raise UsageError(
            "metrics for Prometheus need its client: pip install 'stepscope[prometheus]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(collector)
    if address is not None:
        host, _, port = address.rpartition(":")
        host = host or "127.0.0.1"
        if not port.isdecimal() or int(port) >= 1 << 16:
            raise UsageError(f"--prometheus {address[:40]}: give a port, or HOST:PORT")
        try:
            server, _ = start_http_server(int(port), host, registry)
        except OSError as error:
            raise UnreadableInputError(
                f"{host}:{port}: cannot be served: {error.strerror or error}"
            ) from error
        say(f"http://{host}:{server.server_port}/metrics")
    if textfile is not None:
        say(str(textfile))
    written = 0
    while count is None or written < count:
        if textfile is not None:
            try:
                write_to_textfile(str(textfile), registry)
            except OSError as error:
                raise UnreadableInputError(
                    f"{textfile}: cannot be written: {error.strerror or error}"
                ) from error
        written += 1
        if count is None or written < count or address is not None:
            time.sleep(interval_s)


def _family(
    name: str, about: str, labels: Iterable[str], rows: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"stepscope_{name}", about, labels=list(labels))
    for values, value in rows:
        family.add_metric(list(values), value)
    return family


def _of_ranks(run: RunView) -> Iterator[GaugeMetricFamily]:
    labels = ("run", "rank", "host")
    rows: list[tuple[tuple[str, str, str], RankView]] = [
        ((run.path.name, str(view.rank), view.manifest.host if view.manifest else ""), view)
        for view in run.ranks
    ]
    yield _family(
        "rank_running",
        "Whether the rank says that it is running",
        labels,
        [
            (key, float(view.manifest is not None and view.manifest.state == "running"))
            for key, view in rows
        ],
    )
    known = [(key, view.progress, view.since_ns) for key, view in rows if view.progress is not None]
    for name, about, of in _OF_PROGRESS:
        values = [(key, of(progress)) for key, progress, _ in known]
        yield _family(
            name, about, labels, [(key, value) for key, value in values if value is not None]
        )
    yield _family(
        "seconds_since_step",
        "Time since the rank's last step ended",
        labels,
        [(key, (since_ns or 0) / 1e9) for key, _, since_ns in known],
    )
    yield _family(
        "step_part_ratio",
        "Share of the latest training steps that a part took; the parts of a rank add up to 1",
        (*labels, "part"),
        [
            ((*key, part.name), part.total_ns / max(1, progress.partition.total_ns))
            for key, progress, _ in known
            for part in progress.partition.parts
        ],
    )
    if run.frontier is not None:
        yield _family(
            "rank_lead_seconds",
            "How much longer per step the others wait for this rank than for a usual one",
            ("run", "rank"),
            [
                ((run.path.name, str(one.rank)), max(0, one.lead_ns) / 1e9)
                for one in run.frontier.ranks
            ],
        )


def _of_samples(samples: Iterable[LiveSample]) -> Iterator[GaugeMetricFamily]:
    # Several ranks of a machine sample the same GPUs: by their identity they count once.
    gpus: dict[tuple[str, ...], Mapping[str, str]] = {}
    hosts: dict[tuple[str, ...], Mapping[str, str]] = {}
    for sample in samples:
        for row in sample.rows:
            hosts[(sample.host,)] = row
            if row.get("index", "").isdecimal():
                gpus[(sample.host, row["index"], row.get("uuid", ""))] = row
    for labels, rows, columns in (
        (("host", "gpu", "uuid"), gpus, _OF_GPU),
        (("host",), hosts, _OF_HOST),
    ):
        for column, name, about, factor in columns:
            values = [(key, _number(row.get(column, ""))) for key, row in rows.items()]
            found = [(key, value * factor) for key, value in values if value is not None]
            if found:
                yield _family(name, about, labels, found)
    reasons = [(key, row.get("clocks_event_reasons.active", "")) for key, row in gpus.items()]
    slowed = [(key, int(text, 16) & THROTTLE_MASK) for key, text in reasons if _is_mask(text)]
    if slowed:
        yield _family(
            "gpu_throttled",
            "Whether power or heat lowers the GPU's clocks",
            ("host", "gpu", "uuid"),
            [(key, float(bits != 0)) for key, bits in slowed],
        )


def _number(text: str) -> float | None:
    try:
        return float(text.split(" ", maxsplit=1)[0])
    except ValueError:
        return None


def _is_mask(text: str) -> bool:
    return text.startswith("0x") and all(one in "0123456789abcdefABCDEF" for one in text[2:18])
