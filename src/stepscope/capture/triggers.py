"""How all ranks agree on the steps of a window that was requested.

Rank 0 decides. Every request (from a file, a signal, code, a slow step) reaches it
through the process group's store, or through files in the run directory if there is no store. It
picks a first step far enough ahead for every rank to hear of it in time, and announces it both
ways. A separate thread listens, so that a slow file system or a dead store never holds up the
training. No rank ever waits for another.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.capture.ranks import RankIdentity, parse_ranks
from stepscope.errors import UsageError
from stepscope.run import triggers as files
from stepscope.run.step_record import TRAIN
from stepscope.run.triggers import Trigger

if TYPE_CHECKING:
    from stepscope.capture.clock_sync import ClockRounds
    from stepscope.capture.options.config import CaptureConfig
    from stepscope.capture.record.journal import Clock, Journal
    from stepscope.capture.shared_store import SharedStore
    from stepscope.capture.windows.planner import WindowPlanner
    from stepscope.run.step_record import StepRecord

log = logging.getLogger("stepscope")

_POLL_S = 1.0
_HEAR_S = 3.0
"""Time within which every rank looks once more."""
_LEAST_STEPS = 4
"""Steps that show how long one takes: the first ones are slow in every run."""
_USUAL_STEPS, _LEAST_USUAL = 50, 10
"""A step is slow beside the median of the last ones, and only if so many are known."""
_CLOSE_S = 2.0
_TURN_S = 0.01
"""Time per rank in a round of clock comparison, while the others wait for their turn."""


class TriggerDesk:
    """Takes requests on any rank and hands out agreed windows on every rank.

    Args:
        connect: Returns the process group's store, or None until there is one; called in the
            listening thread.
        accept: Called with each agreed trigger and its first step, in the listening thread.
        step_now: Returns the number of the current step, of which `take` learns late.
        clocks: Compares this rank's clock with rank 0's repeatedly; None to skip this.
    """

    def __init__(
        self,
        config: CaptureConfig,
        run: Path,
        identity: RankIdentity,
        connect: Callable[[], SharedStore | None],
        accept: Callable[[Trigger], None],
        step_now: Callable[[], int],
        clocks: ClockRounds | None = None,
    ) -> None:
        self._run = run
        self._identity = identity
        self._connect = connect
        self._store: SharedStore | None = None
        self._accept = accept
        self._step_now = step_now
        self._clocks = clocks
        self._active = config.active
        self._warmup = max(1, config.warmup)
        self._schedule = config.schedule
        self._slow_factor = config.slow_step_factor
        self._cooldown = config.slow_step_cooldown
        self._usual_ns: collections.deque[int] = collections.deque(maxlen=_USUAL_STEPS)
        self._quiet_until = 0
        self._agreed: Trigger | None = None
        self._recent_s: collections.deque[float] = collections.deque(maxlen=20)
        self._seen: set[str] = {path.name for path in files.asked(run)}
        self._next_agreed = 1
        self._next_proposal = 1
        self._wakeup = threading.Event()
        self._is_closed = False
        self._outbox: collections.deque[Trigger] = collections.deque()
        self._undecided: list[Trigger] = []
        self._thread = threading.Thread(target=self._listen, name="stepscope", daemon=True)

    def start(self) -> None:
        """Start the listening thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening; does not wait long for a look that hangs.

        If a thread is inside a call to torch when the interpreter exits, the process crashes. So a
        thread that does not hang is waited for.
        """
        self._is_closed = True
        self._wakeup.set()
        self._thread.join(timeout=_CLOSE_S)

    def take(self, record: StepRecord) -> None:
        """Take in a step that ended, and request a window if it was slow.

        Called in the thread that writes steps: nothing of this is at the training's cost.
        """
        self._recent_s.append(record.dur_ns / 1e9)
        # Steps inside a window are slower because of it, which means nothing.
        factor, is_usual = self._slow_factor, record.window is None and record.kind == TRAIN
        if factor is None or not is_usual:
            return
        known, step = len(self._usual_ns), record.step
        median_ns = statistics.median(self._usual_ns) if known >= _LEAST_USUAL else math.inf
        self._usual_ns.append(record.dur_ns)
        if record.dur_ns > factor * median_ns and step >= self._quiet_until:
            self._quiet_until = step + self._cooldown
            self.ask(Trigger("slow step"))

    def ask(self, trigger: Trigger) -> None:
        """Request a window on all ranks, from any thread or signal handler. Returns at once.

        Raises:
            UsageError: It is for ranks that are not understood.
        """
        if trigger.ranks:
            parse_ranks(trigger.ranks)
        trigger = dataclasses.replace(trigger, steps=trigger.steps or self._active)
        if self._identity.world_size == 1:
            self._accept(trigger)
            return
        self._outbox.append(trigger)
        self._wakeup.set()

    # -- the listening thread -----------------------------------------------------------------

    def _listen(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(Exception):  # the next look may succeed
                self.look()
            self._wakeup.wait(_POLL_S)
            self._wakeup.clear()

    def look(self) -> None:
        """Look once for requests and agreements."""
        if self._store is None and self._identity.world_size > 1:
            self._store = self._connect()
        store = self._store
        if self._clocks is not None and store is not None and store.is_own and store.is_usable:
            with contextlib.suppress(Exception):  # a store can fail in many ways
                self._clocks.look(store.store, store.prefix, lambda: self._is_closed)
        undecided, self._undecided = self._undecided, []
        for trigger in undecided:
            self._decide(trigger)
        while self._outbox:
            trigger = self._outbox.popleft()
            if self._identity.rank == 0:
                self._decide(trigger)
            else:
                self._propose(trigger)
        if self._identity.rank == 0:
            self._look_for_requests()
        else:
            self._look_for_agreements()

    def _look_for_requests(self) -> None:
        for path in files.asked(self._run):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                trigger = files.read(path)
                if trigger.ranks:
                    parse_ranks(trigger.ranks)
            except (OSError, ValueError, UsageError) as error:
                log.warning("stepscope: trigger %s is ignored: %s", path.name, error)
                continue
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()
            self._decide(trigger)
        if self._store is None:
            return
        while (data := self._store.get(f"proposal/{self._next_proposal}")) is not None:
            self._next_proposal += 1
            with contextlib.suppress(ValueError):
                self._decide(Trigger.decode(data))

    def _propose(self, trigger: Trigger) -> None:
        if self._store is not None:
            number = self._store.add("proposals", 1)
            if number > 0 and self._store.put(f"proposal/{number}", trigger.encode()):
                return
        files.put(self._run, trigger)

    def _decide(self, trigger: Trigger) -> None:
        """Choose the first step and announce it. Only on rank 0.

        What one rank notices, the others notice too, and code runs on all of them. So a request
        that equals the upcoming window is taken as a request for that one.

        How many steps the others need to hear of it is known once a few steps have ended: until
        then the request waits. Steps may become faster, as where other jobs on the machine end, so
        that the faster ones count.
        """
        has_others = self._identity.world_size > 1
        if has_others and len(self._recent_s) < _LEAST_STEPS:
            self._undecided.append(trigger)
            return
        trigger = dataclasses.replace(trigger, steps=trigger.steps or self._active)
        step = self._step_now()
        coming = self._agreed
        if coming is not None and coming.last_step < step:
            coming = None
        if coming is not None and trigger.cause != "file":
            first_step, created_ns = coming.first_step, coming.created_ns
            if coming == dataclasses.replace(trigger, first_step=first_step, created_ns=created_ns):
                return
        lead = self._warmup + 1
        if has_others:
            usual_s = sorted(self._recent_s)[len(self._recent_s) // 4]
            hear_s = _HEAR_S + _TURN_S * self._identity.world_size
            lead += 1 + math.ceil(hear_s / max(usual_s, 1e-4))
        first = step + lead
        if coming is not None:
            first = max(first, coming.last_step + 1 + self._warmup)
        first = self._schedule.free_step(first, trigger.steps, self._warmup)
        agreed = self._agreed = dataclasses.replace(trigger, first_step=first)
        if has_others:
            number = self._next_agreed
            self._next_agreed += 1
            if self._store is not None:
                self._store.put(f"agreed/{number}", agreed.encode())
            with contextlib.suppress(OSError):
                files.announce(self._run, number, agreed)
        self._hand_out(agreed)

    def _look_for_agreements(self) -> None:
        while True:
            number = self._next_agreed
            data = self._store.get(f"agreed/{number}") if self._store is not None else None
            trigger = files.agreed(self._run, number) if data is None else Trigger.decode(data)
            if trigger is None:
                return
            self._next_agreed += 1
            self._hand_out(trigger)

    def _hand_out(self, trigger: Trigger) -> None:
        if not self._is_closed:
            self._accept(trigger)


def open_desk(
    config: CaptureConfig,
    identity: RankIdentity,
    journal: Journal,
    planner: WindowPlanner,
    clock: Clock,
    step_now: Callable[[], int],
) -> TriggerDesk | None:
    """Begin to take requests for windows from files, code and slow steps, if the options say so."""
    if not config.triggers:
        return None
    run, clocks = journal.layout.root, None

    def connect() -> SharedStore | None:
        from stepscope.capture.shared_store import SharedStore

        return SharedStore.connect(run.name, own_connection=True)

    if identity.world_size > 1:
        from stepscope.capture.clock_sync import ClockRounds

        clocks = ClockRounds(
            identity, lambda: clock.epoch(time.perf_counter_ns()), journal.note_clock
        )
    desk = TriggerDesk(config, run, identity, connect, planner.request, step_now, clocks)
    desk.start()
    return desk
