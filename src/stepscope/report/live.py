"""A live run: the progress of its ranks, and what the hardware does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stepscope.report.document import Block, Column, Gap, Line, Span, StyledText, Table
from stepscope.report.metrics import reason_names
from stepscope.report.units import count, duration, percent, size
from stepscope.run.figures import significant
from stepscope.run.metrics import CLOCK_REASON_BITS, THROTTLE_REASONS

if TYPE_CHECKING:
    from stepscope.analysis.record.live import LiveSample, LiveState, RankView, RunView

_STALLED_LEAST_NS = 30_000_000_000
_STALLED_FACTOR = 10
_MOST_PARTS = 6
_PARTS = ("input", "forward", "backward", "optimizer", "communication")
_MIB = 1 << 20
_HOST = (
    ("CPUs", "host.cpu.utilization"),
    ("I/O wait", "host.cpu.iowait"),
    ("throttled", "cgroup.cpu.throttled"),
    ("memory used", "host.memory.used"),
    ("control group memory", "cgroup.memory.used"),
    ("disk read", "disk.read"),
    ("network in", "network.receive"),
    ("out", "network.send"),
)


def blocks_of(state: LiveState) -> Iterator[Block]:
    """A run and the hardware at one moment."""
    if state.run is None or not state.run.ranks:
        yield Line(f"no run is being written in {state.where}", "dim")
    else:
        yield Line(str(state.run.path), "dim")
        yield _ranks(state.run)
        if state.run.more_ranks:
            yield Line(f"and {state.run.more_ranks} more ranks", "dim")
        if state.run.skew is not None and state.run.skew.accuses:
            yield Line(state.run.skew.accusation(), "yellow")
    yield Gap()
    yield _gpus(state.samples)
    yield from _hosts(state.samples)


def _ranks(run: RunView) -> Table:
    names = _part_names(run.ranks)
    columns = [
        Column("rank", is_amount=True, wraps=False),
        Column("state", wraps=False),
        Column("step", is_amount=True, wraps=False),
        Column("steps/s", is_amount=True, wraps=False),
        # Narrow screens break headings; they cut no word and no number.
        Column("step time", is_amount=True),
        *(Column(name, is_amount=True, least=len("100%")) for name in names),
    ]
    has_tokens = any(view.progress and view.progress.tokens_per_second for view in run.ranks)
    if has_tokens:
        columns.append(Column("tokens/s", is_amount=True))
    rows = (_rank(view, names, has_tokens=has_tokens) for view in run.ranks)
    return Table(tuple(columns), tuple(rows))


def _rank(view: RankView, names: Sequence[str], *, has_tokens: bool) -> tuple[StyledText, ...]:
    progress = view.progress
    if progress is None:
        return (str(view.rank), _state(view), *["–"] * (3 + len(names) + has_tokens))
    by_name = {part.name: progress.partition.share(part) for part in progress.partition.parts}
    tokens = progress.tokens_per_second
    rate = ("–" if tokens is None else count(round(tokens)),) if has_tokens else ()
    return (
        str(view.rank),
        _state(view),
        count(progress.last_step),
        significant(progress.steps_per_second),
        duration(progress.step_ns),
        *(percent(by_name.get(name, 0.0)) for name in names),
        *rate,
    )


def _state(view: RankView) -> StyledText:
    state = view.manifest.state if view.manifest is not None else "unknown"
    if state != "running":
        return (Span(state, "green" if state == "finished" else "yellow"),)
    if view.progress is None or view.since_ns is None:
        return "no step yet"
    if view.since_ns > max(_STALLED_LEAST_NS, _STALLED_FACTOR * view.progress.step_ns):
        return (Span(f"no step for {duration(view.since_ns)}", "bold red"),)
    return (Span("running", "green"),)


def _part_names(ranks: Iterable[RankView]) -> list[str]:
    """The parts of the step that any rank has, in a fixed order.

    The largest are shown if there are too many. Their order does not change while a run is watched.
    """
    totals: dict[str, float] = {}
    for view in ranks:
        if view.progress is not None:
            for part in view.progress.partition.parts:
                share_of = view.progress.partition.share(part)
                totals[part.name] = totals.get(part.name, 0.0) + share_of
    shown = sorted((name for name in totals if totals[name]), key=lambda name: -totals[name])
    order = [*_PARTS, *sorted(set(totals) - {*_PARTS, "other"}), "other"]
    return sorted(shown[:_MOST_PARTS], key=order.index)


def _gpus(samples: Sequence[LiveSample]) -> Block:
    columns = tuple(
        Column(name, is_amount=name not in {"", "GPU", "throttled"}, wraps=name == "GPU")
        for name in ("", "GPU", "busy", "tensor", "memory", "power", "°C", "throttled")
    )
    rows: dict[str, tuple[str, ...]] = {}
    for sample in samples:
        for row in sample.rows:
            name, index, uuid = (_known(row, key) for key in ("name", "index", "uuid"))
            if not (name or uuid or index):
                continue
            cells = (
                sample.label,
                f"{index} {name.removeprefix('NVIDIA ')}".strip(),
                _known(row, "utilization.gpu") or "–",
                _known(row, "gpm.tensor") or "–",
                _memory(row),
                _power(row),
                _known(row, "temperature.gpu") or "–",
                _slowed(row),
            )
            rows.setdefault(uuid or f"{sample.label}/{index}/{name}", cells)
    return Table(columns, tuple(rows.values())) if rows else Line("no GPU is sampled", "dim")


def _memory(row: Mapping[str, str]) -> str:
    amounts = [_known(row, name).partition(" ")[0] for name in ("memory.used", "memory.total")]
    used, total = (int(text) * _MIB if text.isdecimal() else None for text in amounts)
    if used is None:
        return "–"
    return f"{size(used)} of {size(total)}" if total else size(used)


def _power(row: Mapping[str, str]) -> str:
    watts = _known(row, "power.draw").partition(".")[0]
    return f"{watts} W" if watts.isdecimal() else "–"


def _slowed(row: Mapping[str, str]) -> str:
    text = _known(row, "clocks_event_reasons.active")
    try:
        mask = int(text, 16)
    except ValueError:
        return "–"
    reasons = [reason for reason in THROTTLE_REASONS if mask & CLOCK_REASON_BITS[reason]]
    return ", ".join(reason_names(reasons)) or "no"


def _hosts(samples: Sequence[LiveSample]) -> Iterator[Line]:
    """One line per machine: ranks on the same machine report the same values."""
    lines: dict[str, str] = {}
    for sample in samples:
        row = sample.rows[0] if sample.rows else {}
        parts = [f"{word} {_known(row, name)}" for word, name in _HOST if _known(row, name)]
        if parts:
            lines.setdefault(sample.host, "  ·  ".join(parts))
    for host, text in lines.items():
        yield Line(f"{host}  {text}")


def _known(row: Mapping[str, str], name: str) -> str:
    """A value as the file has it, but "97%" for nvidia-smi's "97 %"; empty without one."""
    value = row.get(name, "")
    if value.startswith("[") and value.endswith("]"):  # "[N/A]" and the like
        return ""
    return f"{value.removesuffix(' %')}%" if value.endswith(" %") else value
