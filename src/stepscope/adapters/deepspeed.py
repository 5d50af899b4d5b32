"""Follows a DeepSpeed engine: steps, phases, flops profile and memory.

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
import io
import logging
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

from stepscope.adapters.profiler import Profiler
from stepscope.adapters.script.engines import EngineFollower, Engines, engines_so_far
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
MEMORY_KIND, MEMORY_FILE = "deepspeed_memory", "memory_deepspeed.txt"
_PHASES = {"forward": FORWARD, "backward": BACKWARD, "step": OPTIMIZER}
"""What a call is a phase of, by the engine's method."""
_PARTS = {"backward": "bwd", "step": "step", "train_batch": "iter"}
"""DeepSpeed's names of what is timed beside the forward pass, by the engine's method."""
_MOST_MEMORY_TEXTS = 30_000
"""Of `memory_deepspeed.txt`, one for each part of a step; later ones are only printed."""


def follow(engine: Any, profiler: Profiler) -> EngineWatch:
    """End a step of the capture wherever the engine ends one, and time its parts.

    A step of the capture is a step of the engine's optimizer, with all micro-batches that it
    accumulates. With `step_unit="micro-batch"`, each call of `engine.step()` ends one. `watch` no
    longer ends steps. The option `deepspeed_flops` writes DeepSpeed's flops profile of one forward
    pass to `profiler_ds.txt`; `deepspeed_memory` calls its `see_memory_usage` in each step. A
    profiler that is not enabled leaves the engine unchanged.

    Args:
        engine: The engine that `deepspeed.initialize` returned, or a pipeline engine.

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
    earlier = profiler.session.engine
    if isinstance(earlier, EngineWatch):
        earlier.detach()
    watch = EngineWatch(engine, profiler)
    watch.attach()
    return watch


def follow_new_engines(profiler: Profiler) -> None:
    """Follow the first engine that is constructed from now on, while the profiler runs.

    It serves integrations without code, whose script names its profiler but not its engine. Steps
    still end where the loop ends them, so that none counts twice. The engine's parts are timed and
    its texts written. An engine that is constructed before the profiler starts is followed from its
    start; if several were constructed before the profiler, none of them is.
    """
    finder = _FirstEngine(profiler)
    engines = Engines(finder)
    profiler.session.after_start.append(finder.started)
    profiler.session.before_end += [engines.restore, finder.ending]
    engines.wrap_all()


class _FirstEngine(EngineFollower):
    """Notices the first engine that is constructed."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._first: weakref.ref[Any] | None = None

    def made(self, engine: Any) -> None:
        """Follow it if the profiler runs."""
        if self._first is None or self._first() is None:
            self._first = weakref.ref(engine)
            if self._profiler.run_path is not None:
                self.started()

    def started(self) -> None:
        """Follow the engine that was there before the start."""
        session = self._profiler.session
        if session.engine is not None:
            return
        with session.contain("following the engine"):
            engine = (self._first() if self._first is not None else None) or _only_engine()
            if engine is not None:
                EngineWatch(engine, self._profiler, ends_steps=False).attach()

    def ending(self) -> None:
        """Warn if the memory of an engine was to be printed, and there was none."""
        session = self._profiler.session
        is_asked = self._profiler.config.deepspeed_memory and session.identity.rank == 0
        if is_asked and session.engine is None:
            named = session.option_names.name("deepspeed_memory")
            log.warning("stepscope: %s printed nothing: no DeepSpeed engine was followed", named)


def _only_engine() -> Any:
    """The engine that was constructed before; None if there is none, or several."""
    engines = engines_so_far()
    if len(engines) > 1:
        log.warning(
            "stepscope: there are %d DeepSpeed engines, and none is followed: "
            "stepscope.adapters.deepspeed.follow(engine, profiler) follows one",
            len(engines),
        )
    return engines[0] if len(engines) == 1 else None


