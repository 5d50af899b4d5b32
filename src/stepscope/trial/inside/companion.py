"""Applies the fixes of a trial in each process of the script, and ends it after its steps.

Loaded by the hooks of `stepscope run` (`adapters.script`) once torch is imported. What it did goes
to a note, one file per process, that the experiment reads.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import mmap
import multiprocessing
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import util as process_util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stepscope.capture.steps.replacements import when_imported
from stepscope.run.files import write_atomically
from stepscope.trial.fixes import FIXES
from stepscope.trial.inside.guard import WriteGuard
from stepscope.trial.patches import Patches

if TYPE_CHECKING:
    from stepscope.adapters.script.hooks import ScriptRecorder

_SEED = 20_240
_LEAST_STEPS = 3
"""A fix that has taken effect nowhere after so many steps does not apply."""
_MOST_LOSSES = 20_000
SLICE_S = 0.25
"""How long a turn lasts at least; it ends at a step boundary."""
_ASK = b"a"


def join(recorder: ScriptRecorder, request: dict[str, Any]) -> None:
    """Apply the fixes of a trial to this process.

    Args:
        request: "fixes" (name to value), "steps" after which the script ends, "warm_up" (the first
            of them, which do not count), "notes" (a folder), "guarded" (where it may write; see
            `guard.WriteGuard`), "turns" (where it asks for its turns; empty: it takes none).
    """
    companion = Companion(recorder, request)
    companion.begin()


class Companion:
    """Stays with a training process while fixes are tried in it.

    Args:
        request: See `join`.
    """

    def __init__(self, recorder: ScriptRecorder, request: dict[str, Any]) -> None:
        self._recorder = recorder
        self._fixes: dict[str, Any] = request["fixes"]
        self._steps: int = request["steps"]
        self._warm_up: int = request["warm_up"]
        self._address: str = request["turns"]
        self._slices: TimeSlices | None = None
        self._notes = Path(request["notes"])
        self._patches = Patches()
        self._losses = LossWatch()
        self._workers = WorkerWatch()
        self._guard = WriteGuard(request["guarded"], self._notes)
        self._process_id = os.getpid()
        self._optimizers: dict[str, None] = {}
        self._zeroes_gradients = False
        self._done = 0
        self._has_ended = False
        self._is_noted = False

    def begin(self) -> None:
        """Seed, watch the losses, apply the fixes, and count the steps."""
        self._seed()
        self._patches.attempt("write guard", lambda: self._guard.watch_savers(self._patches))
        self._patches.attempt("losses", lambda: self._losses.install(self._patches))
        if not self._fixes:
            self._patches.attempt("gradients", self._watch_gradients)
            self._patches.attempt("workers", lambda: self._workers.install(self._patches))
        for name, value in self._fixes.items():
            self._patches.attempt(name, lambda f=FIXES[name], v=value: f.apply(self._patches, v))  # type: ignore[misc]
        self._recorder.after_step = self._after_step
        self._patches.attempt("optimizers", self._name_optimizers)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._note)
        # Forked processes of multiprocessing do not run atexit handlers.
        process_util.Finalize(None, self._note, exitpriority=90)

    def _seed(self) -> None:
        """Seed what a script may forget to, so that two runs see the same data."""
        import torch

        random.seed(_SEED)
        torch.manual_seed(_SEED)
        when_imported("numpy", lambda numpy: numpy.random.seed(_SEED))

    def _name_optimizers(self) -> None:
        """Note the classes of the optimizers that make the first steps."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        handle = register_optimizer_step_pre_hook(
            lambda optimizer, *_: self._optimizers.setdefault(_import_name(type(optimizer)))
        )

        def remove(number: int) -> None:
            if number == _LEAST_STEPS:
                handle.remove()

        self._patches.after_step(remove)

    def _watch_gradients(self) -> None:
        from torch import nn, optim

        def wrap(zero_grad: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(zero_grad)
            def watched(owner: Any, set_to_none: bool = True) -> None:
                self._zeroes_gradients |= not set_to_none
                zero_grad(owner, set_to_none=set_to_none)

            return watched

        self._patches.replace(optim.Optimizer, "zero_grad", wrap)
        self._patches.replace(nn.Module, "zero_grad", wrap)

    def _forked(self) -> None:
        self._recorder.after_step = None

    def _after_step(self, number: int) -> None:
        if os.getpid() != self._process_id:
            return
        self._done = number
        self._patches.stepped(number)
        has_failed = bool(self._patches.problems)
        is_idle = bool(self._fixes) and not self._patches.applied and number >= _LEAST_STEPS
        if number >= self._steps or is_idle or has_failed:
            self._end()
        if self._address and number >= self._warm_up:
            self._slices = self._slices or TimeSlices(self._address)
            if self._slices.wait():
                self._recorder.restart_step()

    def _end(self) -> NoReturn:
        """End the script: save, then leave by SystemExit, and at the next step without asking."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._has_ended = True
        self._recorder.finish()
        self._note()
        # A script that catches everything and goes on does not go on for long.
        register_optimizer_step_post_hook(lambda *_: _leave_at_once())
        raise SystemExit(0)

    def _note(self) -> None:
        if self._is_noted or os.getpid() != self._process_id or not self._done:
            return
        self._is_noted = True
        losses: list[float] = []
        self._patches.attempt("losses", lambda: losses.extend(self._losses.values()))
        note = {
            "rank": _rank(),
            "steps": self._done,
            "has_ended": self._has_ended,
            "applied": self._patches.applied,
            "overrode": self._patches.overrode,
            "refused": self._patches.refused,
            "problems": self._patches.problems,
            "losses": losses,
            "facts": {
                **_facts(),
                "optimizers": list(self._optimizers),
                "zeroes_gradients": self._zeroes_gradients,
                "worker_batch_ns": self._workers.batch_ns,
            },
            "error": "" if self._recorder.error is None else type(self._recorder.error).__name__,
        }
        with contextlib.suppress(OSError):
            write_atomically(self._notes / f"{os.getpid()}.json", json.dumps(note).encode())


class TimeSlices:
    """The turns of this process with the other run of a round; see `trial.alternation`.

    Args:
        address: The path of the socket at which it asks for them.
    """

    def __init__(self, address: str) -> None:
        self._server: socket.socket | None = None
        self._ends = 0.0
        with contextlib.suppress(OSError):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(address)
            self._server = server
        # The end of this process is told by the end of its connection, which a fork would keep.
        os.register_at_fork(after_in_child=self._leave)

    def wait(self) -> bool:
        """At a step boundary: wait if the turn is over; whether it was.

        The workers of loaders stop meanwhile: what they prepare in the other's turn would disturb
        it, and be free in the next one of this process.
        """
        if self._server is None or time.monotonic() < self._ends:
            return False
        workers = [one.pid for one in multiprocessing.active_children() if one.pid is not None]
        _signal(workers, signal.SIGSTOP)
        try:
            self._server.sendall(_ASK)
            may_go = bool(self._server.recv(1))
        except OSError:
            may_go = False
        finally:
            _signal(workers, signal.SIGCONT)
        if not may_go:
            # The other has ended, or whoever gives turns: go on without.
            self._leave()
        self._ends = time.monotonic() + SLICE_S
        return True

    def _leave(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


class LossWatch:
    """Keeps the losses of the main thread, in order: what `backward` is called on.

    A loss is the only element of the first tensor given to the outermost `torch.autograd.backward`.
    A copy of it stays on its device until the end, so that nothing waits for a GPU.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._depth = 0

    def install(self, patches: Patches) -> None:
        """Wrap `torch.autograd.backward`."""
        from torch import autograd

        patches.replace(autograd, "backward", self._around)

    def values(self) -> list[float]:
        """The losses as numbers; waits for their device."""
        return [float(loss) for loss in self._kept]

    def _around(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if self._depth or threading.current_thread() is not threading.main_thread():
                return backward(*arguments, **keywords)
            self._keep(arguments[0] if arguments else keywords.get("tensors"))
            self._depth += 1
            try:
                return backward(*arguments, **keywords)
            finally:
                self._depth -= 1

        return watched

    def _keep(self, tensors: Any) -> None:
        import torch

        try:
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors or ()))
            if len(self._kept) < _MOST_LOSSES and first.numel() == 1 and first.is_floating_point():
                self._kept.append(first.detach().clone())
        except Exception:  # noqa: BLE001 - a loss that cannot be kept is not compared
            return


