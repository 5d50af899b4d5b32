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
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import util as process_util
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from stepscope.adapters.profiler import Profiler, on_start, running_profiler
from stepscope.adapters.script.engines import ENGINE, PIPELINE, EngineFollower, Engines
from stepscope.capture.containment import attempt
from stepscope.capture.ending import ScriptExit
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import flags_of_run, options_of
from stepscope.capture.ranks import NestedProfilerError
from stepscope.capture.steps.detector import Detector, Policy
from stepscope.capture.steps.loaders import has_workers
from stepscope.capture.steps.phase_times import CALL, RETURN
from stepscope.capture.steps.step_policy import BY_BATCH, BY_FORWARD, STEP, StepPolicy
from stepscope.capture.steps.work import UNKNOWN, Work, added, work_of
from stepscope.run.files import write_atomically
from stepscope.run.layout import RunLayout
from stepscope.run.step_record import END_OF_EPOCH, EVALUATION

if TYPE_CHECKING:
    from stepscope.capture.steps.core import StepCore

log = logging.getLogger("stepscope")

_LONG_NS = 1_000_000_000
"""What a script does after its last step is recorded if it takes longer than a process's end."""
_THEIRS = (
    "the script records itself: the run is its own, and the options given here do not apply to it"
)


def install(launch: dict[str, Any]) -> ScriptRecorder:
    """Hook into torch, which has just been imported, as `stepscope run` requests."""
    options = dict(launch["options"])
    recorder = ScriptRecorder(options, launch["step_on"], Path(launch["notes"]))
    recorder.note()
    recorder.install()
    os.register_at_fork(after_in_child=recorder.forked)
    on_start.append(recorder.other_started)
    before, leave = sys.excepthook, sys.exit

    def keep_error(kind: Any, error: BaseException, traceback: TracebackType | None) -> None:
        recorder.error = error
        before(kind, error, traceback)

    sys.excepthook = keep_error

    @functools.wraps(leave)
    def keep_code(*code: Any) -> None:
        recorder.asks_to_exit(*code)
        leave(*code)

    sys.exit = keep_code  # type: ignore[assignment]  # no hook of Python's tells of it
    return recorder