class EngineWatch(EngineFollower):
    """The wrappers around one engine, whose steps end those of the capture unless the loop does."""

    def __init__(self, engine: Any, profiler: Profiler, *, ends_steps: bool = True) -> None:
        self._engine = engine
        self._profiler = profiler
        self._ends_steps = ends_steps
        self._engines: Engines | None = None
        self._flops: FlopsProfile | None = None
        self._memory: list[str] = []

    def attach(self) -> None:
        """Wrap the engine's methods, and prepare what the options ask for."""
        session, config = self._profiler.session, self._profiler.config
        session.engine = self
        if self._ends_steps:
            session.watch_ends_steps = False
        if session.records_windows and config.deepspeed_flops:
            self._flops = FlopsProfile(self._engine, self._profiler)
        if "deepspeed" in sys.modules:  # the real one
            session.overviews.append(memory_overview)
        self._engines = Engines(self)
        self._engines.wrap(self._engine, ("forward", "backward", "step", "train_batch"))
        session.before_end.append(self.close)

    def close(self) -> None:
        """Restore the engine, and write the files of the end."""
        if self._engines is None:
            return
        self.detach()
        if self._flops is not None:
            self._flops.write()
            self._flops.warn_if_missed()
        if self._memory:
            text = "".join(self._memory)
            self._profiler.session.add_text(MEMORY_KIND, MEMORY_FILE, text)

    def detach(self) -> None:
        """Restore the engine."""
        engines, self._engines = self._engines, None
        if engines is not None:
            engines.restore()

    # -- what is wrapped ------------------------------------------------------------------------

    def entering(self, engine: Any, name: str) -> contextlib.AbstractContextManager[object]:
        """Time the call as a phase; `train_batch` of a pipeline contains everything of a step."""
        is_training = bool(getattr(engine, "training", True))
        phase = _PHASES.get(name)
        if phase == FORWARD and not is_training:
            phase = EVALUATION
        timed = contextlib.nullcontext() if phase is None else self._profiler.phase(phase)
        flops, part = self._flops, _PARTS.get(name)
        if flops is None:
            return timed
        with contextlib.ExitStack() as stack:
            stack.enter_context(timed)
            if part is not None and flops.is_timing(part):
                stack.enter_context(flops.timing(part))
            if is_training and name in {"forward", "train_batch"}:
                stack.enter_context(flops.counting())
            return stack.pop_all()

    def left(self, engine: Any, name: str, *, has_stepped: bool) -> None:  # noqa: ARG002 - the one
        """End the step where the engine has counted one."""
        if name in {"forward", "backward"}:
            self._see_memory(name)
            return
        if has_stepped:
            self._see_memory("step")
        profiler = self._profiler
        if self._ends_steps and (has_stepped or profiler.config.step_unit == MICRO_BATCH):
            profiler.step()
            if self._flops is not None:
                self._flops.write()

    def _see_memory(self, where: str) -> None:
        """Print and keep DeepSpeed's `see_memory_usage`; empty on ranks other than the first."""
        profiler = self._profiler
        if not profiler.config.deepspeed_memory:
            return
        named = profiler.session.option_names.name("deepspeed_memory")  # as it was typed
        with profiler.phase(f"{OF_OPTION}{named}"):
            text = see_memory_usage(f"After {where} of step {profiler.session.steps.number}")
            sys.stdout.write(text)
        if text and len(self._memory) < _MOST_MEMORY_TEXTS:
            self._memory.append(text)


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
    """

    def __init__(self, engine: Any, profiler: Profiler) -> None:
        self._engine = engine
        self._profiler = profiler
        self._step = profiler.config.detail_step
        self._text = ""
        self._latency_ns: dict[str, int] = {}
        self._is_over = False
        # Two of DeepSpeed's profilers cannot run at once.
        is_theirs = getattr(engine, "flops_profiler_enabled", bool)
        if is_theirs() and engine.flops_profiler_profile_step() == self._step:
            self._step += 1

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Profile the block if it is the first forward pass of the step."""
        profile = self._begin()
        try:
            yield
        except BaseException:
            if profile is not None:
                with contextlib.suppress(Exception):
                    profile.end_profile()
            raise
        if profile is not None:
            self._end(profile)

    @contextlib.contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Time a part of the step, on a device that has nothing else to do."""
        _synchronise()
        started_ns = time.perf_counter_ns()
        yield
        _synchronise()
        self._latency_ns[part] = time.perf_counter_ns() - started_ns

    def _begin(self) -> Any:
        """The profile, started if this is the first forward pass of the step; None if not."""
        if self._is_over or self._profiler.session.steps.number != self._step:
            return None
        self._is_over = True
        try:
            from deepspeed.profiling.flops_profiler import FlopsProfiler

            factor = getattr(self._engine, "flops_profiler_recompute_fwd_factor", lambda: 0.0)()
            profile = FlopsProfiler(self._engine.module, _EngineView(self._engine), factor)
            profile.start_profile(ignore_list=None)
        except Exception as error:  # noqa: BLE001 - DeepSpeed's own failure is not the training's
            log.warning("stepscope: no flops profile of DeepSpeed: %s", error)
            return None
        self._profiler.mark("flops profile")
        return profile

    def _end(self, profile: Any) -> None:
        """End the profile and keep its text."""
        try:
            profile.stop_profile()
            with contextlib.redirect_stdout(io.StringIO()) as text:
                profile.print_model_profile(profile_step=self._step)
            forward_s = getattr(profile, "get_total_duration", float)()
            profile.end_profile()
            self._latency_ns["fwd"] = round(forward_s * 1e9)
            self._text = text.getvalue()
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("stepscope: no flops profile of DeepSpeed: %s", error)

    def write(self) -> None:
        """Write the text, outside the time of any step."""
        text, self._text = self._text, ""
        if text:
            self._profiler.session.add_text(FLOPS_KIND, FLOPS_FILE, text + self._latencies())
            self._profiler.session.restart_step()

    def is_timing(self, part: str) -> bool:
        """Whether this part of the current step is timed: once, in the step of the profile."""
        return part not in self._latency_ns and self._profiler.session.steps.number == self._step

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

    def warn_if_missed(self) -> None:
        """Warn at the end of the capture if the step was never reached."""
        if not self._is_over:
            log.warning(
                "stepscope: no flops profile of DeepSpeed: the training ended before step %d, "
                "whose first forward pass was to be profiled: choose another deepspeed_flops_step",
                self._step,
            )


def _synchronise() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def see_memory_usage(message: str) -> str:
    """The output of DeepSpeed's `see_memory_usage`; empty if it is missing.

    It resets the device's peak statistics, and prints nothing on ranks other than the first.
    """
    try:
        from deepspeed.runtime.utils import see_memory_usage as theirs
    except ImportError:
        return ""
    # Newer versions print, older ones use DeepSpeed's logger.
    with contextlib.redirect_stdout(io.StringIO()) as text, _heard(text):
        theirs(message, force=True)
    return text.getvalue()


def memory_overview() -> str:
    """DeepSpeed's part of the overview of memory."""
    text = see_memory_usage("DeepSpeed, see_memory_usage")
    return f"{text}\n" if text else ""


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