class WorkerWatch:
    """Times how long loader workers need for a batch, where they are forked.

    Each worker adds up in memory that it shares with this process: a number of batches and of
    nanoseconds, at the place of its number.
    """

    _MOST_WORKERS = 512
    _PLACE = struct.Struct("qq")

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, self._MOST_WORKERS * self._PLACE.size)

    @property
    def batch_ns(self) -> int | None:
        """The mean over all workers; None if none was seen to make a batch."""
        counts, totals = zip(*self._PLACE.iter_unpack(self._shared[:]), strict=True)
        return round(sum(totals) / sum(counts)) if any(counts) else None

    def install(self, patches: Patches) -> None:
        """Wrap what makes a batch of indices."""
        from torch.utils.data._utils import fetch

        patches.replace(fetch._MapDatasetFetcher, "fetch", self._around)
        patches.replace(fetch._IterableDatasetFetcher, "fetch", self._around)

    def _around(self, fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        from torch.utils.data import get_worker_info

        @functools.wraps(fetch)
        def timed(fetcher: Any, indices: Any) -> Any:
            worker = get_worker_info()
            if worker is None or worker.id >= self._MOST_WORKERS:
                return fetch(fetcher, indices)
            begun_ns = time.perf_counter_ns()
            batch = fetch(fetcher, indices)
            place = worker.id * self._PLACE.size
            count, total_ns = self._PLACE.unpack_from(self._shared, place)
            total_ns += time.perf_counter_ns() - begun_ns
            self._PLACE.pack_into(self._shared, place, count + 1, total_ns)
            return batch

        return timed


def _import_name(kind: type) -> str:
    """The name under which a script would import a class: torch.optim.Adam."""
    from torch import optim

    if getattr(optim, kind.__name__, None) is kind:
        return f"torch.optim.{kind.__name__}"
    return (
        kind.__qualname__
        if kind.__module__ == "__main__"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _leave_at_once() -> NoReturn:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _rank() -> int:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0") or 0)


def _facts() -> dict[str, Any]:
    import resource

    import torch

    from stepscope.system import usable_cpus

    uses_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if uses_gpu else range(0)
    memory = [torch.cuda.memory_stats(one) for one in devices]

    def most(counter: str) -> int:
        return max((one.get(counter, 0) for one in memory), default=0)

    return {
        "threads": torch.get_num_threads(),
        "cpus": usable_cpus(),
        "local_ranks": max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)),
        "uses_gpu": uses_gpu,
        "is_distributed": torch.distributed.is_available() and torch.distributed.is_initialized(),
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_device_bytes": most("allocated_bytes.all.peak"),
        "peak_reserved_bytes": most("reserved_bytes.all.peak"),
        "allocator_retries": most("num_alloc_retries"),
    }
