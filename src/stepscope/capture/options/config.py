"""The options of a capture: one field each, checked once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.artifacts.custom import CustomArtifact
from stepscope.artifacts.job import TRACE_FORMATS
from stepscope.artifacts.key_averages import SORT_COLUMNS
from stepscope.capture.options.option import check, described, option, options_of
from stepscope.capture.options.recorders import WINDOW_RECORDERS
from stepscope.capture.options.rules import DEFAULT_OUTPUT_DIR, settle
from stepscope.capture.options.schedule import Schedule
from stepscope.capture.together.ranks import RanksOption
from stepscope.run.step_record import ITERATION, STEP_UNITS, StepRecord

TraceHandler = Callable[[Any], object]
"""A function that gets the torch profiler of a finished window, as in torch.profiler."""

ScalarWriter = Callable[[Mapping[str, float], int], object]
"""A function that gets values by name and the number of the last step that they cover."""

StepCondition = Callable[[StepRecord], bool]
"""A function that gets each finished step and says whether a window shall be recorded."""


@dataclass(frozen=True)
class CaptureConfig:
    """What to record, when, and where to put it.

    Steps are counted from 0 at the start of the capture. After `skip_first` steps come cycles of
    `wait` + `warmup` + `active` steps, of which the `active` ones are recorded as one window.

    Each option is a field that describes itself; see `stepscope.capture.options.option`.

    Raises:
        ConfigError: An option cannot work.
    """

    enabled: bool = option(
        True, "Record this training.", "False makes the profiler do nothing at all."
    )
    output_dir: str | os.PathLike[str] = option(
        DEFAULT_OUTPUT_DIR,
        "Folder in which the run's directory is made.",
        "Folder in which the run's directory is made. An fsspec URL, such as "
        '"s3://bucket/profiles", is the same as `upload_to` with the default folder.',
        kind="path",
    )
    run_name: str | None = option(
        None,
        "Name of that directory; made of the time otherwise.",
        "Name of that directory. None: made from the time of the start, the same on all ranks"
        " of a job.",
    )
    upload_to: str | None = option(
        None,
        "URL into which the run is copied as it grows.",
        "fsspec URL of a folder into which the run is copied while it grows, beside the "
        "training; what cannot be copied stays local. None: no copy.",
    )
    keep_local: bool = option(
        True,
        "Keep what was copied there.",
        "Keep what was copied; False removes it locally when the capture ends.",
    )
    skip_first: int = option(0, "Steps to leave out before the first cycle.", least=0)
    skip_first_wait: bool = option(
        False,
        "Begin the first cycle with its warm-up.",
        "Begin the first cycle with its warm-up, without waiting.",
    )
    wait: int = option(5, "Steps of each cycle in which nothing is recorded.", least=0)
    warmup: int = option(2, "Steps of each cycle in which the profiler warms up.", least=0)
    active: int = option(
        3,
        "Steps of each cycle that are recorded.",
        "Steps of each cycle that are recorded; at least 1.",
        least=1,
    )
    repeat: int = option(1, "Number of cycles; 0 for no end.", least=0)
    cycle_length: int | None = option(
        None,
        "With repeat 0: steps of a cycle; sets wait.",
        "With `repeat=0`, the length of a cycle: `wait` becomes cycle_length - warmup - "
        "active. Ignored with any other `repeat`.",
        least=1,
    )
    max_steps: int = option(
        -1,
        "Steps after which the loop ends; -1 for no limit.",
        "End of the loop as `watch` and `should_stop` see it; -1 for none. A positive number "
        "that is too small for one window is raised to what one window needs.",
        least=-1,
    )
    ranks: RanksOption = option(
        "all",
        "Ranks that record: all, node-first, every:8, or a list.",
        'Which ranks record windows: "all", "node-first", "every:8", a rank or a list. Every '
        "rank keeps its step record.",
        kind="ranks",
    )
    coordinates: Mapping[str, int] | None = option(
        None,
        'The rank\'s place in the device mesh, such as {"dp": 3, "tp": 0}, for the manifest.',
        kind="code",
    )
    step_unit: str = option(
        ITERATION,
        "What one step is.",
        'What one step is: "iteration", "micro-batch" or "optimizer step".',
        choices=STEP_UNITS,
    )
    activities: str | Sequence[str] = option(
        "auto",
        "auto, or some of cpu, cuda, xpu.",
        'What to record: some of "cpu", "cuda", "xpu", or "auto" for all that torch supports '
        "here. What is asked for and missing is left out with one line of warning.",
        kind="words",
    )
    record_shapes: bool = option(False, "Record the shapes of operators' inputs.")
    profile_memory: bool = option(False, "Record allocations and frees of tensor memory.")
    with_stack: bool = option(
        False,
        "Record Python stacks; also writes stacks.txt.",
        "Record Python stacks; also writes `stacks.txt`.",
        artifact="stacks",
    )
    with_flops: bool = option(
        False,
        "Estimate floating-point operations.",
        "Estimate floating-point operations (implies shapes).",
    )
    with_modules: bool = option(False, "Record the module hierarchy (TorchScript).")
    cuda_sync_events: bool = option(
        False,
        "Record what host and streams wait for on a GPU.",
        "Record what the host and streams wait for on a GPU: synchronisations of devices, "
        "streams and events. They are no GPU work, and tell why there is none.",
    )
    auto_phases: bool = option(
        False,
        "Time the parts of each step by listening to torch.",
        "Time forward, backward, optimizer, communication and a DataLoader's batches without "
        "`phase` in the loop, by listening to torch while the capture runs.",
    )
    step_record: bool = option(
        True, "Write one line for each step.", "Write one line per step to `steps.jsonl`."
    )
    window_recorder: str = option(
        "torch",
        "What records a window: torch; cuda-range (marks it for nsys); tracemalloc; none.",
        'What records the steps of a window. "torch": torch\'s profiler. "cuda-range": another'
        " tool does, such as nsys; the window is marked for it by cudaProfilerStart and "
        '-Stop, and its steps and operators by NVTX ranges. "tracemalloc": Python\'s own, into'
        ' `python_memory.txt`. "none": nothing; there are only the steps\' times.',
        choices=tuple(WINDOW_RECORDERS),
    )
    tracemalloc_frames: int = option(
        1,
        "Frames that tracemalloc keeps of each stack.",
        "Frames of the stack that tracemalloc keeps for each block of memory.",
        least=1,
    )
    tracemalloc_rows: int = option(25, "Greatest number of places in its table.", least=1)
    tracemalloc_max_bytes: int = option(
        256 << 20,
        "Memory of its own that ends its window early.",
        "Memory of its own at which tracemalloc ends a window early.",
        kind="size",
        least=1,
    )
    export_trace: bool = option(
        True, "Write the trace of each window.", "Write `trace.json.gz` for each window."
    )
    trace_format: str = option(
        "json.gz",
        "Format of the trace.",
        '"json.gz", "json" or "json.zst" (which needs the package zstandard).',
        choices=TRACE_FORMATS,
    )
    tensorboard_dir: str | os.PathLike[str] | None = option(
        None,
        "Put each trace here under TensorBoard's names.",
        "Also put each trace here, under the names that TensorBoard looks for.",
        kind="path",
    )
    key_averages: bool = option(
        True,
        "Write the table of operators of each window.",
        "Write `key_averages.txt` and `key_averages.csv` for each window.",
        artifact="key_averages",
    )
    key_averages_sort: str = option(
        "auto",
        "Column that orders it.",
        'Column that orders it; "auto" is self_device_time_total where a device is recorded, '
        "else self_cpu_time_total.",
        choices=SORT_COLUMNS,
        artifact="key_averages",
    )
    key_averages_rows: int = option(
        100,
        "Greatest number of its rows; -1 for all.",
        "Greatest number of rows in it; -1 for all.",
        least=-1,
        artifact="key_averages",
    )
    stacks_metric: str = option(
        "auto",
        "What weighs the stacks.",
        'What weighs the stacks: "auto", "self_cpu_time_total" or "self_cuda_time_total".',
        choices=("auto", "self_cpu_time_total", "self_cuda_time_total"),
        artifact="stacks",
    )
    memory_timeline: str = option(
        "off",
        "Draw memory over time: from the trace, or let torch.",
        '"off"; "trace": draw `memory_timeline.html` and `.json` from the trace (implies '
        'profile_memory); "torch": let torch make its own, on the training thread, which '
        "takes minutes (implies profile_memory, record_shapes and with_stack).",
        choices=("off", "trace", "torch"),
        artifact="memory_timeline",
    )
    execution_trace: bool = option(
        False,
        "Write torch's execution trace of each window.",
        "Write torch's execution trace, `execution_trace.json`, for each window.",
    )
    artifacts: CustomArtifact | Sequence[CustomArtifact] | None = option(
        None,
        "Functions or classes of your own that make further files of each window: they are "
        "called with a `FinishedWindow`. What can be imported runs beside the training, what "
        "cannot (defined in the script itself) on the training thread.",
        kind="code",
    )
    on_trace_ready: TraceHandler | Sequence[TraceHandler] | None = option(
        None,
        "Function or functions called with the torch profiler of each finished window, as "
        "torch.profiler does. What they raise is noted and never reaches the loop.",
        kind="code",
    )
    flop_counter: bool = option(
        False,
        "Count the FLOPs of one step with torch's own counter.",
        "Count the floating-point operations of one step with torch's own counter, and write "
        "`flop_counter.txt`: by operator and by module. The step takes longer, and counts as "
        "none of the training's in averages.",
    )
    flop_counter_step: int | None = option(
        None,
        "That step; one without a window otherwise.",
        "That step. None: the first from step 1 on that no window records.",
        least=0,
    )
    deepspeed_flops: bool = option(
        False,
        "Write DeepSpeed's flops profile of one step.",
        "Where a DeepSpeed engine is followed, write what its flops profiler says of one "
        "step, that of `flop_counter_step`, to `profiler_ds.txt`.",
    )
    deepspeed_memory: bool = option(
        False,
        "Write DeepSpeed's see_memory_usage in each step.",
        "Where a DeepSpeed engine is followed, write its `see_memory_usage` after each "
        "forward, backward and optimizer step to the terminal and to `memory_deepspeed.txt`. "
        "It collects Python's garbage and resets peak statistics each time: for debugging "
        "only.",
    )
    memory_history: bool = option(False, "Record the history of the CUDA allocator.")
    memory_history_steps: tuple[int, int] | None = option(
        None,
        "First and last step of that.",
        "First and last step of that; None for the whole run. A snapshot is taken after the last.",
        kind="pair",
    )
    memory_max_entries: int = option(
        100_000,
        "Greatest number of its entries.",
        "Greatest number of entries of the history.",
        least=1,
    )
    memory_stacks: str = option(
        "python",
        "Its stacks: python, or all with C++ frames.",
        '"python", or "all" with C++ frames, which takes very much longer to write.',
        choices=("python", "all"),
    )
    memory_snapshot_at_end: bool = option(
        False,
        "Take a memory snapshot at the end.",
        "Take a snapshot when the capture ends; a history that no snapshot has shown gets one"
        " in any case.",
    )
    oom_snapshot: bool = option(
        True,
        "Take one when CUDA runs out of memory.",
        "Take a snapshot when CUDA runs out of memory, before the error is raised.",
    )
    memory_log: bool = option(
        False,
        "Log each GPU's memory every few steps.",
        "Write a line on each GPU's memory to `memory.log` every `memory_log_steps` steps. It"
        " resets CUDA's peak statistics, so that each line has its own peak.",
    )
    memory_log_steps: int = option(10, "Steps from one such line to the next.", least=1)
    monitor: bool = option(
        False,
        "Sample GPUs, host and processes into metrics.csv.",
        "Sample GPUs, host and processes into `metrics.csv`, in a process beside the training.",
    )
    monitor_interval_s: float = option(1.0, "Seconds from one sample to the next.", least=0.05)
    monitor_max_bytes: int = option(
        64 << 20,
        "Greatest size of metrics.csv.",
        "Greatest size of that file: where it is reached, every second sample is dropped, and"
        " samples are taken half as often from then on.",
        kind="size",
        least=1 << 20,
    )
    scalars: str | ScalarWriter | None = option(
        None,
        "Write curves of the steps' times.",
        '"tensorboard", "wandb" (which must have been initialised), or a function of values '
        "by name and a step: curves of step time, input wait and phases, averaged over "
        "`scalars_steps` steps, with the least and the greatest rank. None for no curves.",
        kind="word",
        choices=("tensorboard", "wandb"),
    )
    scalars_steps: int = option(10, "Steps to a point of the curves.", least=1)
    triggers: bool = option(
        True,
        "Listen for windows asked for while the training runs.",
        "Listen for `stepscope trigger`, SIGUSR2 and `Profiler.trigger`, which ask for "
        "windows besides the schedule's.",
    )
    slow_step_factor: float | None = option(
        None,
        "Record after a step this many times the median.",
        "Record a window when a step took this many times the rolling median of the last 50; "
        "None for never.",
        least=1.0,
    )
    slow_step_cooldown: int = option(
        200,
        "Steps after it in which no other one asks.",
        "Steps after such a step in which no other one asks for a window.",
        least=1,
    )
    trigger_when: StepCondition | Sequence[StepCondition] | None = option(
        None,
        "Function or functions called with each step's `StepRecord`; one that returns True "
        "asks for a window, and none is asked again within `slow_step_cooldown` steps. One "
        "that raises is noted and not called again.",
        kind="code",
    )
    max_pause_s: float | None = option(
        None,
        "Greatest pause of the training for a window.",
        "Greatest pause of the training at the end of a window: fewer steps are recorded, or "
        "no stacks, where a step recorded on trial during the warm-up says that it would be "
        "longer. None: no limit.",
        above=0,
    )
    max_window_bytes: int | None = option(
        None,
        "Greatest size of a window's trace, not compressed.",
        "Greatest size of a window's trace before compression, kept likewise. On the disk it "
        "is about a tenth of that.",
        kind="size",
        least=1,
    )
    max_run_bytes: int | None = option(
        None,
        "Greatest size of a rank's windows on the disk.",
        "Greatest size of all windows' files of a rank; the oldest are removed, the newest is"
        " always kept. None: no limit.",
        kind="size",
        least=1,
    )
    min_free_bytes: int = option(
        256 << 20,
        "Room that must be free for a window.",
        "Room that must be free on the disk for a window to be opened.",
        kind="size",
        least=0,
    )
    keep_windows: int = option(
        0,
        "Number of newest windows to keep; 0 for all.",
        "Number of windows of which the files are kept, the newest; 0 for all.",
        least=0,
    )
    export_mode: str = option(
        "auto",
        "How events leave the training process.",
        'How a window\'s events leave the training process: "fork" (a child writes them), '
        '"inline" (the training thread writes them plainly, another process does the rest), '
        'or "auto": fork where that is known to be safe and quicker.',
        choices=("auto", "fork", "inline"),
    )
    export_timeout_s: float = option(
        300.0,
        "How long making a window's files may take.",
        "How long another process may take for a window's files; also how long the end of the"
        " capture waits for them.",
        above=0,
    )
    flush_on_sigterm: bool = option(
        True,
        "Save what was recorded when SIGTERM comes.",
        "On SIGTERM, which schedulers send before they kill, save what was recorded before "
        "the process ends or the training's own handler runs.",
    )
    grace_s: float = option(10.0, "How long the end waits for files after SIGTERM.", above=0)
    pause_together_s: float = option(
        120.0,
        "How long ranks wait for those that record; 0: not.",
        "Where only some ranks record, how long the others wait at the window's last step for"
        " those, outside their collectives, so that no collective times out; 0 for not at "
        "all.",
        least=0.0,
    )

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field, _ in options_of(self)}
        for field, info in options_of(self):
            check(field.name, values[field.name], info)
        for name, value in settle(values).items():
            object.__setattr__(self, name, value)

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
        return {field.name: _plain(getattr(self, field.name)) for field, _ in options_of(self)}


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: functions by their names."""
    if isinstance(value, os.PathLike):
        return str(value)
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, tuple) and (not value or any(map(callable, value))):
        return [_plain(item) for item in value]
    return value


CaptureConfig.__doc__ = described(CaptureConfig)
