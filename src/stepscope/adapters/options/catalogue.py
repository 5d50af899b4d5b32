"""The canonical options: one row each, from which every door makes its own form of them."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stepscope.capture.options.config import (
    ACTIVITIES,
    EXPORT_MODES,
    SORT_COLUMNS,
    STEP_UNITS,
    WINDOW_RECORDERS,
    CaptureConfig,
    ConfigError,
)

_TRUE = {"true", "yes", "on", "1", "t", "y"}
_FALSE = {"false", "no", "off", "0", "f", "n"}
_NONE = {"none", ""}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Option:
    """One option of a capture, whatever it is called elsewhere.

    Attributes:
        name: Its canonical name.
        kind: What its value is: "bool", "int", "float", "size" (bytes), "word", "path", "ranks",
            "words" or "pair" (two whole numbers).
        help: What it does, in a line.
        choices: The words that it may be; empty for any.
        field: The field of `CaptureConfig` that it fills; empty for one that the doors themselves
            turn into another.
        is_optional: Whether it may be left unset, as None.
    """

    name: str
    kind: str
    help: str
    choices: tuple[str, ...] = ()
    field: str = ""
    is_optional: bool = False

    @property
    def default(self) -> Any:
        """Its default where no dialect says otherwise."""
        if self.name == "enabled":
            return False  # a script that can be profiled is not profiled until it is asked to
        if not self.field:
            return None if self.is_optional else False
        return _FIELDS[self.field].default

    def parse(self, value: object, origin: str) -> Any:
        """The value that a text, or a value of TOML or of a parser, stands for.

        Args:
            value: What was given.
            origin: Where it was given, for the message.

        Raises:
            ConfigError: It cannot be understood.
        """
        try:
            return self._parse(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{origin}: {value!r} is not {str(error) or self._wanted()}"
            ) from None

    def _parse(self, value: object) -> Any:
        if self.is_optional and (value is None or str(value).strip().lower() in _NONE):
            return None
        match self.kind:
            case "bool":
                return parse_bool(value)
            case "int":
                return _whole(value)
            case "float":
                return _number(value)
            case "size":
                return parse_size(value)
            case "ranks" | "words":
                return _several(value)
            case "pair":
                first, last = _numbers(value)
                return first, last
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(text, str) or not text or (self.choices and text not in self.choices):
            raise ValueError(self._wanted())
        return text

    def _wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return {
            "bool": "true or false",
            "int": "a whole number",
            "float": "a number",
            "size": "a size such as 500MB or 2GiB",
            "pair": "two whole numbers such as 10,20",
            "ranks": "all, node-first, every:8 or a list of ranks",
        }.get(self.kind, "a text")


_FIELDS = {field.name: field for field in dataclasses.fields(CaptureConfig)}
CODE_ONLY = ("trigger_when", "on_trace_ready", "artifacts", "coordinates")
"""Fields that hold functions or mappings, which only code can give."""


def _option(name: str, kind: str, text: str, *choices: str, optional: bool = False) -> Option:
    return Option(name, kind, text, tuple(choices), name if name in _FIELDS else "", optional)


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        _option("enabled", "bool", "Record this training."),
        _option("output_dir", "path", "Folder in which the run's directory is made."),
        _option(
            "run_name", "word", "Name of that directory; made of the time otherwise.", optional=True
        ),
        _option(
            "upload_to", "word", "URL into which the run is copied as it grows.", optional=True
        ),
        _option("keep_local", "bool", "Keep what was copied there."),
        _option("skip_first", "int", "Steps to leave out before the first cycle."),
        _option("skip_first_wait", "bool", "Begin the first cycle with its warm-up."),
        _option("wait", "int", "Steps of each cycle in which nothing is recorded."),
        _option("warmup", "int", "Steps of each cycle in which the profiler warms up."),
        _option("active", "int", "Steps of each cycle that are recorded."),
        _option("repeat", "int", "Number of cycles; 0 for no end."),
        _option(
            "cycle_length", "int", "With repeat 0: steps of a cycle; sets wait.", optional=True
        ),
        _option(
            "start_step",
            "int",
            "Record one window from this step on; sets skip_first, wait, warmup and repeat.",
            optional=True,
        ),
        _option("end_step", "int", "End that window before this step; sets active.", optional=True),
        _option("max_steps", "int", "Steps after which the loop ends; -1 for no limit."),
        _option("ranks", "ranks", "Ranks that record: all, node-first, every:8, or a list."),
        _option("step_unit", "word", "What one step is.", *STEP_UNITS),
        _option("activities", "words", f"auto, or some of {', '.join(ACTIVITIES)}."),
        _option("record_shapes", "bool", "Record the shapes of operators' inputs."),
        _option("profile_memory", "bool", "Record allocations and frees of tensor memory."),
        _option("with_stack", "bool", "Record Python stacks; also writes stacks.txt."),
        _option("with_flops", "bool", "Estimate floating-point operations."),
        _option("with_modules", "bool", "Record the module hierarchy (TorchScript)."),
        _option("cuda_sync_events", "bool", "Record what host and streams wait for on a GPU."),
        _option("auto_phases", "bool", "Time the parts of each step by listening to torch."),
        _option("step_record", "bool", "Write one line for each step."),
        _option(
            "window_recorder",
            "word",
            "What records a window: torch; cuda-range (marks it for nsys); tracemalloc; none.",
            *WINDOW_RECORDERS,
        ),
        _option("tracemalloc_frames", "int", "Frames that tracemalloc keeps of each stack."),
        _option("tracemalloc_rows", "int", "Greatest number of places in its table."),
        _option("tracemalloc_max_bytes", "size", "Memory of its own that ends its window early."),
        _option("export_trace", "bool", "Write the trace of each window."),
        _option("trace_format", "word", "Format of the trace.", "json.gz", "json", "json.zst"),
        _option(
            "tensorboard", "bool", "Put each trace where TensorBoard looks, in the output folder."
        ),
        _option(
            "tensorboard_dir",
            "path",
            "Put each trace here under TensorBoard's names.",
            optional=True,
        ),
        _option("key_averages", "bool", "Write the table of operators of each window."),
        _option("key_averages_sort", "word", "Column that orders it.", *SORT_COLUMNS),
        _option("key_averages_rows", "int", "Greatest number of its rows; -1 for all."),
        _option(
            "stacks_metric",
            "word",
            "What weighs the stacks.",
            "auto",
            "self_cpu_time_total",
            "self_cuda_time_total",
        ),
        _option(
            "memory_timeline",
            "word",
            "Draw memory over time: from the trace, or let torch.",
            "off",
            "trace",
            "torch",
        ),
        _option("execution_trace", "bool", "Write torch's execution trace of each window."),
        _option("flop_counter", "bool", "Count the FLOPs of one step with torch's own counter."),
        _option(
            "flop_counter_step", "int", "That step; one without a window otherwise.", optional=True
        ),
        _option("deepspeed_flops", "bool", "Write DeepSpeed's flops profile of one step."),
        _option("deepspeed_memory", "bool", "Write DeepSpeed's see_memory_usage in each step."),
        _option("memory_history", "bool", "Record the history of the CUDA allocator."),
        _option("memory_history_steps", "pair", "First and last step of that.", optional=True),
        _option("memory_max_entries", "int", "Greatest number of its entries."),
        _option(
            "memory_stacks", "word", "Its stacks: python, or all with C++ frames.", "python", "all"
        ),
        _option("memory_snapshot_at_end", "bool", "Take a memory snapshot at the end."),
        _option(
            "memory_snapshot_path",
            "path",
            "Also put the newest memory snapshot here.",
            optional=True,
        ),
        _option("oom_snapshot", "bool", "Take one when CUDA runs out of memory."),
        _option("memory_log", "bool", "Log each GPU's memory every few steps."),
        _option("memory_log_steps", "int", "Steps from one such line to the next."),
        _option("monitor", "bool", "Sample GPUs, host and processes into metrics.csv."),
        _option("monitor_interval_s", "float", "Seconds from one sample to the next."),
        _option("monitor_max_bytes", "size", "Greatest size of metrics.csv."),
        _option(
            "scalars",
            "word",
            "Write curves of the steps' times.",
            "tensorboard",
            "wandb",
            optional=True,
        ),
        _option("scalars_steps", "int", "Steps to a point of the curves."),
        _option("triggers", "bool", "Listen for windows asked for while the training runs."),
        _option(
            "slow_step_factor",
            "float",
            "Record after a step this many times the median.",
            optional=True,
        ),
        _option("slow_step_cooldown", "int", "Steps after it in which no other one asks."),
        _option(
            "max_pause_s", "float", "Greatest pause of the training for a window.", optional=True
        ),
        _option(
            "max_window_bytes",
            "size",
            "Greatest size of a window's trace, not compressed.",
            optional=True,
        ),
        _option(
            "max_run_bytes", "size", "Greatest size of a rank's windows on the disk.", optional=True
        ),
        _option("min_free_bytes", "size", "Room that must be free for a window."),
        _option("keep_windows", "int", "Number of newest windows to keep; 0 for all."),
        _option("export_mode", "word", "How events leave the training process.", *EXPORT_MODES),
        _option("export_timeout_s", "float", "How long making a window's files may take."),
        _option("flush_on_sigterm", "bool", "Save what was recorded when SIGTERM comes."),
        _option("grace_s", "float", "How long the end waits for files after SIGTERM."),
        _option("pause_together_s", "float", "How long ranks wait for those that record; 0: not."),
    )
}
"""Canonical name to option, in the order in which help and tables show them."""


def parse_bool(value: object) -> bool:
    """What a word or a boolean means.

    Raises:
        ValueError: It means neither.
    """
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("true or false")


def parse_size(value: object) -> int:
    """Bytes of a number or of a text such as "500MB" (powers of 1000) or "2GiB" (of 1024).

    Raises:
        ValueError: It is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise ValueError("a size such as 500MB or 2GiB")
    base = 1024 if match.group(3) else 1000
    factor: int = base ** _POWERS[match.group(2).lower()]
    return round(Fraction(match.group(1)) * factor)


def as_text(value: object) -> str:
    """A value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a number")
    return number


def _numbers(value: object) -> tuple[int, ...]:
    parts = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or len(parts) != 2:
        raise ValueError("two whole numbers such as 10,20")
    return tuple(_whole(part) for part in parts)


def _several(value: object) -> str | tuple[Any, ...]:
    """Words or ranks: one text stays one, a list becomes numbers where all are numbers."""
    if isinstance(value, bool):
        raise ValueError("a list")
    if isinstance(value, int):
        return (value,)
    parts = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError("a list")
    if all(isinstance(part, int) or str(part).isdecimal() for part in parts):
        return tuple(int(part) for part in parts)
    if len(parts) == 1:
        return str(parts[0])
    return tuple(str(part) for part in parts)
