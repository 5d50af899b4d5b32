"""The hooks that `stepscope run` installs in the processes of a training.

Steps end where an optimizer step ends, where the next batch is requested, or, for inference, where
a call of a model ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import util as process_util
from pathlib import Path
from types import TracebackType
from typing import Any

from stepscope.adapters.script.engines import EngineSteps
from stepscope.adapters.script.interrupts import repeated_interrupts_ignored
from stepscope.adapters.script.module_calls import ModuleCalls
from stepscope.capture.ending import ScriptExit
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import flags_of_run, options_of
from stepscope.capture.profiler import Profiler
from stepscope.capture.steps.main_optimizer import MainOptimizer
from stepscope.capture.steps.modes import ModeWatch
from stepscope.capture.steps.phases import PhaseWatch
from stepscope.capture.steps.work import UNKNOWN, Work, work_of
from stepscope.capture.together.holder import NestedProfilerError
from stepscope.run.files import write_atomically
from stepscope.run.layout import RunLayout
from stepscope.run.step_record import CHECKPOINT, EVALUATION

log = logging.getLogger("stepscope")

_REST = "the rest of a step"
"""What lies between the optimizer that ended the steps so far and the end of the iteration."""
_AFTER = "after the last step"
"""What a script does after its last step that is no evaluation and saves nothing."""
_LONG_NS = 1_000_000_000
"""It is recorded if it takes longer than the end of any process."""
_MOST_BATCHES = 4096
"""More batches of a step are not told apart."""
_THEIRS = (
    "the script records itself: the run is its own, and the options given here do not apply to it"
)


def install(launch: dict[str, Any]) -> ScriptRecorder:
    """Hook into torch, which has just been imported.

    Args:
        launch: The request of `stepscope run`: "options", "step_on", "notes".

    Returns:
        What counts the steps of this process.
    """
    options = dict(launch["options"])
    recorder = ScriptRecorder(options, launch["step_on"], Path(launch["notes"]))
    recorder.note()
    recorder.watch.install()
    recorder.modes.install()
    recorder.engines.install()
    if launch["step_on"] == "forward":
        recorder.calls.install()
    os.register_at_fork(after_in_child=recorder.forked)
    before = sys.excepthook

    def keep_error(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        recorder.error = error
        before(kind, error, traceback)

    sys.excepthook = keep_error
    leave = sys.exit

    @functools.wraps(leave)
    def keep_code(*code: Any) -> None:
        recorder.asks_to_exit(*code)
        leave(*code)

    sys.exit = keep_code  # type: ignore[assignment]  # no hook of Python's tells of it
    return recorder


class ScriptRecorder:
    """Turns what a script does with torch into steps, waits and phases.

    Only the main thread counts, and no DataLoader worker. The capture begins with the first batch,
    backward pass, optimizer step or counted call of a model, whichever comes first.

    Args:
        options: Fields of `CaptureConfig`.
        step_on: "optimizer", "iteration" (the request for the next batch after training on one),
            "batch" (any request for the next batch) or "forward" (the outermost call of a module).
        notes: Folder in which each process reports what became of it.

    Attributes:
        watch: Reports waits, phases and optimizers.
        modes: Reports models that are set to evaluation and back.
        engines: Reports engines that have their own optimizers.
        calls: Reports the outermost calls of modules.
        error: The error that ended the script, if any.
        after_step: Called after each step with the number of steps so far; may raise to end the
            script.
    """

    def __init__(self, options: dict[str, Any], step_on: str, notes: Path) -> None:
        self._options = options
        self._is_iteration = step_on == "iteration"
        self._is_batch = step_on == "batch"
        self._is_forward = step_on == "forward"
        self._ends_by_optimizer = step_on == "optimizer"
        self._has_batch = False
        self._notes = notes
        self._profiler: Profiler | None = None
        self._is_off = False
        self._process_id = os.getpid()
        is_forward = None if self._is_forward else self._is_forward_call
        self.watch = PhaseWatch(self, lambda: self._profiler, is_forward=is_forward)
        self.modes = ModeWatch(self.listens, self.mode_changed)
        self.engines = EngineSteps(self)
        self.calls = ModuleCalls(self)
        self.error: BaseException | None = None
        self.after_step: Callable[[int], None] | None = None
        self._has_trained = False
        self._backwards = 0
        self._batches = 0
        self._batches_of_steps: Counter[int] = Counter()
        self._has_learned = False
        self._main = MainOptimizer()
        self._fetched: set[tuple[int, bool]] = set()
        self._training_data: set[tuple[int, bool]] = set()
        self._excluded: dict[tuple[int, bool], int] = {}
        self._evaluated: tuple[int, bool] | None = None
        self._saves = self._ended_ns = 0
        self._is_batched = False
        self._work: Work | None = None
        self._last_work = UNKNOWN
        self._problem = ""
        self._theirs: Profiler | None = None
        self._parent_id = os.getppid()
        self._exit: tuple[int, object] | None = None

    # -- what the watch asks and tells ----------------------------------------------------------

    def listens(self) -> bool:
        """Whether this is the main thread of a process that may be recorded."""
        if self._is_off or self.engines.is_making:
            return False
        return threading.current_thread() is threading.main_thread()

    def before_fetch(self, iterator: Any) -> Profiler | None:
        """End the iteration, or exclude an evaluation from the step: a batch is requested."""
        profiler = self._running(is_from_start=True)
        if profiler is None:
            return None
        self._is_batched = bool(getattr(iterator, "_auto_collation", False))
        data = _key_of(getattr(iterator, "_dataset", iterator))
        self._batch_is_wanted(profiler, data)
        self._fetched.add(data)
        return profiler

    def before_workers(self, data: Any, *, is_start: bool) -> Profiler | None:
        """End the iteration where the training's loader starts again, before its first fetch."""
        profiler = self._profiler
        if profiler is not None and is_start and (key := _key_of(data)) in self._training_data:
            self._batch_is_wanted(profiler, key)
        return profiler

    def _batch_is_wanted(self, profiler: Profiler, data: tuple[int, bool]) -> None:
        """End the iteration, or exclude an evaluation, because a batch of this data is wanted."""
        self.watch.leave()
        if self._is_batch:
            if self._has_batch:
                self._has_batch = False
                self._has_trained = True
                self._end_step(profiler)
        elif self._is_iteration and self._backwards:
            self._end_step(profiler)
        elif self._ends_by_optimizer and self._main.batch_is_wanted():
            # The loop's iterations end here, and not where an optimizer ended the steps so far.
            self._begin_afresh(profiler, _REST)
        elif not self._backwards:
            foreign = self._fetched - self._training_data - {data}
            if foreign and (data in self._training_data or not self._training_data):
                # No backward pass followed these batches, and now the training continues.
                self._leave_out(profiler, foreign)

    def after_fetch(self, profiler: Profiler, batch: Any) -> None:
        """Begin the forward phase: a batch has arrived."""
        self._has_batch = True
        # Without collation, what arrives may be one sample as well as many.
        work = work_of(batch) if self._is_batched else UNKNOWN
        self._work = work if self._work is None else self._work + work
        self._batches += 1
        self.watch.batch_came(profiler)

    def _is_forward_call(self) -> bool:
        """Whether an outermost call of a module is part of the forward phase: any is."""
        return True

    def before_backward(self) -> Profiler | None:
        """Note that the batches since the last step were for training: a backward pass begins."""
        profiler = self._running(is_from_start=False)
        if profiler is not None:
            self._training_data |= self._fetched
            self._backwards += 1
            self._has_learned = True
        return profiler

    def mode_changed(self, module: Any, is_training: bool) -> None:
        """Exclude an evaluation from the step: a model was set to evaluation, and is set back.

        That counts if no backward pass came between, and none before in the step.
        """
        profiler = self._profiler
        if profiler is None or self._backwards or self._is_batch or self._is_forward:
            return
        what = (id(module), False)
        if not is_training:
            self._evaluated = what
        elif self._evaluated == what:
            self._evaluated = None
            if what not in self._training_data:
                self.watch.leave()
                self._leave_out(profiler, {what})

    def before_optimizer(self) -> Profiler | None:
        """Decide whether to time an optimizer step."""
        return self._running(is_from_start=False)

    def after_optimizer(self, optimizer: Any) -> None:
        """End the step: an optimizer, or an engine with everything it does, has stepped."""
        if self._profiler is None or self.engines.hides:
            return
        self._has_trained = True
        if self._is_batch or self._is_forward:
            return
        if self._main.ends_steps(optimizer) and not (self._is_iteration and self._training_data):
            self._end_step(self._profiler)

    def before_call(self) -> None:
        """Start recording: a model is called."""
        self._running(is_from_start=True)

    def after_call(self) -> None:
        """End the step: the call of a model has ended."""
        if self._profiler is not None:
            self._has_trained = True
            self._end_step(self._profiler)

    def forked(self) -> None:
        """Reset the state after a fork: the parent's recording is not ours."""
        self._is_off = self._is_off or self._profiler is not None
        self._profiler = self._exit = None
        self._process_id = os.getpid()
        self._parent_id = os.getppid()
        self.watch.forget()
        self.engines.forget()

    # -- the steps ------------------------------------------------------------------------------

    def _running(self, *, is_from_start: bool) -> Profiler | None:
        """The profiler, started at the first sign of a training."""
        if self._profiler is not None or self._is_off:
            return self._profiler
        import torch.utils.data

        if torch.utils.data.get_worker_info() is not None:
            self._is_off = True
            return None
        try:
            profiler = Profiler(CaptureConfig(**self._options))
            # `stepscope run` prints it after everything else; only this process knows about a copy.
            profiler.says_where = bool(profiler.config.upload_to)
            profiler.gives_way = self._give_way
            profiler.option_names = flags_of_run(options_of(CaptureConfig))
            profiler.start()
        except NestedProfilerError as error:
            self._is_off = True
            self._theirs = Profiler.running()
            self._problem = _THEIRS if self._theirs is not None else str(error)
            self.note()
            return None
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
            self._is_off = True
            self._problem = f"{type(error).__name__}: {error}"
            log.warning("stepscope: nothing is recorded: %s", error)
            self.note()
            return None
        if profiler.run_path is None:
            # The log has the reason.
            self._is_off = True
            self._problem = f"no run could be created in {profiler.config.output_dir}"
            self.note()
            return None
        if not is_from_start:
            # Its start was not seen, so it must not count as a complete step.
            profiler.mark("the first step, seen in part")
        self._profiler = profiler
        atexit.register(self.finish)
        # Forked processes of multiprocessing do not run atexit handlers.
        process_util.Finalize(None, self.finish, exitpriority=100)
        self.note()
        return profiler

    def _leave_out(self, profiler: Profiler, what: set[tuple[int, bool]]) -> None:
        """Exclude what came before in the step: it was an evaluation.

        Args:
            profiler: Records the steps.
            what: The data that was fetched for it, or the model. What recurs in every step is no
                evaluation but part of the step, and counts as that of the training from then on.
        """
        self._begin_afresh(profiler, EVALUATION)
        now = profiler.step_number
        for one in what:
            if self._excluded.get(one) == now - 1:
                self._training_data.add(one)
            self._excluded[one] = now

    def _begin_afresh(self, profiler: Profiler, kind: str) -> None:
        """Restart the step: what came before in it is something else."""
        profiler.restart_step(kind)
        self._fetched.clear()
        self._work = None
        self._backwards = self._batches = 0

    def _end_step(self, profiler: Profiler) -> None:
        self.watch.leave()
        self._evaluated = None
        # Several losses of one batch are no accumulation; nor is a batch without a loss.
        self._batches_of_steps[min(self._batches, self._backwards, _MOST_BATCHES)] += 1
        self._backwards = self._batches = 0
        self._fetched.clear()
        work = self._work_of_step()
        profiler.step(tokens=work.tokens, samples=work.samples)
        self._saves = self.watch.saves
        self._ended_ns = time.perf_counter_ns()
        if self.after_step is not None:
            self.after_step(profiler.step_number)

    def _work_of_step(self) -> Work:
        """The work of the batches since the last step.

        Steps that train on batches which were fetched ahead have none of their own.
        """
        work, self._work = self._work, None
        if work is not None:
            self._last_work = work
            return work
        last = self._last_work
        return Work(
            None if last.samples is None else 0,
            None if last.tokens is None else 0,
        )

    def _usual_batches(self) -> int:
        """How many batches most steps trained on; 0 without steps.

        Not the most: at the end of an epoch some may be left for the next step, and a step may be
        skipped, as for an overflow.
        """
        counts = self._batches_of_steps
        return max(counts, key=lambda batches: (counts[batches], -batches), default=0)

    # -- the end --------------------------------------------------------------------------------

    def _give_way(self, theirs: Profiler) -> None:
        """End the recording because the script begins to record itself."""
        self._theirs = theirs
        self._problem = _THEIRS
        profiler, self._profiler = self._profiler, None
        self._is_off = True
        if profiler is None:
            return
        self.watch.leave()
        profiler.stop()
        if not profiler.step_number:
            _remove_run(profiler)

    def asks_to_exit(self, code: object = None, *_: object) -> None:
        """Remember the exit code: the script calls `sys.exit`, and may still catch what it raises.

        A step that ends afterwards shows that the script went on.
        """
        if self._profiler is not None and self.listens():
            self._exit = (self._profiler.step_number, code)

    def _ending(self, profiler: Profiler) -> BaseException | None:
        """What ended the script: an error, an exit code other than 0, or nothing of the kind."""
        if self.error is not None or self._exit is None:
            return self.error
        step, code = self._exit
        return ScriptExit(code) if step == profiler.step_number and code not in (None, 0) else None

    def finish(self) -> None:
        """Save everything at the end of the process, or remove a run without training."""
        if os.getpid() != self._process_id:
            return
        if self._theirs is not None:
            self.note()
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._is_off = True
        self.watch.leave()
        is_open = (self._is_iteration and self._backwards) or (self._is_batch and self._has_batch)
        if is_open and self.error is None:
            # The loop was left: its last iteration has no other end.
            profiler.mark("the last step, seen in part")
            profiler.step()
        error = self._ending(profiler)
        if self.error is None and profiler.step_number and (rest := self._rest_kind()):
            profiler.restart_step(rest)
        with repeated_interrupts_ignored():
            profiler.__exit__(type(error) if error is not None else None, error, None)
        if not self._has_trained and not profiler.step_number:
            _remove_run(profiler)
        self.note(profiler)

    def _rest_kind(self) -> str:
        """What the script did after its last step; empty for nothing that is known of."""
        if self._backwards or self._is_batch or self._is_forward:
            return ""
        calls = self.watch.forward_calls
        called = calls is not None and calls.calls
        if self._batches or called or (self._evaluated and not (calls and calls.is_found)):
            return EVALUATION
        if self.watch.saves > self._saves:
            return CHECKPOINT
        is_long = time.perf_counter_ns() - self._ended_ns >= _LONG_NS
        return _AFTER if is_long else ""

    def note(self, profiler: Profiler | None = None) -> None:
        """Report the state of this process to `stepscope run`."""
        profiler = profiler or self._profiler or self._theirs
        path = profiler.run_path if profiler is not None else None
        rank_path = profiler.rank_path if profiler is not None else None
        note = {
            "process_id": os.getpid(),
            "parent_id": self._parent_id,
            "rank": RunLayout.rank_of(rank_path.name) if rank_path is not None else None,
            "run": str(path.absolute()) if path is not None and path.is_dir() else None,
            "steps": profiler.step_number if profiler is not None else 0,
            "has_trained": self._has_trained,
            "batches_per_step": self._usual_batches(),
            "has_learned": self._has_learned,
            "problem": self._problem,
        }
        with contextlib.suppress(OSError):
            write_atomically(self._notes / f"{os.getpid()}.json", json.dumps(note).encode())


def _key_of(data: Any) -> tuple[int, bool]:
    """What tells the batches of a training from those of an evaluation.

    That is their data, and whether gradients are recorded while they are fetched: an evaluation may
    use the training's data.
    """
    import torch

    return id(data), torch.is_grad_enabled()


def _remove_run(profiler: Profiler) -> None:
    """Remove a run without training: this rank's part, and the rest if it is empty."""
    root, rank = profiler.run_path, profiler.rank_path
    if root is None or rank is None:
        return
    shutil.rmtree(rank, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not any(root.glob("rank*")):
            shutil.rmtree(root)
