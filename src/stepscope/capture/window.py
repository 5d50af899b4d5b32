"""One window: a torch profiler that is prepared, started, stopped, and gives up its events."""

from __future__ import annotations

import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.capture.artifacts import (
    RawTrace,
    export_raw,
    save_key_averages,
    save_stacks,
    save_trace,
)
from stepscope.capture.config import CaptureConfig
from stepscope.run.files import replacing
from stepscope.run.manifest import ArtifactRecord, WindowRecord

log = logging.getLogger("stepscope")


def another_profiler_runs() -> bool:
    """Whether a torch profiler is already recording in this process."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


def choose_activities(config: CaptureConfig) -> list[Any]:
    """The torch activities to record; what is asked for and missing costs one line of warning."""
    from torch.profiler import ProfilerActivity, supported_activities

    supported = supported_activities()
    if config.activities == "auto":
        words = [word for word in ("cpu", "cuda", "xpu") if _activity(word) in supported]
    else:
        words = []
        for word in config.activities:
            if _activity(word) in supported:
                words.append(word)
            else:
                log.warning(
                    "stepscope: activity %r is not supported by this torch or machine: "
                    "recording without it",
                    word,
                )
        words = words or ["cpu"]
    return [getattr(ProfilerActivity, word.upper()) for word in words]


def _activity(word: str) -> Any:
    from torch.profiler import ProfilerActivity

    return getattr(ProfilerActivity, word.upper(), None)


@dataclass(frozen=True)
class WindowPlan:
    """What a window is meant to record.

    Attributes:
        index: Its number.
        first_step: Its first recorded step.
        steps: Number of steps to record.
        directory: Where its files go.
    """

    index: int
    first_step: int
    steps: int
    directory: Path


class WindowCapture:
    """Drives one torch profiler through warm-up, recording and saving.

    Args:
        config: The capture's options.
        plan: What to record.
        activities: torch activities, from `choose_activities`.
    """

    def __init__(self, config: CaptureConfig, plan: WindowPlan, activities: list[Any]) -> None:
        import torch.profiler

        self._config = config
        self.plan = plan
        self.is_recording = False
        self.is_prepared = False
        self._step_range: Any = None
        extra: dict[str, Any] = {}
        if config.with_stack:
            # Without it export_stacks writes an empty file.
            extra["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)
        self.profiler: Any = torch.profiler.profile(
            activities=activities,
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            with_modules=config.with_modules,
            **extra,
        )

    def prepare(self) -> None:
        """Begin the warm-up: the recording machinery starts, its events are thrown away."""
        self.profiler.prepare_trace()
        self.is_prepared = True

    def start(self) -> None:
        """Begin recording."""
        if not self.is_prepared:
            self.prepare()
        self.profiler.start_trace()
        self.is_recording = True

    def open_step(self, step: int) -> None:
        """Begin the range that marks a step in the trace."""
        import torch

        self._step_range = torch.profiler.record_function(f"ProfilerStep#{step}")
        self._step_range.__enter__()

    def close_step(self) -> None:
        """End the range of the step that is going on."""
        if self._step_range is not None:
            step_range, self._step_range = self._step_range, None
            step_range.__exit__(None, None, None)

    def stop(self) -> int:
        """Stop recording; returns the nanoseconds that it took."""
        started_ns = time.perf_counter_ns()
        self.close_step()
        self.is_recording = False
        self.profiler.stop_trace()
        return time.perf_counter_ns() - started_ns

    def abandon(self) -> None:
        """Leave a warm-up without having recorded: torch is brought back to rest."""
        self.close_step()
        if self.is_prepared and not self.is_recording:
            self.profiler.start_trace()
            self.profiler.stop_trace()

    def save(self, last_step: int | None, reason: str, step_number: int) -> WindowRecord:
        """Write the window's files and say what became of it. Never raises an `Exception`.

        Args:
            last_step: The last step that was recorded to its end, or None.
            reason: Why the window ended before its plan was fulfilled; empty if it did not.
            step_number: What handlers find in `step_num`, as torch.profiler counts it.
        """
        started_ns = time.perf_counter_ns()
        plan = self.plan
        state = "partial" if reason else "complete"
        artifacts: list[ArtifactRecord] = []
        try:
            plan.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".raw-", dir=plan.directory) as scratch:
                raw = export_raw(self.profiler, Path(scratch) / "trace.json")
                if not raw.has_work:
                    state = "empty" if last_step is None else "failed"
                    reason = reason or (
                        "no operator was recorded: was another profiler started inside the window?"
                    )
                else:
                    self._keep_export(raw.path)
                    artifacts = self._save_artifacts(raw)
                    artifacts += self._call_handlers(step_number)
        except Exception as error:  # noqa: BLE001 - the training must go on, and the manifest tells
            state, reason = "failed", f"{type(error).__name__}: {error}"
        if state == "empty":
            _remove_if_empty(plan.directory)
        return WindowRecord(
            index=plan.index,
            state=state,
            first_step=plan.first_step if state != "empty" else None,
            last_step=last_step,
            planned_steps=plan.steps,
            reason=reason,
            pause_ns=time.perf_counter_ns() - started_ns,
            artifacts=tuple(artifacts),
        )

    def _save_artifacts(self, raw: RawTrace) -> list[ArtifactRecord]:
        config, directory = self._config, self.plan.directory
        artifacts = []
        if config.export_trace:
            artifacts.append(save_trace(raw, directory))
        if config.key_averages:
            artifacts.append(save_key_averages(self.profiler, config, directory))
        if config.with_stack:
            artifacts.append(save_stacks(self.profiler, config, directory))
        return artifacts

    def _keep_export(self, raw: Path) -> None:
        """Let handlers export the trace again: torch itself refuses a second time."""

        def export_chrome_trace(path: str, *_: object) -> None:
            target = Path(path)
            with replacing(target) as temporary:
                opener = _opener(target)
                with raw.open("rb") as source, opener(temporary, "wb") as sink:
                    while block := source.read(4 << 20):
                        sink.write(block)

        self.profiler.export_chrome_trace = export_chrome_trace

    def _call_handlers(self, step_number: int) -> list[ArtifactRecord]:
        """Call the user's handlers; one that raises becomes a problem and nothing more."""
        failures = []
        self.profiler.step_num = step_number
        for handler in self._config.handlers:
            name = getattr(handler, "__qualname__", type(handler).__name__)
            try:
                handler(self.profiler)
            except Exception as error:
                log.warning("stepscope: on_trace_ready function %s failed", name, exc_info=True)
                failures.append(
                    ArtifactRecord(
                        "handler", name, problem=f"{name} raised {type(error).__name__}: {error}"
                    )
                )
        return failures


def _opener(target: Path) -> Any:
    import gzip

    return gzip.open if target.suffix == ".gz" else open


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError as error:
        log.debug("stepscope: %s stays: %s", directory, error)
