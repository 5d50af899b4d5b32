"""The options of a capture, checked once, in one place."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.artifacts.custom import CustomArtifact
from stepscope.artifacts.job import TRACE_FORMATS
from stepscope.capture.options.schedule import Schedule
from stepscope.capture.together.ranks import RanksOption, parse_ranks
from stepscope.errors import UsageError
from stepscope.run.remote import is_url
from stepscope.run.step_record import StepRecord

TraceHandler = Callable[[Any], object]
"""A function that gets the torch profiler of a finished window, as in torch.profiler."""

ScalarWriter = Callable[[Mapping[str, float], int], object]
"""A function that gets values by name and the number of the last step that they cover."""

StepCondition = Callable[[StepRecord], bool]
"""A function that gets each finished step and says whether a window shall be recorded."""

DEFAULT_OUTPUT_DIR = "profiles"
STEP_UNITS = ("iteration", "micro-batch", "optimizer step")
ACTIVITIES = ("cpu", "cuda", "xpu")
EXPORT_MODES = ("auto", "fork", "inline")
WINDOW_RECORDERS = ("torch", "cuda-range", "tracemalloc", "none")
SORT_COLUMNS = (
    "auto",
    "cpu_time",
    "cpu_time_total",
    "cpu_memory_usage",
    "self_cpu_time_total",
    "self_cpu_memory_usage",
    "device_time",
    "device_time_total",
    "device_memory_usage",
    "self_device_time_total",
    "self_device_memory_usage",
    "count",
)
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")


class ConfigError(UsageError, ValueError):
    """An option of a capture that cannot work. Names the option, the value and the remedy."""


@dataclass(frozen=True)
class CaptureConfig:
    """What to record, when, and where to put it.

    Steps are counted from 0 at the start of the capture. After `skip_first` steps come cycles of
    `wait` + `warmup` + `active` steps, of which the `active` ones are recorded as one window.

    Attributes:
        enabled: False makes the profiler do nothing at all.
        output_dir: Folder in which the run's directory is made. An fsspec URL, such as
            "s3://bucket/profiles", is the same as `upload_to` with the default folder.
        run_name: Name of that directory. None: made from the time of the start, the same on all
            ranks of a job.
        upload_to: fsspec URL of a folder into which the run is copied while it grows, beside the
            training; what cannot be copied stays local. None: no copy.
        keep_local: Keep what was copied; False removes it locally when the capture ends.
        skip_first: Steps to leave out before the first cycle.
        skip_first_wait: Begin the first cycle with its warm-up, without waiting.
        wait: Steps of each cycle in which nothing is recorded.
        warmup: Steps of each cycle in which the profiler warms up.
        active: Steps of each cycle that are recorded; at least 1.
        repeat: Number of cycles; 0 for no end.
        cycle_length: With `repeat=0`, the length of a cycle: `wait` becomes
            cycle_length - warmup - active. Ignored with any other `repeat`.
        max_steps: End of the loop as `watch` and `should_stop` see it; -1 for none. A positive
            number that is too small for one window is raised to what one window needs.
        ranks: Which ranks record windows: "all", "node-first", "every:8", a rank or a list. Every
            rank keeps its step record.
        step_unit: What one step is: "iteration", "micro-batch" or "optimizer step".
        activities: What to record: some of "cpu", "cuda", "xpu", or "auto" for all that torch
            supports here. What is asked for and missing is left out with one line of warning.
        record_shapes: Record the shapes of operators' inputs.
        profile_memory: Record allocations and frees of tensor memory.
        with_stack: Record Python stacks; also writes `stacks.txt`.
        with_flops: Estimate floating-point operations (implies shapes).
        with_modules: Record the module hierarchy (TorchScript).
        cuda_sync_events: Record what the host and streams wait for on a GPU: synchronisations of
            devices, streams and events. They are no GPU work, and tell why there is none.
        window_recorder: What records the steps of a window. "torch": torch's profiler.
            "cuda-range": another tool does, such as nsys; the window is marked for it by
            cudaProfilerStart and -Stop, and its steps and operators by NVTX ranges.
            "tracemalloc": Python's own, into `python_memory.txt`. "none": nothing; there are
            only the steps' times.
        tracemalloc_frames: Frames of the stack that tracemalloc keeps for each block of memory.
        tracemalloc_rows: Greatest number of places in its table.
        tracemalloc_max_bytes: Memory of its own at which tracemalloc ends a window early.
        auto_phases: Time forward, backward, optimizer, communication and a DataLoader's batches
            without `phase` in the loop, by listening to torch while the capture runs.
        step_record: Write one line per step to `steps.jsonl`.
        export_trace: Write `trace.json.gz` for each window.
        trace_format: "json.gz", "json" or "json.zst" (which needs the package zstandard).
        export_mode: How a window's events leave the training process: "fork" (a child writes
            them), "inline" (the training thread writes them plainly, another process does the
            rest), or "auto": fork where that is known to be safe and quicker.
        export_timeout_s: How long another process may take for a window's files; also how long
            the end of the capture waits for them.
        flush_on_sigterm: On SIGTERM, which schedulers send before they kill, save what was
            recorded before the process ends or the training's own handler runs.
        grace_s: How long the end waits for files after SIGTERM.
        max_pause_s: Greatest pause of the training at the end of a window: fewer steps are
            recorded, or no stacks, where a step recorded on trial during the warm-up says that it
            would be longer. None: no limit.
        max_window_bytes: Greatest size of a window's trace before compression, kept likewise. On
            the disk it is about a tenth of that.
        min_free_bytes: Room that must be free on the disk for a window to be opened.
        keep_windows: Number of windows of which the files are kept, the newest; 0 for all.
        max_run_bytes: Greatest size of all windows' files of a rank; the oldest are removed, the
            newest is always kept. None: no limit.
        triggers: Listen for `stepscope trigger`, SIGUSR2 and `Profiler.trigger`, which ask for
            windows besides the schedule's.
        slow_step_factor: Record a window when a step took this many times the rolling median of
            the last 50; None for never.
        slow_step_cooldown: Steps after such a step in which no other one asks for a window.
        trigger_when: Function or functions called with each step's `StepRecord`; one that returns
            True asks for a window, and none is asked again within `slow_step_cooldown` steps. One
            that raises is noted and not called again.
        scalars: "tensorboard", "wandb" (which must have been initialised), or a function of values
            by name and a step: curves of step time, input wait and phases, averaged over
            `scalars_steps` steps, with the least and the greatest rank. None for no curves.
        scalars_steps: Steps to a point of the curves.
        pause_together_s: Where only some ranks record, how long the others wait at the window's
            last step for those, outside their collectives, so that no collective times out; 0 for
            not at all.
        coordinates: The rank's place in the device mesh, such as {"dp": 3, "tp": 0}, for the
            manifest.
        key_averages: Write `key_averages.txt` and `key_averages.csv` for each window.
        key_averages_sort: Column that orders it; "auto" is self_device_time_total where a device
            is recorded, else self_cpu_time_total.
        key_averages_rows: Greatest number of rows in it; -1 for all.
        memory_timeline: "off"; "trace": draw `memory_timeline.html` and `.json` from the trace
            (implies profile_memory); "torch": let torch make its own, on the training thread,
            which takes minutes (implies profile_memory, record_shapes and with_stack).
        execution_trace: Write torch's execution trace, `execution_trace.json`, for each window.
        flop_counter: Count the floating-point operations of one step with torch's own counter, and
            write `flop_counter.txt`: by operator and by module. The step takes longer, and counts
            as none of the training's in averages.
        flop_counter_step: That step. None: the first from step 1 on that no window records.
        tensorboard_dir: Also put each trace here, under the names that TensorBoard looks for.
        artifacts: Functions or classes of your own that make further files of each window: they
            are called with a `FinishedWindow`. What can be imported runs beside the training,
            what cannot (defined in the script itself) on the training thread.
        memory_history: Record the history of the CUDA allocator.
        memory_history_steps: First and last step of that; None for the whole run. A snapshot is
            taken after the last.
        memory_max_entries: Greatest number of entries of the history.
        memory_stacks: "python", or "all" with C++ frames, which takes very much longer to write.
        memory_snapshot_at_end: Take a snapshot when the capture ends; a history that no snapshot
            has shown gets one in any case.
        oom_snapshot: Take a snapshot when CUDA runs out of memory, before the error is raised.
        memory_log: Write a line on each GPU's memory to `memory.log` every `memory_log_steps`
            steps. It resets CUDA's peak statistics, so that each line has its own peak.
        memory_log_steps: Steps from one such line to the next.
        monitor: Sample GPUs, host and processes into `metrics.csv`, in a process beside the
            training.
        monitor_interval_s: Seconds from one sample to the next.
        monitor_max_bytes: Greatest size of that file: where it is reached, every second sample is
            dropped, and samples are taken half as often from then on.
        deepspeed_flops: Where a DeepSpeed engine is followed, write what its flops profiler says of
            one step, that of `flop_counter_step`, to `profiler_ds.txt`.
        deepspeed_memory: Where a DeepSpeed engine is followed, write its `see_memory_usage` after
            each forward, backward and optimizer step to the terminal and to
            `memory_deepspeed.txt`. It collects Python's garbage and resets peak statistics each
            time: for debugging only.
        stacks_metric: What weighs the stacks: "auto", "self_cpu_time_total" or
            "self_cuda_time_total".
        on_trace_ready: Function or functions called with the torch profiler of each finished
            window, as torch.profiler does. What they raise is noted and never reaches the loop.

    Raises:
        ConfigError: An option cannot work.
    """

    enabled: bool = True
    output_dir: str | os.PathLike[str] = DEFAULT_OUTPUT_DIR
    run_name: str | None = None
    upload_to: str | None = None
    keep_local: bool = True
    skip_first: int = 0
    skip_first_wait: bool = False
    wait: int = 5
    warmup: int = 2
    active: int = 3
    repeat: int = 1
    cycle_length: int | None = None
    max_steps: int = -1
    ranks: RanksOption = "all"
    step_unit: str = "iteration"
    activities: str | Sequence[str] = "auto"
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    cuda_sync_events: bool = False
    window_recorder: str = "torch"
    tracemalloc_frames: int = 1
    tracemalloc_rows: int = 25
    tracemalloc_max_bytes: int = 256 << 20
    auto_phases: bool = False
    step_record: bool = True
    export_trace: bool = True
    trace_format: str = "json.gz"
    export_mode: str = "auto"
    export_timeout_s: float = 300.0
    flush_on_sigterm: bool = True
    grace_s: float = 10.0
    max_pause_s: float | None = None
    max_window_bytes: int | None = None
    min_free_bytes: int = 256 << 20
    keep_windows: int = 0
    max_run_bytes: int | None = None
    triggers: bool = True
    slow_step_factor: float | None = None
    slow_step_cooldown: int = 200
    trigger_when: StepCondition | Sequence[StepCondition] | None = None
    scalars: str | ScalarWriter | None = None
    scalars_steps: int = 10
    pause_together_s: float = 120.0
    coordinates: Mapping[str, int] | None = None
    key_averages: bool = True
    key_averages_sort: str = "auto"
    key_averages_rows: int = 100
    stacks_metric: str = "auto"
    memory_timeline: str = "off"
    execution_trace: bool = False
    flop_counter: bool = False
    flop_counter_step: int | None = None
    tensorboard_dir: str | os.PathLike[str] | None = None
    artifacts: CustomArtifact | Sequence[CustomArtifact] | None = None
    memory_history: bool = False
    memory_history_steps: tuple[int, int] | None = None
    memory_max_entries: int = 100_000
    memory_stacks: str = "python"
    memory_snapshot_at_end: bool = False
    oom_snapshot: bool = True
    memory_log: bool = False
    memory_log_steps: int = 10
    monitor: bool = False
    monitor_interval_s: float = 1.0
    monitor_max_bytes: int = 64 << 20
    deepspeed_flops: bool = False
    deepspeed_memory: bool = False
    on_trace_ready: TraceHandler | Sequence[TraceHandler] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "bool":
                _check_bool(field.name, getattr(self, field.name))
        for name, least in (
            ("skip_first", 0),
            ("wait", 0),
            ("warmup", 0),
            ("active", 1),
            ("repeat", 0),
            ("max_steps", -1),
            ("key_averages_rows", -1),
            ("min_free_bytes", 0),
            ("keep_windows", 0),
            ("slow_step_cooldown", 1),
            ("memory_max_entries", 1),
            ("memory_log_steps", 1),
            ("scalars_steps", 1),
            ("monitor_max_bytes", 1 << 20),
            ("tracemalloc_frames", 1),
            ("tracemalloc_rows", 1),
            ("tracemalloc_max_bytes", 1),
        ):
            _check_whole(name, getattr(self, name), least)
        for name, least in (
            ("max_window_bytes", 1),
            ("max_run_bytes", 1),
            ("flop_counter_step", 0),
        ):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), least)
        if self.max_pause_s is not None:
            _check_seconds("max_pause_s", self.max_pause_s)
        for name in ("max_pause_s", "max_window_bytes"):
            if getattr(self, name) is not None and self.warmup == 0:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} needs a step to be recorded on trial before "
                    "the window: give warmup=1 or more"
                )
        self._settle_cycle()
        self._settle_max_steps()
        self._settle_words()
        if self.slow_step_factor is not None:
            _check_number("slow_step_factor", self.slow_step_factor, 1.0)
        _check_number("pause_together_s", self.pause_together_s, 0.0)
        _check_number("monitor_interval_s", self.monitor_interval_s, 0.05)
        for name in ("on_trace_ready", "trigger_when", "artifacts"):
            self._set(name, _functions(name, getattr(self, name)))

    @property
    def schedule(self) -> Schedule:
        """The schedule that the options describe."""
        return Schedule(
            self.skip_first,
            self.wait,
            self.warmup,
            self.active,
            self.repeat,
            self.skip_first_wait,
        )

    @property
    def detail_step(self) -> int:
        """The step over which detailed counters run: one outside windows, if there is one."""
        wanted = self.flop_counter_step
        return self.schedule.first_quiet_step(1) if wanted is None else wanted

    @property
    def handlers(self) -> tuple[TraceHandler, ...]:
        """The functions of `on_trace_ready`."""
        return self.on_trace_ready if isinstance(self.on_trace_ready, tuple) else ()

    @property
    def conditions(self) -> tuple[StepCondition, ...]:
        """The functions of `trigger_when`."""
        return self.trigger_when if isinstance(self.trigger_when, tuple) else ()

    @property
    def custom_artifacts(self) -> tuple[CustomArtifact, ...]:
        """The functions and classes of `artifacts`."""
        return self.artifacts if isinstance(self.artifacts, tuple) else ()

    def options(self) -> dict[str, Any]:
        """The options as plain values, for the run's description."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["output_dir"] = str(self.output_dir)
        if callable(self.scalars):
            values["scalars"] = getattr(self.scalars, "__qualname__", type(self.scalars).__name__)
        if self.tensorboard_dir is not None:
            values["tensorboard_dir"] = str(self.tensorboard_dir)
        for name in ("on_trace_ready", "trigger_when", "artifacts"):
            values[name] = [
                getattr(function, "__qualname__", type(function).__name__)
                for function in values[name]
            ]
        return values

    def _settle_cycle(self) -> None:
        if self.cycle_length is None:
            return
        _check_whole("cycle_length", self.cycle_length, 1)
        if self.repeat != 0:
            return
        wait = self.cycle_length - self.warmup - self.active
        if wait < 0:
            raise ConfigError(
                f"cycle_length={self.cycle_length} is too short for warmup={self.warmup} and "
                f"active={self.active}: give at least {self.warmup + self.active}"
            )
        self._set("wait", wait)

    def _settle_max_steps(self) -> None:
        if self.max_steps == 0:
            raise ConfigError("max_steps=0 leaves nothing to do: give -1 for no limit")
        if 0 < self.max_steps < self.schedule.first_end():
            self._set("max_steps", self.schedule.first_end())

    def _settle_words(self) -> None:
        try:
            self._set("ranks", parse_ranks(self.ranks))
        except UsageError as error:
            raise ConfigError(str(error)) from None
        _check_choice("window_recorder", self.window_recorder, WINDOW_RECORDERS)
        _check_choice("trace_format", self.trace_format, TRACE_FORMATS)
        _check_choice("export_mode", self.export_mode, EXPORT_MODES)
        _check_seconds("export_timeout_s", self.export_timeout_s)
        _check_seconds("grace_s", self.grace_s)
        if self.scalars is not None and not callable(self.scalars):
            _check_choice("scalars", self.scalars, ("tensorboard", "wandb"))
        _check_choice("memory_timeline", self.memory_timeline, ("off", "trace", "torch"))
        _check_choice("memory_stacks", self.memory_stacks, ("python", "all"))
        if self.memory_timeline != "off":
            self._set("profile_memory", True)
        if self.memory_timeline == "torch":
            self._set("record_shapes", True)
            self._set("with_stack", True)
        if self.memory_history_steps is not None:
            self._settle_history_steps(self.memory_history_steps)
        _check_choice("step_unit", self.step_unit, STEP_UNITS)
        _check_choice("key_averages_sort", self.key_averages_sort, SORT_COLUMNS)
        _check_choice(
            "stacks_metric",
            self.stacks_metric,
            ("auto", "self_cpu_time_total", "self_cuda_time_total"),
        )
        activities = self.activities
        if activities != "auto":
            words = (activities,) if isinstance(activities, str) else tuple(activities)
            for word in words:
                _check_choice("activities", word, (*ACTIVITIES, "auto"))
            if not words or "auto" in words:
                raise ConfigError(
                    f"activities={activities!r}: give 'auto', or some of {', '.join(ACTIVITIES)}"
                )
            self._set("activities", tuple(dict.fromkeys(words)))
        if self.run_name is not None and not _RUN_NAME.fullmatch(str(self.run_name)):
            raise ConfigError(
                f"run_name={self.run_name!r} is no name for a directory: use up to 200 letters, "
                "digits and . _ + = @ -, beginning with a letter or digit"
            )
        for name, place in dict(self.coordinates or {}).items():
            if not str(name).isidentifier() or isinstance(place, bool) or place < 0:
                raise ConfigError(
                    f"coordinates={self.coordinates!r}: give names with whole numbers, such as "
                    '{"dp": 3, "tp": 0}'
                )
        if isinstance(self.output_dir, str) and is_url(self.output_dir):
            self._set("upload_to", self.upload_to or self.output_dir)
            self._set("output_dir", DEFAULT_OUTPUT_DIR)
        if self.upload_to is not None:
            _check_url("upload_to", self.upload_to)
        if is_url(str(self.tensorboard_dir or "")):
            raise ConfigError(
                f"tensorboard_dir={self.tensorboard_dir!r}: give a local folder; one inside the "
                "run's own is copied with it to upload_to"
            )
        try:
            self._set("output_dir", Path(self.output_dir))
        except TypeError:
            raise ConfigError(f"output_dir={self.output_dir!r} is not a path") from None

    def _settle_history_steps(self, steps: Sequence[int]) -> None:
        if len(steps) != 2 or not 0 <= steps[0] <= steps[1]:
            raise ConfigError(
                f"memory_history_steps={steps!r}: give the first and the last step, as (10, 20)"
            )
        self._set("memory_history_steps", tuple(steps))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither True nor False")


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}={value!r} is not a whole number")
    if value < least:
        raise ConfigError(f"{name}={value} is too small: give {least} or more")


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"{name}={value!r} is no time: give a number of seconds above 0")


def _check_number(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} cannot be: give a number of {least:g} or more")


def _check_url(name: str, value: object) -> None:
    """Check that something can be written there; the network is not asked."""
    if not isinstance(value, str) or not is_url(value):
        raise ConfigError(f"{name}={value!r} is no URL: give one such as s3://bucket/profiles")
    import fsspec

    try:
        fsspec.get_filesystem_class(value.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{name}={value!r} cannot be written to: {error}") from None


def _functions(name: str, value: object) -> tuple[Callable[..., Any], ...]:
    """One function or several, as a tuple."""
    given = () if value is None else value if isinstance(value, Sequence) else (value,)
    for function in given:
        if not callable(function):
            raise ConfigError(
                f"{name}={function!r} cannot be called: give a function of one argument"
            )
    return tuple(given)


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not known: choose one of {', '.join(choices)}")
