"""A live run on a terminal: the progress of its ranks, and what the hardware does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stepscope.analysis.record.live import LiveSample, LiveState
from stepscope.analysis.record.watching import RankView, RunView
from stepscope.report.metrics.words import words_for
from stepscope.report.units import count, duration, percent, size
from stepscope.run.figures import significant
from stepscope.run.metrics import CLOCK_REASON_BITS, THROTTLE_REASONS

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


def show(
    look: Callable[[], LiveState], console: Console, interval_s: float, count: int | None
) -> None:
    """Show a run until interrupted, at most `count` times; once if it is not a terminal.

    Args:
        look: Gets the current state.
        console: The console.
        interval_s: Seconds between updates.
        count: Number of updates; None for no limit.
    """
    if not console.is_terminal:
        # Averages need two samples; this is the first.
        look()
        time.sleep(min(1.0, interval_s))
        console.print(layout_of(look()))
        return
    shown = 0
    with Live(layout_of(look()), console=console, auto_refresh=False) as live:
        while count is None or shown < count:
            time.sleep(interval_s)
            live.update(layout_of(look()), refresh=True)
            shown += 1


def layout_of(state: LiveState) -> RenderableType:
    """A run and the hardware at one moment."""
    parts: list[RenderableType] = []
    if state.run is None or not state.run.ranks:
        parts.append(Text(f"no run is being written in {state.where}", "dim"))
    else:
        parts += [Text(str(state.run.path), "dim"), _ranks(state.run)]
        if state.run.frontier is not None and state.run.frontier.leader is not None:
            parts.append(Text(state.run.frontier.sentence(), "yellow"))
    parts += [Text(), _gpus(state.samples), *_hosts(state.samples)]
    return Group(*parts)


def _ranks(run: RunView) -> RenderableType:
    names = _part_names(run.ranks)
    table = _table()
    for heading in ("rank", "state", "step", "steps/s", "step time", *names):
        # Narrow screens break headings; they cut no word and no number.
        is_part = heading in names
        table.add_column(
            heading,
            justify="left" if heading == "state" else "right",
            no_wrap=not is_part and heading != "step time",
            overflow="fold",
            min_width=len("100%") if is_part else None,
        )
    if any(view.progress and view.progress.tokens_per_second for view in run.ranks):
        table.add_column("tokens/s", justify="right")
    for view in run.ranks:
        table.add_row(*_rank(view, names, len(table.columns)))
    if not run.more_ranks:
        return table
    return Group(table, Text(f"and {run.more_ranks} more ranks", "dim"))


def _rank(view: RankView, names: Sequence[str], width: int) -> list[RenderableType]:
    progress = view.progress
    cells: list[RenderableType] = [str(view.rank), _state(view)]
    if progress is None:
        return [*cells, *["–"] * (width - 2)]
    by_name = {part.name: progress.partition.share(part) for part in progress.partition.parts}
    cells += [
        count(progress.last_step),
        significant(progress.steps_per_second),
        duration(progress.median_ns),
        *(percent(by_name.get(name, 0.0)) for name in names),
    ]
    if len(cells) < width:
        tokens = progress.tokens_per_second
        cells.append("–" if tokens is None else count(round(tokens)))
    return cells


def _state(view: RankView) -> Text:
    state = view.manifest.state if view.manifest is not None else "unknown"
    if state != "running":
        return Text(state, "green" if state == "finished" else "yellow")
    if view.progress is None or view.since_ns is None:
        return Text("no step yet")
    if view.since_ns > max(_STALLED_LEAST_NS, _STALLED_FACTOR * view.progress.median_ns):
        return Text(f"no step for {duration(view.since_ns)}", "bold red")
    return Text("running", "green")


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
    return sorted(shown[:_MOST_PARTS], key=_place_of_part)


def _place_of_part(name: str) -> tuple[int, str]:
    """Where a part stands: known ones in the order of a step, others by name, "other" last."""
    place = _PARTS.index(name) if name in _PARTS else len(_PARTS)
    return (len(_PARTS) + 1 if name == "other" else place), name


def _gpus(samples: Sequence[LiveSample]) -> RenderableType:
    table = _table()
    for heading in ("", "GPU", "busy", "tensor", "memory", "power", "°C", "throttled"):
        is_text = heading in {"", "GPU", "throttled"}
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(heading, justify=justify, no_wrap=heading != "GPU")
    seen: set[str] = set()
    for sample in samples:
        for row in sample.rows:
            name = _known(row, "name")
            key = _known(row, "uuid") or f"{sample.label}/{_known(row, 'index')}/{name}"
            if not (name or _known(row, "uuid") or _known(row, "index")) or key in seen:
                continue
            seen.add(key)
            cells = (
                sample.label,
                f"{_known(row, 'index')} {name.removeprefix('NVIDIA ')}".strip(),
                *(
                    _known(row, column) or "–"
                    for column in (
                        "utilization.gpu",
                        "gpm.tensor",
                    )
                ),
                _memory(row),
                _power(row),
                _known(row, "temperature.gpu") or "–",
                _slowed(row),
            )
            table.add_row(*map(Text, cells))  # names are untrusted: no markup
    return table if table.row_count else Text("no GPU is sampled", "dim")


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
    return ", ".join(words_for(reasons)) or "no"


def _hosts(samples: Sequence[LiveSample]) -> Iterable[RenderableType]:
    """One line per machine: ranks on the same machine report the same values."""
    lines: dict[str, str] = {}
    for sample in samples:
        row = sample.rows[0] if sample.rows else {}
        parts = [f"{word} {_known(row, name)}" for word, name in _HOST if _known(row, name)]
        if parts:
            lines.setdefault(sample.host, "  ·  ".join(parts))
    for host, text in lines.items():
        yield Text(f"{host}  {text}")


def _known(row: Mapping[str, str], name: str) -> str:
    """A value as the file has it, but "97%" for nvidia-smi's "97 %"; empty without one."""
    value = row.get(name, "")
    if value.startswith("[") and value.endswith("]"):  # "[N/A]" and the like
        return ""
    return f"{value.removesuffix(' %')}%" if value.endswith(" %") else value


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
