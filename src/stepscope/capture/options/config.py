"""The options of a capture: one field each, checked once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.capture.options.option import ConfigError, option, options_of
from stepscope.capture.options.schedule import DEFAULT_OUTPUT_DIR, Schedule, settle
from stepscope.capture.ranks import RanksOption
from stepscope.run.step_record import ITERATION, STEP_UNITS

WINDOW_RECORDERS: dict[str, str | None] = {
    "torch": "torch_window",
    "cuda-range": "cuda_range",
    "tracemalloc": "python_memory",
    "none": None,
}
"""Values of the option `window_recorder`, each with the module of `stepscope.capture.windows` that
records such windows; None if there are none.
"""

TraceHandler = Callable[[Any], object]
"""A function of the torch profiler of a finished window, as in torch.profiler."""


@dataclass(frozen=True)
class CaptureConfig:
    """What to record, when, and where to put it.

    Steps are counted from 0 at the start of the capture. After `skip_first` steps come cycles of
    `wait` + `warmup` + `active` steps, of which the `active` ones are recorded as one window.

    Each option is a field that describes itself; see `stepscope.capture.options.option`.

    Raises:
        ConfigError: An option is invalid.
    """

    # -- where files go -------------------------------------------------------------------------

    enabled: bool = option(True, "Record this training.", "False makes the profiler do nothing.")
    output_dir: str | os.PathLike[str] = option(
        DEFAULT_OUTPUT_DIR,
        "Folder in which the run directory is created.",
        "A local folder, or a mounted one.",
        kind="path",
    )
    run_name: str | None = option(
        None,
        "Name of the run directory; derived from the start time if unset.",
        "It is the same on all ranks of a job.",
    )
    announce: bool = option(
        True,
        "Print what is recorded, saved and missing.",
        "Lines on standard error when a window warms up, when it is saved, and at the end.",
    )

    # -- which steps are recorded ---------------------------------------------------------------

    skip_first: int = option(0, "Number of steps before the first cycle.", least=0)
    skip_first_wait: bool = option(False, "Start the first cycle with its warm-up, not its wait.")
    wait: int = option(5, "Steps at the start of each cycle that are not recorded.", least=0)
    warmup: int = option(2, "Warm-up steps of the profiler in each cycle.", least=0)
    active: int = option(3, "Recorded steps in each cycle, at least 1.", least=1)
    repeat: int = option(1, "Number of cycles; 0 for no limit.", least=0)
    cycle_length: int | None = option(
        None,
        "Length of a cycle when repeat is 0; sets wait.",
        "`wait` becomes `cycle_length - warmup - active`. Ignored unless `repeat=0`.",
        least=1,
    )
    max_steps: int = option(
        -1,
        "Steps after which the loop ends; -1 for no limit.",
        "It applies to loops that use `watch` or `should_stop`. A number that is too small for "
        "one window is raised to what a window needs, if the recording is enabled.",
        least=-1,
    )
    max_steps_per_loop: bool = option(
        False,
        "Count max_steps anew in each loop over `watch`, such as an epoch.",
        "If not, it limits the whole training.",
    )
    ranks: RanksOption = option(
        "all",
        "Ranks that record windows: all, node-first, every:8, or a list.",
        "Every rank keeps its step record.",
        kind="ranks",
    )
    coordinates: Mapping[str, int] | None = option(
        None,
        'The position of the rank in the device mesh, such as {"dp": 3, "tp": 0}.',
        "It is written to the manifest.",
        kind="code",
    )
    step_unit: str = option(
        ITERATION,
        "What one step is: iteration, micro-batch or optimizer step.",
        choices=STEP_UNITS,
    )

    # -- what is recorded -----------------------------------------------------------------------

    activities: str | Sequence[str] = option(
        "auto",
        "What to record: some of cpu, cuda, xpu, or auto for all that are available.",
        "Activities that are not available are skipped with a warning.",
        kind="words",
    )
    record_shapes: bool = option(False, "Record the input shapes of operators.")
    profile_memory: bool = option(False, "Record allocations and frees of tensor memory.")
    with_stack: bool = option(
        False, "Record Python stacks, and write stacks.txt.", artifact="stacks"
    )
    with_flops: bool = option(
        False, "Estimate the floating-point operations of operators.", "Implies shapes."
    )
    with_modules: bool = option(
        False, "Record the module hierarchy (TorchScript only; deprecated since torch 2.14)."
    )
    cuda_sync_events: bool = option(
        False,
        "Record synchronisations of GPU devices, streams and events.",
        "They are not GPU work, but show what the host and the streams wait for.",
    )
    auto_phases: bool = option(
        False,
        "Time the phases of each step automatically.",
        "Forward, backward, optimizer, communication, saving and waits for a DataLoader are "
        "detected from calls into torch, without `phase` in the loop.",
    )
    step_record: bool = option(True, "Write one line per step to steps.jsonl.")
    window_recorder: str = option(
        "torch",
        "What records a window: torch, cuda-range (for nsys), tracemalloc or none.",
        '"torch" is torch.profiler. "cuda-range" marks the window for nsys with '
        "cudaProfilerStart and cudaProfilerStop, and its steps and operators with NVTX ranges. "
        '"tracemalloc" writes `python_memory.txt`. "none" records step times only.',
        choices=tuple(WINDOW_RECORDERS),
    )
    tracemalloc_frames: int = option(
        1, "Stack frames that tracemalloc keeps per memory block.", least=1
    )
    tracemalloc_rows: int = option(25, "Maximum number of rows in tracemalloc's table.", least=1)
    tracemalloc_max_bytes: int = option(
        256 << 20,
        "Size of tracemalloc's own memory that ends the window early.",
        kind="size",
        least=1,
    )

    # -- files of a window ----------------------------------------------------------------------

    export_trace: bool = option(True, "Write the trace of each window.")
    trace_format: str = option(
        "json.gz",
        "Format of the trace: json.gz or json.",
        choices=("json.gz", "json"),
    )
    tensorboard_dir: str | os.PathLike[str] | None = option(
        None, "Also write each trace to this folder under TensorBoard's file names.", kind="path"
    )
    tensorboard_worker: str = option(
        "rank{rank}_{host}_{pid}",
        "Name of the worker in TensorBoard's file names.",
        "{rank}, {host} and {pid} are replaced.",
    )
    key_averages: bool = option(
        True,
        "Write a table of operators for each window.",
        "The files are `key_averages.txt` and `key_averages.csv`.",
        artifact="key_averages",
    )
    key_averages_by: str = option(
        "name",
        "What divides the rows of the table of operators besides the name.",
        "name (nothing), shape, source, both, or recorded: what the recording has of them. Shapes "
        "need record_shapes; source lines need with_stack.",
        choices=("name", "shape", "source", "both", "recorded"),
        artifact="key_averages",
    )
    key_averages_rows: int = option(
        100,
        "Maximum number of rows in the table of operators; -1 for all.",
        least=-1,
        artifact="key_averages",
    )
    memory_timeline: str = option(
        "off",
        "Draw memory over time: off, trace (from the trace) or torch (by torch itself).",
        '"trace" draws memory by phase in `memory_timeline.html`, and implies profile_memory. '
        '"torch" draws it by torch\'s categories (parameters, gradients, '
        "activations and so on); torch finds these on the training thread, which takes up to "
        "minutes, and they imply profile_memory, record_shapes and with_stack. Where it fails, "
        "phases are drawn.",
        choices=("off", "trace", "torch"),
        artifact="memory_timeline",
    )
    on_trace_ready: TraceHandler | Sequence[TraceHandler] | None = option(
        None,
        "Functions called with the torch profiler of each finished window.",
        "As with torch.profiler. Their exceptions are noted and never reach the loop.",
        kind="code",
    )

    # -- details of one step --------------------------------------------------------------------

    deepspeed_flops: bool = option(
        False,
        "Write the flops profile of DeepSpeed for one step.",
        "Needs a followed DeepSpeed engine. The file is `profiler_ds.txt`.",
    )
    deepspeed_flops_step: int | None = option(
        None,
        "The step of that profile; one outside windows if unset.",
        least=0,
    )
    deepspeed_memory: bool = option(
        False,
        "Print DeepSpeed's see_memory_usage in each step.",
        "Needs a followed DeepSpeed engine. It is called after each forward, backward and "
        "optimizer step, and also written to `memory_deepspeed.txt`. Each call collects garbage "
        "and resets peak statistics, so use it for debugging only.",
    )

    # -- memory ---------------------------------------------------------------------------------

    memory_history: bool = option(False, "Record the history of the CUDA allocator.")
    memory_max_entries: int = option(
        100_000, "Maximum number of entries in the allocator's history.", least=1
    )
    memory_snapshot_at_end: bool = option(
        False,
        "Take a memory snapshot when the capture ends.",
        "A history that no snapshot contains yet always gets one.",
    )
    memory_census: bool = option(
        False,
        "Note which memory holds parameters, gradients, optimizer state, inputs and activations.",
        "Only while memory is recorded: in a window, or with memory_history. `stepscope memory` "
        "puts the names to the memory. Writes `memory_census.jsonl`; implies profile_memory.",
    )
    oom_snapshot: bool = option(
        True,
        "Take a memory snapshot when CUDA runs out of memory.",
        "It is taken before the error is raised.",
    )
    memory_log: bool = option(
        False,
        "Print the memory of each GPU every memory_log_steps steps.",
        "Also writes `memory.log`. Resets CUDA's peak statistics, so that each line has its own "
        "peak. Without a GPU, the line has the process's memory on the host.",
    )
    memory_log_steps: int = option(10, "Steps between two lines of the memory log.", least=1)

    # -- beside the training --------------------------------------------------------------------

    monitor: bool = option(
        False,
        "Sample GPUs, host and processes into metrics.csv.",
        "The monitor runs in a process beside the training.",
    )
    monitor_interval_s: float = option(1.0, "Seconds between two samples.", least=0.05)
    monitor_max_bytes: int = option(
        64 << 20,
        "Maximum size of metrics.csv.",
        "When it is reached, every second sample is dropped and the interval is doubled.",
        kind="size",
        least=1 << 20,
    )
    # -- windows on demand ----------------------------------------------------------------------

    triggers: bool = option(
        True,
        "Accept requests for windows while the training runs.",
        "Requests come from `stepscope trigger`, `Profiler.trigger` and slow steps.",
    )
    slow_step_factor: float | None = option(
        None,
        "Record a window after a step that took this many times the median.",
        "The median is that of the last 50 steps.",
        least=1.0,
    )
    slow_step_cooldown: int = option(
        200, "Steps after a slow step in which no further window is requested.", least=1
    )
    # -- limits ---------------------------------------------------------------------------------

    max_pause_s: float | None = option(
        None,
        "Maximum pause of the training at the end of a window, in seconds.",
        "A step is recorded on trial during the warm-up. If the window would take longer, fewer "
        "steps are recorded, or no stacks.",
        above=0,
    )
    max_window_bytes: int | None = option(
        None,
        "Maximum size of a window's trace before compression.",
        "Enforced like `max_pause_s`. On disk, a trace is about a tenth of that.",
        kind="size",
        least=1,
    )
    min_free_bytes: int = option(
        256 << 20, "Free disk space that is required to open a window.", kind="size", least=0
    )
    keep_windows: int = option(
        0, "Number of windows whose files are kept, the newest first; 0 for all.", least=0
    )

    # -- the end of a window and of the run -----------------------------------------------------

    export_timeout_s: float = option(
        300.0,
        "Time limit for making a window's files, in seconds.",
        "Also how long the end of the capture waits for them.",
        above=0,
    )
    flush_on_sigterm: bool = option(
        True,
        "Save what was recorded on SIGTERM.",
        "Schedulers send it before they kill a job. Saving comes before the process ends or the "
        "training's own handler runs.",
    )
    grace_s: float = option(
        10.0, "How long the end waits for files after SIGTERM, in seconds.", above=0
    )
    pause_together_s: float = option(
        120.0,
        "How long ranks wait for others that save a window, in seconds; 0 to disable.",
        "If only some ranks record, the others wait at the window's last step, outside of "
        "collectives, so that no collective times out.",
        least=0.0,
    )

    def __post_init__(self) -> None:
        values = {}
        for name, described in options_of(self).items():
            value = values[name] = getattr(self, name)
            problem = described.problem(value)
            if problem:
                raise ConfigError(f"{name}={value!r} {problem}")
        settle(values)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def schedule(self) -> Schedule:
        """The schedule that the options describe."""
        return Schedule.of(vars(self))

    @property
    def detail_step(self) -> int:
        """The step of DeepSpeed's FLOPs profile: outside any window if possible."""
        wanted = self.deepspeed_flops_step
        return self.schedule.first_quiet_step(1) if wanted is None else wanted

    @property
    def handlers(self) -> tuple[TraceHandler, ...]:
        """The functions of `on_trace_ready`."""
        return self.on_trace_ready if isinstance(self.on_trace_ready, tuple) else ()

    def options(self) -> dict[str, Any]:
        """The options as plain values, for the run's description."""
        return {name: _plain(getattr(self, name)) for name in options_of(self)}


def _plain(value: Any) -> Any:
    """A value for JSON: functions become their names."""
    if isinstance(value, os.PathLike):
        return str(value)
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, tuple) and (not value or any(map(callable, value))):
        return [_plain(item) for item in value]
    return value


CaptureConfig.__doc__ = "\n".join(
    (
        f"{CaptureConfig.__doc__}\n    Attributes:",
        *(f"        {one.name}: {one.about}" for one in options_of(CaptureConfig).values()),
    )
)
