"""Drop-in replacement for torch.profiler that also writes a run directory.

    from stepscope.adapters.torch_profiler import profile, schedule, record_function

Names that are not defined here are those of torch.profiler. `profile` is torch's class with the
same arguments; schedules and handlers work as before. In addition, every step is timed, and each
trace is also kept in a run directory with its tables, for `stepscope report`. The folder is the
option `output_dir`, set by STEPSCOPE_OUTPUT_DIR.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from isal import igzip
from torch import profiler as torch_profiler
from torch.profiler import (
    ProfilerAction,
    ProfilerActivity,
    record_function,
    schedule,
    tensorboard_trace_handler,
)

from stepscope.adapters.options.settings import config_of_section, misspelled_variables
from stepscope.adapters.profiler import Profiler
from stepscope.artifacts.compress import compress, format_of
from stepscope.artifacts.job import FinishJob, RawTrace, RawTraceError
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import NOBODY
from stepscope.capture.windows.recorder import SCRATCH, artifact_options
from stepscope.capture.windows.saving import WindowFinisher
from stepscope.errors import StepscopeError
from stepscope.run.files import replacing
from stepscope.run.manifest import WindowRecord

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "tensorboard_trace_handler",
]

log = logging.getLogger("stepscope")

_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
_BLOCK_BYTES = 4 << 20


def __getattr__(name: str) -> Any:
    return getattr(torch_profiler, name)


class profile(torch_profiler.profile):  # noqa: N801 - torch's own name
    """`torch.profiler.profile`, which also writes a run directory.

    With `with_stack`, torch is also told to keep stacks with its events, without which its
    `export_stacks` writes an empty file.
    """

    def __init__(self, **arguments: Any) -> None:
        if arguments.get("with_stack") and arguments.get("experimental_config") is None:
            arguments["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)
        super().__init__(**arguments)
        self._run: _RunOfTorch | None = None
        self._first_recorded = 0
        self._is_stepping = False
        self._error: BaseException | None = None

    @property
    def run_path(self) -> Path | None:
        """The run directory once profiling has started; None if there is none."""
        return self._run.run_path if self._run is not None else None

    def start(self) -> None:
        """Start as torch does, and begin a run."""
        self._run = _RunOfTorch.begin(self.with_stack)
        super().start()
        self._follow(ProfilerAction.NONE)

    def stop(self) -> None:
        """Stop as torch does, and end the run."""
        try:
            super().stop()
        finally:
            if self._run is not None:
                self._run.end(self._error)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._error = error
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """End the current step and begin the next."""
        before = self.current_action
        self._is_stepping = True
        saved = self._run.saved if self._run is not None else 0
        if self._run is not None:
            self._run.step()
        try:
            super().step()
        finally:
            self._is_stepping = False
        if self._run is not None and self._run.saved != saved:
            # The time to save a trace is the profiler's, not a step's.
            self._run.session.restart_step()
        self._follow(before)

    def export_chrome_trace(self, path: str, *arguments: Any, **options: Any) -> None:
        """Write the last trace to a file, as often as needed."""
        if self._run is None or arguments or options.get("use_python_export"):
            super().export_chrome_trace(path, *arguments, **options)
        elif not self._run.copy_trace(Path(path)):
            super().export_chrome_trace(path)

    def export_memory_timeline(self, path: str, device: str | None = None) -> None:
        """Write memory over time by torch's categories.

        What torch writes, but for HTML: torch draws that with matplotlib and on CUDA alone.
        """
        if not str(path).endswith(".html"):
            super().export_memory_timeline(path, device)
            return
        # A training without such a page imports nothing of it.
        from stepscope.artifacts.memory_timeline import draw_torch_timeline

        with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
            exported = Path(folder) / "timeline.json.gz"
            super().export_memory_timeline(str(exported), device)
            with replacing(Path(path)) as temporary:
                draw_torch_timeline(exported, temporary)

    def _follow(self, before: ProfilerAction) -> None:
        """Note whether the step that begins is recorded."""
        is_recording = self.current_action in _RECORDING
        if is_recording and before != ProfilerAction.RECORD:
            self._first_recorded = self.step_num
        if self._run is not None:
            self._run.follow(is_recording)

    def _trace_ready(self) -> None:
        """Keep the trace before torch calls the handlers, and hand it over afterwards."""
        if self._run is None:
            super()._trace_ready()
            return
        steps = range(self._first_recorded, self.step_num) if self.record_steps else range(0)
        # A trace that is ready before a step has ended comes from a loop that ended too early.
        is_whole = self._is_stepping or not self.record_steps
        self._run.save(super().export_chrome_trace, steps, super()._trace_ready, is_whole=is_whole)


class _RunOfTorch(Profiler):
    """The run directory of a torch profiler: our step record, and its traces as windows."""

    _takes_over = False

    def __init__(self, config: CaptureConfig, with_stack: bool) -> None:
        super().__init__(config)
        self._with_stack = with_stack
        self._finisher = WindowFinisher(config.export_timeout_s, self._settle)
        self._job: FinishJob | None = None
        self.saved = 0

    @classmethod
    def begin(cls, with_stack: bool) -> _RunOfTorch | None:
        """Start a run; returns None, with a warning, if that is impossible."""
        try:
            config = config_of_section({}, "", ranks=NOBODY, triggers=False, pause_together_s=0.0)
            for line in misspelled_variables():
                log.warning("stepscope: %s", line)
            run = cls(config, with_stack)
            run.start()
        except StepscopeError as error:
            log.warning("stepscope: no run directory: %s", error)
            return None
        return run if run.run_path is not None else None

    def follow(self, is_recording: bool) -> None:
        """Note whether torch records the step that begins."""
        if self.session.steps.windows is not None:
            self.session.steps.windows.record_elsewhere(self.saved if is_recording else None)

    def save(
        self,
        export: Callable[[str], None],
        steps: range,
        call_handler: Callable[[], None],
        *,
        is_whole: bool,
    ) -> None:
        """Keep a finished trace as a window, and call the script's handler.

        The handler's errors reach the script, as with torch.
        """
        started_ns = time.perf_counter_ns()
        record = None
        with self.session.contain("keeping a trace of torch.profiler"):
            record = self._keep(export, steps, is_whole)
        export_ns = time.perf_counter_ns() - started_ns
        try:
            call_handler()
        finally:
            job, journal = self._job, self.session.journal
            if record is not None and job is not None and journal is not None:
                with self.session.contain("handing a trace of torch.profiler over"):
                    record = self._finisher.submit(job, record)
                    pause_ns = time.perf_counter_ns() - started_ns
                    journal.add_window(
                        dataclasses.replace(record, export_ns=export_ns, pause_ns=pause_ns)
                    )

    def copy_trace(self, target: Path) -> bool:
        """Write the last trace to a file; False if none has been kept."""
        job = self._job
        if job is None:
            return False
        suffix = format_of(target)
        with replacing(target) as temporary:
            try:
                compress(job.raw_path, temporary, suffix, {})
            except FileNotFoundError:  # finished in the meantime: only the compressed trace is left
                self._finisher.finish(lambda: self.config.export_timeout_s)
                with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
                    plain = Path(folder) / "trace.json"
                    with igzip.open(job.trace_path, "rb") as source, plain.open("wb") as sink:
                        shutil.copyfileobj(source, sink, _BLOCK_BYTES)
                    compress(plain, temporary, suffix, {})
        return True

    def end(self, error: BaseException | None) -> None:
        """Wait for the files and close the run."""
        with self.session.contain("waiting for the files"):
            self._finisher.finish(lambda: self.config.export_timeout_s)
        self.session.finish(error)

    def _keep(
        self, export: Callable[[str], None], steps: range, is_whole: bool
    ) -> WindowRecord | None:
        if self.session.journal is None:
            return None
        directory = self.session.journal.layout.rank(self.session.identity.rank).window(self.saved)
        job = FinishJob(
            raw=str(directory / SCRATCH / "trace.json"),
            directory=str(directory),
            index=self.saved,
            steps=tuple(steps),
            rank=self.session.identity.rank,
            artifacts=artifact_options(
                self.config, with_stack=self._with_stack, memory_timeline="off"
            ),
        )
        job.raw_path.parent.mkdir(parents=True, exist_ok=True)
        export(job.raw)
        try:
            RawTrace(job.raw_path).check_ends()
        except RawTraceError:
            job.raw_path.unlink(missing_ok=True)
            raise
        self._job = job
        self.saved += 1
        return WindowRecord(
            index=job.index,
            state="saving",
            first_step=steps.start if steps else 0,
            last_step=steps[-1] if steps else None,
            planned_steps=len(steps),
            reason="" if is_whole else "the loop ended before the cycle of the schedule",
            cause="torch.profiler",
        )

    def _settle(self, record: WindowRecord) -> None:
        if self.session.journal is not None:
            self.session.journal.update_window(record)
