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
_SWITCHES = ("enable_profiling", "enable_memory_snapshot")


class Profiler:
    """The profiler of torchtitan's trainer: windows and memory snapshots.

    Args:
        config: torchtitan's `Profiler.Config`, or its names as a mapping, as read from TOML.
        global_step: Number of steps done before, if the training is resumed.
        base_folder: Output folder of the job.
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
        self._snapshots: SnapshotRing | None = None
        self.active(global_step=global_step, base_folder=base_folder, leaf_folder=leaf_folder)
        _check(self._section)

    def active(
        self, *, global_step: int = 0, base_folder: str = "", leaf_folder: str = ""
    ) -> Profiler:
        """Set the step and the folders; returns itself, for `with`."""
        self._global_step = global_step
        self._base = Path(base_folder)
        self._leaf = leaf_folder
        return self

    def __enter__(self) -> Profiler:
        section = self._section
        if not any(section.get(name) for name in _SWITCHES):
            return self
        with_snapshots = bool(section.get("enable_memory_snapshot"))
        every = _snapshot_every(section) if with_snapshots else 0
        profiler = _profiler_of(section, self._base, self._leaf, self._global_step)
        profiler.start()
        self.profiler = profiler
        if with_snapshots:
            folder = self._base / section.get("save_memory_snapshot_folder", SNAPSHOTS)
            self._snapshots = SnapshotRing(profiler, folder, self._leaf, self._global_step, every)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        profiler, self.profiler = self.profiler, None
        if profiler is not None:
            profiler.session.finish(error)
            if self._snapshots is not None:
                self._snapshots.end(profiler)

    def step(self) -> None:
        """End a training step."""
        if self.profiler is not None:
            self.profiler.step()
        if self._snapshots is not None:
            self._snapshots.step()


class SnapshotRing:
    """Takes a memory snapshot every few steps, under torchtitan's names, if there is CUDA."""

    def __init__(
        self,
        profiler: adapted.Profiler,
        folder: Path,
        leaf: str,
        global_step: int,
        every: int,
    ) -> None:
        import torch

        self.profiler = profiler
        self.step_number = global_step
        self._folder = folder
        self._leaf = leaf
        self._every = every
        self._rank = identify().rank
        self._is_available = bool(torch.cuda.is_available())

    def step(self) -> None:
        """End a training step."""
        self.step_number += 1
        if not self._is_available or self.step_number % self._every:
            return
        source = self.profiler.snapshot(f"torchtitan, step {self.step_number}")
        if source is not None:
            self._put(source, self.step_number, "")

    def end(self, profiler: adapted.Profiler) -> None:
        """Put the snapshot of an out-of-memory error in place, once the capture is over."""
        folder = profiler.session.rank_path
        if folder is None:
            return
        with contextlib.suppress(StepscopeError, OSError):
            for record in read_rank(folder / MANIFEST_FILE).snapshots:
                if record.cause.startswith("out of memory") and not record.problem:
                    self._put(folder / record.path, self.step_number, "_exit")

    def _put(self, source: Path, number: int, ending: str) -> None:
        folder, name = f"step_{number:012d}", f"{self._rank:06d}_step_{number}.pickle"
        put_file(source, self._folder / f"{folder}{ending}" / self._leaf / name)


def take_over() -> Callable[[], None]:
    """Let torchtitan's `Profiler.Config` build the profiler of this module; returns the undo."""
    from torchtitan.tools.profiler import Profiler as Theirs

    replaced = Replacements()
    replaced.replace(Theirs.Config, "_owner", lambda _: Profiler)
    return replaced.restore


def _check(section: Mapping[str, Any]) -> int:
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
    every = section.get("memory_snapshot_freq")
    every = section.get("profile_freq", 10) if every is None else every
    if not isinstance(every, int) or every <= 0:
        raise ConfigError(
            f"a memory snapshot every {every!r} steps is impossible: set memory_snapshot_freq or "
            "profile_freq to a positive number"
        )
    return every


def _profiler_of(
    section: Mapping[str, Any], base: Path, leaf: str, global_step: int
) -> adapted.Profiler:
    wait = _check(section)
    is_profiling = bool(section.get("enable_profiling"))
    options = {
        "output_dir": base / section.get("save_traces_folder", TRACES),
        "skip_first": section.get("profiler_skip_first") or 0,
        "skip_first_wait": bool(section.get("profiler_skip_first_wait")),
        "wait": wait,
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
    config = config_of_section(options, "torchtitan's profiling section", **more)
    words = {"steps_before": str(global_step), "leaf": leaf}
    return adapted.Profiler(
        config, layout="torchtitan", words=words, placed=_post_processor(section)
    )


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
