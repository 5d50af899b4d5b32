"""Files of sampled metrics of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope.monitor.columns import parse_columns
from stepscope.monitor.recorder import MetricsFile, row_of

_COLUMNS = parse_columns(
    "timestamp,time_ns,index,name,uuid,utilization.gpu,power.draw,temperature.gpu,"
    "clocks.current.sm,clocks_event_reasons.active"
)


def write_clocks(
    path: Path,
    clocks_mhz: Sequence[float | None],
    *,
    busy_percent: Sequence[int | None] | int = 100,
    reasons: int | None = 0,
    name: str = "NVIDIA H100",
    celsius: float = 60,
    watts: float = 500,
    gpus: int = 1,
) -> Path:
    """Samples of a GPU, one for each clock."""
    file = MetricsFile(path, _COLUMNS)
    for number, clock in enumerate(clocks_mhz):
        busy = busy_percent if isinstance(busy_percent, int) else busy_percent[number]
        rows = [
            {
                "timestamp": f"2026/03/01 10:00:{number:02d}.000",
                "time_ns": 10**18 + number * 10**9,
                "index": index,
                "name": name,
                "uuid": f"GPU-{index}",
                "utilization.gpu": busy,
                "power.draw": watts,
                "temperature.gpu": celsius,
                "clocks.current.sm": clock,
                "clocks_event_reasons.active": None if reasons is None else f"0x{reasons:016x}",
            }
            for index in range(gpus)
        ]
        file.write([row_of(_COLUMNS, row, with_units=True) for row in rows])
    file.close()
    return path
