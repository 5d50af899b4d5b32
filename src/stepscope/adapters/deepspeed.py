"""Follows a DeepSpeed engine: steps, phases, flops profile, communication and memory.

    engine, *_ = deepspeed.initialize(...)
    with stepscope.Profiler(step_unit="optimizer step") as profiler:
        follow(engine, profiler)
        for batch in profiler.watch(loader):
            loss = engine(batch)
            engine.backward(loss)
            engine.step()

During the capture, `forward`, `backward`, `step` and `train_batch` of this engine are wrapped. The
wrappers call the original with the same arguments and pass on what it returns or raises. They are
removed when the capture ends.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.adapters.profiler import Profiler
from stepscope.errors import UsageError
from stepscope.run.step_record import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    MICRO_BATCH,
    OF_OPTION,
    OPTIMIZER,
)

log = logging.getLogger("stepscope")

FLOPS_KIND, FLOPS_FILE = "deepspeed_flops", "profiler_ds.txt"
COMMS_KIND, COMMS_FILE = "deepspeed_comms", "comms_summary.txt"
MEMORY_KIND, MEMORY_FILE = "deepspeed_memory", "memory_deepspeed.txt"
_MOST_MEMORY_BYTES = 8 << 20
"""Limit of `memory_deepspeed.txt`, about ten thousand steps; later lines are only printed."""


def follow(engine: Any, profiler: Profiler) -> EngineWatch:
    """End a step of the capture wherever the engine ends one, and time its parts.

    A step of the capture is a step of the engine's optimizer, with all micro-batches that it
    accumulates. With `step_unit="micro-batch"`, each call of `engine.step()` ends one. `watch` no
    longer ends steps. The option `deepspeed_flops` writes DeepSpeed's flops profile of one forward
    pass to `profiler_ds.txt`; `deepspeed_memory` calls its `see_memory_usage` in each step. If
    DeepSpeed's comms logger is on, its summary is written to `comms_summary.txt` at the end. A
    profiler that is not enabled leaves the engine unchanged.

    Args:
        engine: The engine that `deepspeed.initialize` returned, or a pipeline engine.
        profiler: The capture, started.

    Returns:
        The watch, which ends with the capture, or earlier by `close`.

    Raises:
        UsageError: `engine` is not a DeepSpeed engine, or the profiler was not started.
    """
    missing = [name for name in ("step", "backward", "global_steps") if not hasattr(engine, name)]
    if missing:
        raise UsageError(
            f"{type(engine).__name__} is not a DeepSpeed engine (it has no {missing[0]!r}): give "
            "the first result of deepspeed.initialize"
        )
    if not profiler.config.enabled:
        return EngineWatch(engine, profiler)
    if profiler.run_path is None:
        raise UsageError("start the profiler before it follows an engine: use it in a with block")
    earlier = profiler.engine_watch
    if isinstance(earlier, EngineWatch):
        earlier.detach()
    watch = EngineWatch(engine, profiler)
    watch.attach()
    return watch


class EngineWatch:
    """The wrappers around one engine.

    Args:
        engine: The engine.
        profiler: The capture.
        ends_steps: Whether the engine's steps end those of the capture. If not, the loop does.
    """

    def __init__(self, engine: Any, profiler: Profiler, *, ends_steps: bool = True) -> None:
        self._engine = engine
        self._profiler = profiler
        self._ends_steps = ends_steps
        self._replaced: dict[str, Any] = {}
        self._is_attached = False
        self._is_inside = False
        self._flops: FlopsProfile | None = None
        self._memory: MemoryLines | None = None

    def attach(self) -> None:
        """Wrap the engine's methods, and prepare what the options ask for."""
        self._is_attached = True
        profiler, config = self._profiler, self._profiler.config
        profiler.engine_watch = self
        if self._ends_steps:
            profiler.watch_ends_steps = False
        if profiler.records_windows and config.deepspeed_flops:
            self._flops = FlopsProfile(self._engine, profiler)
        if config.deepspeed_memory:
            self._memory = MemoryLines(profiler)
        if has_deepspeed():
            profiler.add_overview(memory_overview)
        self._replace("forward", self._around_forward)
        self._replace("backward", self._around_backward)
        self._replace("step", self._around_step)
        if hasattr(self._engine, "train_batch"):
            self._replace("train_batch", self._around_step)
        profiler.before_end(self.close)

    def close(self) -> None:
        """Restore the engine, and write the files of the end."""
        if not self._is_attached:
            return
        self.detach()
        if self._flops is not None:
            self._flops.write()
            self._flops.say_if_missed()
        if self._memory is not None:
            self._memory.write()
        text = comms_summary()
        if text:
            self._profiler.add_text(COMMS_KIND, COMMS_FILE, text)

    def detach(self) -> None:
        """Restore the engine."""
        self._is_attached = False
        for name, wrapper in self._replaced.items():
            # If other code wrapped it after us, its wrapper stays, and ours inside does nothing.
            if vars(self._engine).get(name) is wrapper:
                delattr(self._engine, name)

    # -- what is wrapped ------------------------------------------------------------------------

    def _replace(self, name: str, around: Callable[[Callable[..., Any], str], Any]) -> None:
        original = getattr(self._engine, name)
        wrapper = functools.wraps(original)(around(original, name))
        setattr(self._engine, name, wrapper)
        self._replaced[name] = wrapper

    def _around_forward(self, original: Callable[..., Any], _: str) -> Callable[..., Any]:
        def forward(*arguments: Any, **keywords: Any) -> Any:
            if not self._is_attached or self._is_inside:
                return original(*arguments, **keywords)
            is_training = bool(getattr(self._engine, "training", True))
            name = FORWARD if is_training else EVALUATION
            with (
                self._outermost(),
                self._profiler.phase(name),
                self._flops_counted(is_wanted=is_training),
            ):
                output = original(*arguments, **keywords)
            self._see_memory("forward")
            return output

        return forward

    def _around_backward(self, original: Callable[..., Any], _: str) -> Callable[..., Any]:
        def backward(*arguments: Any, **keywords: Any) -> Any:
            if not self._is_attached or self._is_inside:
                return original(*arguments, **keywords)
            with self._outermost(), self._profiler.phase(BACKWARD), self._timed("bwd"):
                result = original(*arguments, **keywords)
            self._see_memory("backward")
            return result

        return backward

    def _around_step(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wrap `step`, or `train_batch` of a pipeline, which contains everything of a step."""
        is_whole = name == "train_batch"

        def step(*arguments: Any, **keywords: Any) -> Any:
            if not self._is_attached or self._is_inside:
                return original(*arguments, **keywords)
            engine, profiler = self._engine, self._profiler
            before = engine.global_steps
            phase = contextlib.nullcontext() if is_whole else profiler.phase(OPTIMIZER)
            timed = self._timed("iter" if is_whole else "step")
            with self._outermost(), phase, timed, self._flops_counted(is_wanted=is_whole):
                result = original(*arguments, **keywords)
            # The engine counts its optimizer steps itself, including those that an overflow
            # skipped.
            is_boundary = engine.global_steps != before
            if is_boundary:
                self._see_memory("step")
            if self._ends_steps and (is_boundary or profiler.config.step_unit == MICRO_BATCH):
                profiler.step()
                if self._flops is not None:
                    self._flops.write()
            return result

        return step

    @contextlib.contextmanager
    def _outermost(self) -> Iterator[None]:
        """Mark the outermost call, the only one that counts: wrapped methods call each other."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    @contextlib.contextmanager
    def _flops_counted(self, *, is_wanted: bool) -> Iterator[None]:
        flops = self._flops if is_wanted else None
        if flops is None:
            yield
            return
        flops.begin()
        try:
            yield
        except BaseException:
            flops.drop()
            raise
        flops.end()

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        if self._flops is None or not self._flops.is_timing(part):
            yield
            return
        _synchronise()
        started_ns = time.perf_counter_ns()
        yield
        _synchronise()
        self._flops.took(part, time.perf_counter_ns() - started_ns)

    def _see_memory(self, where: str) -> None:
        if self._memory is not None:
            self._memory.see(where)


class _EngineView:
    """The engine as the flops profiler should see it: without timers that were reset in between."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def wall_clock_breakdown(self) -> bool:
        """Whether the profile reads the engine's timers: never, since they are of other steps."""
        return False


class FlopsProfile:
    """DeepSpeed's flops profile of the first forward pass of a step; of a pipeline, of all passes.

    It is driven from here rather than by the engine's own configuration, because the engine ends it
    before the outermost module has been timed.

    Args:
        engine: The engine.
        profiler: The capture.
    """

    def __init__(self, engine: Any, profiler: Profiler) -> None:
        self._engine = engine
        self._profiler = profiler
        self._step = profiler.detail_step
        self._profile: Any = None
        self._text = ""
        self._latency_ns: dict[str, int] = {}
        self._is_over = False
        # Two of DeepSpeed's profilers cannot run at once.
        is_theirs = getattr(engine, "flops_profiler_enabled", bool)
        if is_theirs() and engine.flops_profiler_profile_step() == self._step:
            self._step += 1

    def begin(self) -> None:
        """Start the profile if this is the first forward pass of the step."""
        if self._is_over or self._profiler.step_number != self._step:
            return
        self._is_over = True
        try:
            from deepspeed.profiling.flops_profiler import FlopsProfiler

            factor = getattr(self._engine, "flops_profiler_recompute_fwd_factor", lambda: 0.0)()
            profile = FlopsProfiler(self._engine.module, _EngineView(self._engine), factor)
            profile.start_profile(ignore_list=None)
        except Exception as error:  # noqa: BLE001 - DeepSpeed's own failure is not the training's
            log.warning("stepscope: no flops profile of DeepSpeed: %s", error)
            return
        self._profile = profile
        self._profiler.mark("flops profile")

    def end(self) -> None:
        """End the profile and keep its text."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        try:
            profile.stop_profile()
            with contextlib.redirect_stdout(io.StringIO()) as said:
                profile.print_model_profile(profile_step=self._step)
            forward_s = getattr(profile, "get_total_duration", float)()
            profile.end_profile()
            self._latency_ns["fwd"] = round(forward_s * 1e9)
            self._text = said.getvalue()
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("stepscope: no flops profile of DeepSpeed: %s", error)

    def write(self) -> None:
        """Write the text, outside the time of any step."""
        text, self._text = self._text, ""
        if text:
            self._profiler.add_text(FLOPS_KIND, FLOPS_FILE, text + self._latencies())
            self._profiler.restart_step()

    def is_timing(self, part: str) -> bool:
        """Whether this part of the current step is timed: once, in the step of the profile."""
        return part not in self._latency_ns and self._profiler.step_number == self._step

    def took(self, part: str, duration_ns: int) -> None:
        """Note how long a part of the step took."""
        self._latency_ns[part] = duration_ns

    def _latencies(self) -> str:
        """The latencies of the step, in the manner of DeepSpeed's table."""
        found = dict(self._latency_ns)
        if "iter" in found:
            found.pop("fwd", None)  # the passes of a pipeline are part of it
        elif found.keys() >= {"fwd", "bwd", "step"}:
            found["iter"] = sum(found.values())
        lines = [
            f"{f'{part} latency:':<60}  {found[part] / 1e6:.2f} ms"
            for part in ("fwd", "bwd", "step", "iter")
            if part in found
        ]
        if not lines:
            return ""
        title = f"Latencies of step {self._step} (first micro-batch, with the device synchronised):"
        return "\n".join(["", title, *lines, ""])

    def say_if_missed(self) -> None:
        """Warn at the end of the capture if the step was never reached."""
        if not self._is_over:
            log.warning(
                "stepscope: no flops profile of DeepSpeed: the training ended before step %d, "
                "whose first forward pass was to be profiled: choose another flop_counter_step",
                self._step,
            )

    def drop(self) -> None:
        """Drop the profile of a pass that raised."""
        profile, self._profile = self._profile, None
        if profile is not None:
            with contextlib.suppress(Exception):
                profile.end_profile()


def _synchronise() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class MemoryLines:
    """The output of `see_memory_usage` after each part of a step, printed and stored.

    Args:
        profiler: The capture.
    """

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._lines: list[str] = []
        self._bytes = 0

    def see(self, where: str) -> None:
        """Call DeepSpeed, which prints nothing on ranks other than the first."""
        with self._profiler.phase(f"{OF_OPTION}deepspeed_memory"):
            text = see_memory_usage(f"After {where} of step {self._profiler.step_number}")
            sys.stdout.write(text)
        if text and self._bytes < _MOST_MEMORY_BYTES:
            self._lines.append(text)
            self._bytes += len(text)

    def write(self) -> None:
        """Write the lines to a file."""
        if self._lines:
            self._profiler.add_text(MEMORY_KIND, MEMORY_FILE, "".join(self._lines))


def has_deepspeed() -> bool:
    """Whether the real DeepSpeed is loaded in this process."""
    return "deepspeed" in sys.modules


def see_memory_usage(message: str) -> str:
    """The output of DeepSpeed's `see_memory_usage`; empty if it is missing.

    It resets the device's peak statistics, and prints nothing on ranks other than the first.
    """
    try:
        from deepspeed.runtime.utils import see_memory_usage as theirs
    except ImportError:
        return ""
    # Newer versions print, older ones use DeepSpeed's logger.
    with contextlib.redirect_stdout(io.StringIO()) as said, _heard(said):
        theirs(message, force=True)
    return said.getvalue()


def memory_overview() -> str:
    """DeepSpeed's part of the overview of memory."""
    text = see_memory_usage("DeepSpeed, see_memory_usage")
    return f"{text}\n" if text else ""


def comms_summary() -> str:
    """The summary of DeepSpeed's comms logger on this rank; empty if it is off or saw nothing.

    Its bandwidths are as DeepSpeed defines them: "tput" counts an all_reduce twice.
    """
    module = sys.modules.get("deepspeed.comm.comm")
    logger = getattr(module, "comms_logger", None)
    if logger is None or not logger.enabled or not logger.comms_dict:
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as said, _heard(said):
        logger.log_all(print_log=True, show_straggler=False)
    return said.getvalue()


@contextlib.contextmanager
def _heard(stream: io.StringIO) -> Iterator[None]:
    """Redirect DeepSpeed's logger to a stream, whatever level it has: versions differ in that."""
    from deepspeed.utils import logger

    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before, logger.handlers = logger.handlers, [handler]
    propagates, logger.propagate = logger.propagate, False
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.handlers, logger.propagate = before, propagates
