"""The metrics of a run and its hardware, in one table that every system's writer reads.

Names are those of OpenTelemetry, below "stepscope.", and units those of UCUM. The name in
Prometheus is what OpenTelemetry's translation makes of them. Curves (TensorBoard, MLflow,
Weights & Biases) have durations in milliseconds, under the names that a recording itself writes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.run.metrics import THROTTLE_MASK

if TYPE_CHECKING:
    from stepscope.advice.finding import Finding
    from stepscope.analysis.record.live import LiveSample, Progress, RankView, RunView

_MIB = 1 << 20
_SUFFIXES = {
    "s": "_seconds",
    "By": "_bytes",
    "1": "_ratio",
    "W": "_watts",
    "J": "_joules",
    "Cel": "_celsius",
}
_PER_SECOND = "/s"
_OF_RANK = ("run", "rank", "host")
_OF_GPU = ("host", "gpu", "uuid")
_OF_HOST = ("host",)
_IDENTITY = frozenset({*_OF_RANK, *_OF_GPU, "device", "severity"})
"""Labels that say whose a value is. Curves show the mean, minimum and maximum over these."""

Values = Iterable[tuple[tuple[str, ...], float]]
"""Values by their labels."""


@dataclass(frozen=True)
class Moment:
    """What the metrics are measured of.

    Attributes:
        findings: Findings of a run that has ended.
    """

    run: RunView | None
    samples: tuple[LiveSample, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Its name in OpenTelemetry, below "stepscope.".
        unit: Its unit in UCUM; empty for a flag.
        is_counter: Whether it only grows while its source runs.
        is_of_now: Whether it has no meaning for steps of the past, and so is no curve.
    """

    name: str
    unit: str
    help: str
    labels: tuple[str, ...]
    measure: Callable[[Moment], Values]
    is_counter: bool = False
    is_of_now: bool = False

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus; of a counter, without "_total", which the client adds."""
        suffix = "_per_second" if self.unit.endswith(_PER_SECOND) else _SUFFIXES.get(self.unit, "")
        return f"stepscope_{self.name.replace('.', '_')}{suffix}"

    @cached_property
    def curve_name(self) -> str:
        """Its name as a curve."""
        name = self.prometheus_name.removeprefix("stepscope_")
        return f"stepscope/{name[: -len('seconds')]}ms" if self.unit == "s" else f"stepscope/{name}"


def curve_points(moment: Moment) -> dict[str, float]:
    """The values of the curves at a moment, by name.

    A value of several ranks or devices is their mean, with "NAME/min" and "NAME/max" beside it.
    """
    found: dict[str, list[float]] = {}
    for metric in METRICS:
        if metric.is_of_now:
            continue
        factor = 1e3 if metric.unit == "s" else 1.0
        own = [at for at, label in enumerate(metric.labels) if label not in _IDENTITY]
        for labels, value in metric.measure(moment):
            name = "/".join((metric.curve_name, *(labels[at] for at in own)))
            found.setdefault(name, []).append(value * factor)
    points = {}
    for name, values in found.items():
        points[name] = values[0] if len(values) == 1 else statistics.fmean(values)
        if len(values) > 1:
            points[f"{name}/min"], points[f"{name}/max"] = min(values), max(values)
    return points


def _ranks(run: RunView | None) -> Iterator[tuple[tuple[str, str, str], RankView]]:
    for view in run.ranks if run is not None else ():
        host = view.manifest.host if view.manifest is not None else ""
        yield (run.path.name if run is not None else "", str(view.rank), host), view


def _of_view(of: Callable[[RankView], float | None]) -> Callable[[Moment], Values]:
    def measure(moment: Moment) -> Values:
        found = [(key, of(view)) for key, view in _ranks(moment.run)]
        return [(key, value) for key, value in found if value is not None]

    return measure


def _of_progress(of: Callable[[Progress], float | None]) -> Callable[[Moment], Values]:
    return _of_view(lambda view: None if view.progress is None else of(view.progress))


def _of_each(of: Callable[[Progress], Mapping[str, float]]) -> Callable[[Moment], Values]:
    """A value for each of something that a rank has several of."""

    def measure(moment: Moment) -> Values:
        for key, view in _ranks(moment.run):
            for name, value in of(view.progress).items() if view.progress is not None else ():
                yield (*key, name), value

    return measure


def _gpus(moment: Moment) -> dict[tuple[str, ...], Mapping[str, str]]:
    # Several ranks of a machine sample the same GPUs: by their identity they count once.
    return {
        (sample.host, row["index"], row.get("uuid", "")): row
        for sample in moment.samples
        for row in sample.rows
        if row.get("index", "").isdecimal()
    }


def _hosts(moment: Moment) -> dict[tuple[str, ...], Mapping[str, str]]:
    return {(sample.host,): row for sample in moment.samples for row in sample.rows}


def _numbers(rows: Mapping[tuple[str, ...], Mapping[str, str]], column: str, by: float) -> Values:
    for key, row in rows.items():
        try:
            value = float(row.get(column, "").split(" ", maxsplit=1)[0])
        except ValueError:  # "[N/A]", or a sampler without this column
            continue
        if math.isfinite(value):
            yield key, value * by


def _throttled(moment: Moment) -> Values:
    for key, row in _gpus(moment).items():
        try:
            mask = int(row.get("clocks_event_reasons.active", ""), 16)
        except ValueError:
            continue
        yield key, float(mask & THROTTLE_MASK != 0)


def _leads(moment: Moment) -> Values:
    if moment.run is None or moment.run.skew is None:
        return
    skew = moment.run.skew
    for one in skew.ranks:
        wait_ns = skew.wait_ns if skew.accuses and one.rank in skew.late else 0
        yield (moment.run.path.name, str(one.rank)), wait_ns / 1e9


def _savings(moment: Moment) -> Values:
    for one in moment.findings:
        run = moment.run.path.name if moment.run is not None else ""
        key = (run, one.id, one.severity.value, str(one.rank))
        yield key, (one.saving_ns or 0) / 1e9


def _rank(name: str, unit: str, about: str, of: Callable[[Progress], float | None]) -> Metric:
    return Metric(name, unit, about, _OF_RANK, _of_progress(of))


def _gpu(name: str, unit: str, about: str, column: str, factor: float = 1.0) -> Metric:
    return Metric(name, unit, about, _OF_GPU, lambda now: _numbers(_gpus(now), column, factor))


def _host(name: str, unit: str, about: str, column: str, factor: float) -> Metric:
    return Metric(name, unit, about, _OF_HOST, lambda now: _numbers(_hosts(now), column, factor))


METRICS: tuple[Metric, ...] = (
    Metric(
        "up", "", "Whether a run was found", (), lambda now: [((), float(now.run is not None))],
        is_of_now=True,
    ),
    Metric(
        "rank_running", "", "Whether the rank says that it is running", _OF_RANK,
        _of_view(lambda one: float(one.manifest is not None and one.manifest.state == "running")),
        is_of_now=True,
    ),
    Metric(
        "last_step", "{step}", "Number of the last step that ended", _OF_RANK,
        _of_progress(lambda one: float(one.last_step)), is_of_now=True,
    ),
    Metric(
        "step_age", "s", "Time since the rank's last step ended", _OF_RANK,
        _of_view(lambda one: None if one.since_ns is None else one.since_ns / 1e9), is_of_now=True,
    ),
    _rank("step", "s", "Mean of the latest training steps", lambda one: one.step_ns / 1e9),
    _rank("worst_step", "s", "Longest of the latest steps", lambda one: one.worst_ns / 1e9),
    _rank(
        "steps", "{step}/s", "The latest steps, over the time that they and what lies between took",
        lambda one: one.steps_per_second,
    ),
    _rank("tokens", "{token}/s", "Tokens of the latest steps", lambda one: one.tokens_per_second),
    _rank("samples", "{sample}/s", "Samples of the latest steps", lambda p: p.samples_per_second),
    Metric(
        "step_part", "1",
        "Share of the latest training steps that a part took; the parts of a rank add up to 1",
        (*_OF_RANK, "part"),
        _of_each(lambda one: {p.name: one.partition.share(p) for p in one.partition.parts}),
    ),
    _rank(
        "data_wait", "s", "Mean wait for the batch in the latest training steps",
        lambda one: one.data_wait_ns / 1e9,
    ),
    Metric(
        "phase", "s", "Mean of a phase in the latest training steps", (*_OF_RANK, "phase"),
        _of_each(lambda one: {name: ns / 1e9 for name, ns in one.phases_ns.items()}),
    ),
    _rank(
        "garbage_collector", "s",
        "Mean of the pauses of Python's garbage collector in the latest training steps",
        lambda one: one.gc_ns / 1e9,
    ),
    _rank(
        "compilation", "s",
        "Mean of the time in which torch.compile compiled in the latest training steps",
        lambda one: one.compile_ns / 1e9,
    ),
    Metric(
        "memory.peak_allocated", "By",
        "Peak of the memory that torch has allocated on a device since the rank began",
        (*_OF_RANK, "device"),
        _of_each(lambda one: {str(at): peak for at, peak in enumerate(one.peak_allocated_bytes)}),
    ),
    Metric(
        "rank_lead", "s",
        "How much longer per step the others wait for this rank than for a usual one",
        ("run", "rank"), _leads, is_of_now=True,
    ),
    Metric(
        "finding_saving", "s", "What fixing a finding saves per step; 0 if that is not estimated",
        ("run", "finding", "severity", "rank"), _savings,
    ),
    _gpu("gpu.busy", "1", "Share of time in which any kernel ran", "utilization.gpu", 0.01),
    _gpu("gpu.memory_used", "By", "Device memory in use by all processes", "memory.used", _MIB),
    _gpu("gpu.memory_total", "By", "Device memory", "memory.total", _MIB),
    _gpu("gpu.power", "W", "Power draw of the board", "power.draw"),
    replace(
        _gpu("gpu.energy", "J", "Energy used since the driver was loaded", "energy.total"),
        is_counter=True,
    ),
    _gpu("gpu.temperature", "Cel", "Temperature of the chip", "temperature.gpu"),
    Metric(
        "gpu.throttled", "", "Whether power or heat lowers the GPU's clocks", _OF_GPU, _throttled
    ),
    replace(
        _gpu("gpu.xid_errors", "{error}", "Xid errors since sampling began", "xid.count"),
        is_counter=True,
    ),
    _gpu("gpu.multiprocessors_busy", "1", "Share of busy multiprocessors", "gpm.sm", 0.01),
    _gpu("gpu.tensor_cores_busy", "1", "Share of time with busy tensor cores", "gpm.tensor", 0.01),
    _host("host.cpu_busy", "1", "Share of the machine's CPUs in use", "host.cpu.utilization", 0.01),
    _host("host.memory_used", "By", "Memory of the machine in use", "host.memory.used", _MIB),
    _host("cgroup.memory_used", "By", "The control group's memory", "cgroup.memory.used", _MIB),
    _host("cgroup.memory_limit", "By", "The control group's limit", "cgroup.memory.limit", _MIB),
)  # fmt: skip