class ScriptRecorder(Policy, EngineFollower):
    """Turns what a script does with torch into steps, waits and phases.

    Only the main thread counts, and no DataLoader worker. The capture begins with the first batch,
    backward pass, optimizer step or counted call of a model, whichever comes first.

    Args:
        options: Fields of `CaptureConfig`.
        step_on: What ends a step, as in `StepPolicy`.
        notes: Folder in which each process reports what became of it.

    Attributes:
        detector: Reports waits, phases, optimizers, and models that are set to evaluation and back.
        after_step: Called after each step with the number of steps so far; may raise to end the
            script.
    """

    def __init__(self, options: dict[str, Any], step_on: str, notes: Path) -> None:
        self._options = options
        self._notes = notes
        self._steps = StepPolicy(step_on)
        self.backward_begins = self._steps.backward_begins  # type: ignore[method-assign]
        self._is_inference = step_on == BY_FORWARD
        self._ends_at_batches = step_on == BY_BATCH
        self._profiler: Profiler | None = None
        self._is_off = False
        self.detector = Detector(
            self, finds_forward=not self._is_inference, times_calls=True, finds_modes=True
        )
        self.detector.thread = threading.main_thread().ident or 0
        self.engines = Engines(self)
        self.error: BaseException | None = None
        self.after_step: Callable[[int], None] | None = None
        self._calls = 0
        self._saves = 0
        self._is_hidden = False
        self._is_batched = False
        self._work: Work | None = None
        self._rest = UNKNOWN
        self._problem = ""
        self._theirs: Profiler | None = None
        self._parent_id = os.getppid()
        self._exit: tuple[int, object] | None = None

    def install(self) -> None:
        """Hook into torch."""
        self.detector.install()
        self.engines.wrap_all({ENGINE: ("step",), PIPELINE: ("train_batch",)})
        if self._is_inference:
            from torch.nn.modules import module

            # Torch's hooks for all modules make each call of a module a little slower.
            module.register_module_forward_pre_hook(self._call_begins)
            module.register_module_forward_hook(self._call_ended, always_call=True)

    def forked(self) -> None:
        """Reset the state after a fork: the parent's recording is not ours."""
        self._is_off = self._is_off or self._profiler is not None
        self._profiler = self._exit = None
        self._parent_id = os.getppid()
        self.detector.forget()
        self.detector.is_off = self._is_off
        self.engines.forget()

    # -- what the detector asks and reports ------------------------------------------------------

    def wants_batch(self, iterator: Any) -> bool:
        """End the iteration, or exclude an evaluation from the step: a batch is requested."""
        profiler = self._profiler or self._running(is_from_start=True)
        if profiler is None:
            return False
        self._is_batched = bool(getattr(iterator, "_auto_collation", False))
        data = _key_of(getattr(iterator, "_dataset", iterator))
        if before := self._steps.batch_wanted(data):
            calls = self.detector.calls
            if self._ends_at_batches and calls is not None and not self._steps.has_learned:
                calls.end_pass()  # no backward pass shows which modules are called
            self._act(profiler, before)
        return True

    def wants_workers(self, data: Any, *, is_start: bool) -> bool:
        """End the iteration where the training's loader starts again, before its first fetch."""
        profiler = self._profiler
        if profiler is None:
            return False
        if is_start and self._steps.trains_on(key := _key_of(data)):
            self.detector.leave()
            self._act(profiler, self._steps.epoch_begins(key))
        return True

    def epoch_ended(self, iterator: Any, took_ns: int) -> None:
        """Keep the end of an epoch, with that of its workers, out of the evaluation after it."""
        if self._profiler is not None and has_workers(iterator):
            data = _key_of(getattr(iterator, "_dataset", iterator))
            self._act(self._profiler, self._steps.epoch_ended(data, took_ns))

    def batch_came(self, iterator: Any, batch: Any) -> None:  # noqa: ARG002 - any counts
        """Begin the forward phase: a batch has arrived."""
        self._steps.batch_came()
        # Without collation, what arrives may be one sample as well as many.
        work = work_of(batch) if self._is_batched else UNKNOWN
        self._work = work if self._work is None else added(self._work, work)
        self.detector.begin_forward()

    def begins(self) -> bool:
        """Begin to record: the training learns."""
        return self._running(is_from_start=False) is not None

    def mode_changed(self, module: Any, is_training: bool) -> None:
        """Exclude an evaluation from the step: a model was set to evaluation, and is set back."""
        if self._profiler is not None:
            self._act(self._profiler, self._steps.mode_changed((id(module), False), is_training))

    def optimizer_ended(self, optimizer: Any) -> None:
        """End the step: an optimizer, or an engine with everything it does, has stepped."""
        if self._profiler is not None and not self.engines.is_inside and not self._is_hidden:
            self._act(self._profiler, self._steps.optimizer_ended(optimizer))

    def _call_begins(self, *_: Any) -> None:
        if self.detector.listens():
            self._calls += 1
            if self._calls == 1:
                attempt(functools.partial(self._running, is_from_start=True))
                self.detector.note(CALL, False)

    def _call_ended(self, *_: Any) -> None:
        if self._calls and self.detector.listens():
            self._calls -= 1
            if not self._calls and self._profiler is not None:
                self.detector.note(RETURN, False)
                self._act(self._profiler, self._steps.call_ended())

    # -- engines ---------------------------------------------------------------------------------

    def making_begins(self) -> None:
        """Ignore what an optimizer does while its engine is constructed."""
        self.detector.is_off = True

    def making_ends(self) -> None:
        """Go on."""
        self.detector.is_off = self._is_off

    def entering(self, engine: Any, name: str) -> contextlib.AbstractContextManager[object] | None:
        """Follow an engine's `step` as that of an optimizer, and a pipeline's `train_batch`."""
        if not self.detector.listens():
            return None
        if name == "step":
            self.detector.before_optimizer(engine, (engine,), {})
        return contextlib.nullcontext()

    def left(self, engine: Any, name: str, *, has_stepped: bool) -> None:
        """End the step where the engine has counted one."""
        self._is_hidden = not has_stepped
        attempt(self.detector.after_optimizer if name == "step" else self.optimizer_ended, engine)
        self._is_hidden = False

    # -- the steps ------------------------------------------------------------------------------

    def _running(self, *, is_from_start: bool) -> Profiler | None:
        """The profiler, started at the first sign of a training."""
        if self._profiler is not None or self._is_off:
            return self._profiler
        import torch.utils.data

        if torch.utils.data.get_worker_info() is not None:
            self._turn_off()
            return None
        try:
            profiler = Profiler(CaptureConfig(**self._options))
            session = profiler.session
            session.says_where = False  # `stepscope run` prints it after everything else
            session.gives_way = self._give_way
            session.option_names = flags_of_run(options_of(CaptureConfig))
            profiler.start()
        except NestedProfilerError as error:
            self._theirs = running_profiler()
            self._refuse(_THEIRS if self._theirs is not None else str(error))
            return None
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
            log.warning("stepscope: nothing is recorded: %s", error)
            self._refuse(f"{type(error).__name__}: {error}")
            return None
        if profiler.run_path is None:
            # The log has the reason.
            self._refuse(f"no run could be created in {profiler.config.output_dir}")
            return None
        if not is_from_start:
            # Its start was not seen, so it must not count as a complete step.
            profiler.mark("the first step, seen in part")
        self._profiler = profiler
        self.detector.attach(session.steps)
        atexit.register(self.finish)
        # Forked processes of multiprocessing do not run atexit handlers.
        process_util.Finalize(None, self.finish, exitpriority=100)
        self.note()
        return profiler

    def _refuse(self, problem: str) -> None:
        self._turn_off()
        self._problem = problem
        self.note()

    def _turn_off(self) -> None:
        self._is_off = self.detector.is_off = True

    def _act(self, profiler: Profiler, before: str) -> None:
        """Do what the policy says about what was done up to now."""
        if before == STEP:
            samples, tokens = self._rest  # of steps on batches which were fetched ahead
            if self._work is not None:
                (samples, tokens), self._work = self._work, None
                self._rest = samples and 0, tokens and 0
            profiler.step(tokens=tokens, samples=samples)
            self._saves = self.detector.saves
            if self.after_step is not None:
                self.after_step(profiler.session.steps.number)
        elif before:
            self._work = None
            self._note_end_of_epoch(profiler, before)
            profiler.session.restart_step(before)

    def _note_end_of_epoch(self, profiler: Profiler, kind: str) -> None:
        """Tell the end of the first epoch from the evaluation, which shows only now."""
        ending_ns, self._steps.ending_ns = self._steps.ending_ns, 0
        if ending_ns and kind == EVALUATION:
            profiler.session.steps.note_spent(END_OF_EPOCH, ending_ns)

    def restart_step(self) -> None:
        """Begin the current step now: the script was held up after the one before."""
        if self._profiler is not None:
            self._profiler.session.restart_step()

    # -- the end --------------------------------------------------------------------------------

    def other_started(self, theirs: Profiler) -> None:
        """Report a recording of the script's own in a thread where no hook would meet it."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main and self._theirs is None and theirs.run_path is not None:
            self._theirs = theirs
            self._problem = _THEIRS
            self.note()

    def _give_way(self, theirs: Profiler) -> None:
        """End the recording because the script begins to record itself."""
        self._theirs = theirs
        self._problem = _THEIRS
        profiler, self._profiler = self._profiler, None
        self._turn_off()
        if profiler is None:
            return
        profiler.stop()
        if not profiler.session.steps.number:
            _remove_run(profiler)

    def asks_to_exit(self, code: object = None, *_: object) -> None:
        """Remember the exit code: the script calls `sys.exit`, and may still catch what it raises.

        A step that ends afterwards shows that the script went on.
        """
        if self._profiler is not None and self.detector.listens():
            self._exit = (self._steps.steps, code)

    def _ending(self) -> BaseException | None:
        """What ended the script: an error, an exit code other than 0, or nothing of the kind."""
        if self.error is not None or self._exit is None:
            return self.error
        step, code = self._exit
        return ScriptExit(code) if step == self._steps.steps and code not in (None, 0) else None

    def finish(self) -> None:
        """Save everything at the end of the process, or remove a run without training."""
        if self._theirs is not None:
            self.note()
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._turn_off()
        if self._steps.is_open and self.error is None:
            # The loop was left: its last iteration has no other end.
            profiler.mark("the last step, seen in part")
            profiler.step()
        error = self._ending()
        steps = profiler.session.steps
        if self.error is None and steps.number and (rest := self._rest_kind(steps)):
            self._note_end_of_epoch(profiler, rest)
            profiler.session.restart_step(rest)
        with repeated_interrupts_ignored():
            profiler.session.finish(error)
        if not self._steps.has_trained and not steps.number:
            _remove_run(profiler)
        self.note(profiler)

    def _rest_kind(self, steps: StepCore) -> str:
        """What the script did after its last step; empty for nothing that is known of."""
        calls, begun = self.detector.calls, steps.begun
        return self._steps.rest_kind(
            has_called=calls is not None and calls.calls > 0,
            finds_calls=calls is not None and calls.is_found,
            has_saved=self.detector.saves > self._saves,
            is_long=begun is not None and time.perf_counter_ns() - begun[0] >= _LONG_NS,
        )

    def note(self, profiler: Profiler | None = None) -> None:
        """Report the state of this process to `stepscope run`."""
        profiler = profiler or self._profiler or self._theirs
        session = profiler.session if profiler is not None else None
        path = profiler.run_path if profiler is not None else None
        rank_path = session.rank_path if session is not None else None
        note = {
            "process_id": os.getpid(),
            "parent_id": self._parent_id,
            "rank": RunLayout.rank_of(rank_path.name) if rank_path is not None else None,
            "run": str(path.absolute()) if path is not None and path.is_dir() else None,
            "steps": session.steps.number if session is not None else 0,
            "has_trained": self._steps.has_trained,
            "batches_per_step": self._steps.usual_batches(),
            "has_learned": self._steps.has_learned,
            "uses_ray": "ray" in sys.modules,
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
    root, rank = profiler.run_path, profiler.session.rank_path
    if root is None or rank is None:
        return
    shutil.rmtree(rank, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not any(root.glob("rank*")):
            shutil.rmtree(root)


SAME_S = 2.0
"""An interrupt so soon after the end of the script is the one that ended it."""


@contextlib.contextmanager
def repeated_interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts that come at once; one that comes later still ends what is being done.

    A script that handles interrupts itself keeps its handler. Only the main thread may set
    handlers: in any other, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    began = time.monotonic()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - began > SAME_S:
            signal.default_int_handler(number, frame)

    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
