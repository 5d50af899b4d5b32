"""Replacement for the profiler of torchtitan's trainer, with the same configuration section.

    from stepscope.adapters.torchtitan import take_over
    take_over()  # from here on, `config.profiler.build(…)` builds ours

Options, defaults, folders and file names are torchtitan's: the trace of a window that ended after
step 10 is `{save_traces_folder}/iteration_10/{leaf_folder}/rank0_trace.json.gz` in the base folder,
beside the run directory. Steps are counted from the start of the capture, so that a resumed
training is profiled like a new one; the names contain the training's own step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.adapters import profiler as adapted
from stepscope.adapters.options.layouts import put_file
from stepscope.adapters.options.settings import config_of_section, values_of
from stepscope.capture.options.option import ConfigError
from stepscope.capture.ranks import NOBODY, identify
from stepscope.capture.steps.replacements import Replacements
from stepscope.errors import StepscopeError
from stepscope.run.layout import MANIFEST_FILE
from stepscope.run.manifest import read_rank
from stepscope.run.step_record import OPTIMIZER_STEP

TRACES = "profiling/traces"
SNAPSHOTS = "profiling/memory_snapshot"


class Profiler:
    """The profiler of torchtitan's trainer: windows and memory snapshots.

    Args:
        config: torchtitan's `Profiler.Config`, or its names as a mapping, as read from TOML.
        global_step: Number of steps done before, if the training is resumed.
        leaf_folder: Folder inside that of a step; empty for none.

    Raises:
        ConfigError: The options contradict each other.
    """

    def __init__(
        self,
        config: Any,
        *,
        global_step: int = 0,
        base_folder: str = "",
        leaf_folder: str = "",
    ) -> None:
        self._section = values_of(config)
        self.profiler: adapted.Profiler | None = None
        self.active(global_step=global_step, base_folder=base_folder, leaf_folder=leaf_folder)
        self._wait = _waiting_steps(self._section)
        self._snapshot_every = _snapshot_every(self._section)

    def active(
        self, *, global_step: int = 0, base_folder: str = "", leaf_folder: str = ""
    ) -> Profiler:
        """Set the step and the folders; returns itself, for `with`."""
        self._step = global_step
        self._base = Path(base_folder)
        self._leaf = leaf_folder
        return self

    def __enter__(self) -> Profiler:
        section = self._section
        is_profiling = bool(section.get("enable_profiling"))
        if not is_profiling and not self._snapshot_every:
            return self
        options = {
            "output_dir": self._base / section.get("save_traces_folder", TRACES),
            "skip_first": section.get("profiler_skip_first") or 0,
            "skip_first_wait": bool(section.get("profiler_skip_first_wait")),
            "wait": self._wait,
            "warmup": section.get("profiler_warmup", 3),
            "active": section.get("profiler_active", 1),
            "repeat": section.get("profiler_repeat") or 0,
            "record_shapes": True,
            "with_stack": bool(section.get("with_stack")),
            "with_modules": bool(section.get("with_modules")),
            "step_unit": OPTIMIZER_STEP,
            "memory_history": bool(section.get("enable_memory_snapshot")),
            "memory_max_entries": section.get("memory_snapshot_max_entries", 100_000),
        }
        more = {} if is_profiling else {"ranks": NOBODY, "pause_together_s": 0.0}
        self.profiler = adapted.Profiler(
            config_of_section(options, "torchtitan's profiling section", **more),
            layout="torchtitan",
            words={"steps_before": str(self._step), "leaf": self._leaf},
            placed=_post_processor(section),
        )
        self.profiler.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        profiler, self.profiler = self.profiler, None
        if profiler is None:
            return
        profiler.session.finish(error)
        folder = profiler.session.rank_path
        if self._snapshot_every and folder is not None:
            # That of an out-of-memory error, now that the capture is over.
            with contextlib.suppress(StepscopeError, OSError):
                for record in read_rank(folder / MANIFEST_FILE).snapshots:
                    if record.cause.startswith("out of memory") and not record.problem:
                        self._put_snapshot(folder / record.path, "_exit")

    def step(self) -> None:
        """End a training step; every few steps, take a snapshot if there is CUDA."""
        if self.profiler is None:
            return
        self.profiler.step()
        self._step += 1
        if self._snapshot_every and not self._step % self._snapshot_every:
            import torch

            if torch.cuda.is_available():
                source = self.profiler.snapshot(f"torchtitan, step {self._step}")
                if source is not None:
                    self._put_snapshot(source, "")

    def _put_snapshot(self, source: Path, ending: str) -> None:
        """Put a snapshot under torchtitan's name as well."""
        folder = self._base / self._section.get("save_memory_snapshot_folder", SNAPSHOTS)
        name = f"{identify().rank:06d}_step_{self._step}.pickle"
        put_file(source, folder / f"step_{self._step:012d}{ending}" / self._leaf / name)


def take_over() -> Callable[[], None]:
    """Let torchtitan's `Profiler.Config` build the profiler of this module; returns the undo."""
    from torchtitan.tools.profiler import Profiler as Theirs

    replaced = Replacements()
    replaced.replace(Theirs.Config, "_owner", lambda _: Profiler)
    return replaced.restore


def _waiting_steps(section: Mapping[str, Any]) -> int:
    """The number of waiting steps in a cycle."""
    frequency = section.get("profile_freq", 10)
    warmup, active = section.get("profiler_warmup", 3), section.get("profiler_active", 1)
    wait: int = frequency - warmup - active
    if wait < 0 and section.get("enable_profiling"):
        raise ConfigError(
            f"profile_freq={frequency} is too small for profiler_warmup={warmup} and "
            f"profiler_active={active}: give at least {warmup + active}"
        )
    return max(0, wait)


def _snapshot_every(section: Mapping[str, Any]) -> int:
    """Steps from one memory snapshot to the next; 0 for none."""
    if not section.get("enable_memory_snapshot"):
        return 0
    every = section.get("memory_snapshot_freq")
    every = section.get("profile_freq", 10) if every is None else every
    if not isinstance(every, int) or every <= 0:
        raise ConfigError(
            f"a memory snapshot every {every!r} steps is impossible: set memory_snapshot_freq or "
            "profile_freq to a positive number"
        )
    return every


def _post_processor(section: Mapping[str, Any]) -> Callable[[list[Path]], None] | None:
    """The hook of torchtitan that gets the path of each trace."""
    wanted = section.get("trace_post_processor")
    if wanted is None:
        return None
    process = wanted.build() if hasattr(wanted, "build") else wanted

    def call(files: list[Path]) -> None:
        for path in files:
            process(str(path))

    return call
