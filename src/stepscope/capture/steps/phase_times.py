"""Phases of a step, computed where it ends from the events that were noted in it.

The loop's own phases and the hooks in torch only append events to a list; this is where they become
times. Nothing here reads a clock or knows of torch.

At most one *detected* phase is open: the next one ends it, and so does the end of the step. A phase
that the loop names itself suspends it, and so do saving and `zero_grad`, which is part of
*optimizer*. *forward* is the outermost calls of modules, and what follows the last of them until
backward begins (the loss) or something else does. How long the latter takes is kept, too: a loop
may make its next batch there. Between two calls, it is forward if the second one depends on the
first. *backward*, and a collective, are timed where they lie, inside whatever is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from stepscope.run.step_record import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, SAVING
from stepscope.run.step_ring import AFTER_CALL, USUAL_PHASES

# Kinds of events, with what their value is.
OPEN = "open"  # a phase of the loop's own begins: its `PhaseName`
CLOSE = "close"  # it ends: the same
ENTER = "enter"  # a detected phase begins, and ends the one before: its name
LEAVE = "leave"  # the detected phase ends
CALL = "call"  # the outermost call of a module begins: whether its inputs require gradients
RETURN = "return"  # it ends: whether gradients are recorded
BACKWARD_BEGINS = "backward begins"
BACKWARD_ENDS = "backward ends"
OPTIMIZER_BEGINS = "optimizer begins"
OPTIMIZER_ENDS = "optimizer ends"
CLOSURE_BEGINS = "closure begins"  # an optimizer calls it: whether forward begins
CLOSURE_ENDS = "closure ends"
COLLECTIVE_BEGINS = "collective begins"
COLLECTIVE_ENDS = "collective ends"
SAVE_BEGINS = "save begins"
SAVE_ENDS = "save ends"
ZERO_GRAD_BEGINS = "zero_grad begins"
ZERO_GRAD_ENDS = "zero_grad ends"
SUSPEND = "suspend"  # the training waits, in no phase
RESUME = "resume"  # it goes on
END = "end"  # the step ends, and the detected phase with it
LEFT_OUT = "left out"  # time that has just passed counts elsewhere: nanoseconds
SPENT = "spent"  # time that counts under a name of its own: the name, nanoseconds

_ENDS = {
    CLOSE: None,
    SAVE_ENDS: SAVING,
    ZERO_GRAD_ENDS: ZERO_GRAD_BEGINS,
    BACKWARD_ENDS: BACKWARD,
    COLLECTIVE_ENDS: COMMUNICATION,
}
"""Events that end a phase, with its token; None where that is the event's value."""
_SUSPENDING = {SAVE_BEGINS: (SAVING, SAVING), ZERO_GRAD_BEGINS: (OPTIMIZER, ZERO_GRAD_BEGINS)}
"""Events that begin a phase outside of the loop's own and of backward: its name and token."""

Event = tuple[str, Any, int, Any]
"""Kind, value, `perf_counter_ns()`, and the mark on the device, if one is timed."""
Open = SimpleNamespace
"""A phase that is open: its `name`, `token`, `entered_ns`, and its `mark` on the device."""


@dataclass(frozen=True, eq=False, slots=True)
class PhaseName:
    """The name of a phase of the loop's own: one object for each name, so that events are alike."""

    name: str


_Shape = tuple[tuple[str, ...], tuple[Any, ...], tuple[Any, ...]]
"""The events of a step without their times: kinds, values and marks."""
_ReadOff = tuple[tuple[str, ...], list[int], list[tuple[int, int, int]]]
"""Of such a step: the names of phases; 0 for each, or -1 for one that it lacks; and the parts of
phases: the number of the name, and of the moments between which a part lies."""
_SLOT_NAMES = (*USUAL_PHASES, AFTER_CALL)
_MOST_SHAPES = 64
"""A training whose steps differ more often gains nothing from knowing them."""
_APART = 1 << 16
"""More than the phases of any step have parts."""


class PhaseTimes:
    """Times of the phases in the current step.

    Attributes:
        times: Nanoseconds of each phase so far, by path.
        device: Path and marks of each part of a phase that the device is timed in.
        training: Paths of the loop's own phases that hold a backward pass or an optimizer's step.
        after_call_ns: The part of forward that follows its last call; whoever ends the step takes
            it.
        detected: The detected phase; empty for none. It may be suspended.
        open: The phases that are open, the outermost first.
    """

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.device: list[tuple[str, Any, Any]] = []
        self.training: set[str] = set()
        self.after_call_ns = 0
        self.detected = ""
        self.open: list[Open] = []
        self._is_open = False
        self._suspended = 0
        self._backwards = 0
        self._is_stepping = False
        self._is_in_closure = False
        self._returned_ns = 0
        self._usual: dict[_Shape, _ReadOff | None] = {}
        self._unknown: _Shape | None = None
        self._after_ns = 0  # of a forward that zero_grad or a phase of the loop's own suspends

    @property
    def has_own(self) -> bool:
        """Whether a phase of the loop's own is open, saving, or `zero_grad`."""
        return self._suspended > 0

    def see(self, events: Iterable[Event]) -> None:
        """Take events, in the order in which they happened.

        One function, because each step of the training calls it. What an event changes stands
        first, then the phase that it ends, then the one that it begins.
        """
        opened, times = self.open, self.times
        for kind, value, now_ns, mark in events:
            ends: object = _ENDS[kind] or value if kind in _ENDS else None
            leaves, enters = False, ""
            if kind == CALL:
                is_inside = self._is_stepping and not self._is_in_closure
                if not (self._backwards or self._suspended or is_inside):
                    self._after_ns = 0
                    if self.detected != FORWARD:
                        enters = FORWARD
                    elif value:
                        self._returned_ns = 0
                    else:
                        self._leave_out_tail(now_ns)
            elif kind == RETURN:
                if self.detected == FORWARD and not self._suspended:
                    if value:
                        self._returned_ns = now_ns
                    else:
                        leaves = True
            elif kind == BACKWARD_BEGINS:
                if self._returned_ns:
                    self.after_call_ns += self._after_ns
                    if self._is_open:
                        self.after_call_ns += now_ns - self._returned_ns
                    self._returned_ns = 0
                leaves = not self._is_stepping or self._is_in_closure
            elif kind == OPTIMIZER_BEGINS:
                self._is_stepping = True
                enters = OPTIMIZER
            elif kind in (LEAVE, OPTIMIZER_ENDS):
                self._is_stepping = self._is_in_closure = False  # a step that raised never ended
                leaves = True
            elif kind == END:
                leaves = True
            elif kind == ENTER:
                enters = value
            elif kind == COLLECTIVE_BEGINS:
                leaves = self._returned_ns > 0
            elif kind in (CLOSURE_BEGINS, CLOSURE_ENDS):
                self._is_in_closure = kind == CLOSURE_BEGINS
                leaves = True
                if kind == CLOSURE_ENDS:
                    enters = OPTIMIZER
                elif value:
                    enters = FORWARD
            elif kind == LEFT_OUT:
                self._leave_out(value, now_ns)
            elif kind == SPENT:
                name, spent_ns = value
                times[name] = times.get(name, 0) + spent_ns

            if self.detected and (leaves or enters):
                # Forward ends with the return of its last call, if nothing followed that shows
                # more.
                if self._returned_ns:
                    self._leave_out_tail(now_ns)
                self.detected = ""
                self._after_ns = 0
                suspends = True
            else:
                is_outside = not self._suspended and not self._backwards
                suspends = (kind in _SUSPENDING and is_outside) or kind in (OPEN, SUSPEND)
            if suspends and self._is_open:
                self._is_open = False
                ends = self
                if self._returned_ns:
                    self._after_ns += now_ns - self._returned_ns
            was_open = False
            if ends is not None:
                if len(opened) == 1 and opened[0].token is ends:  # as mostly
                    phase = opened.pop()
                    name = phase.name
                    times[name] = times.get(name, 0) + now_ns - phase.entered_ns
                    if phase.mark is not None and mark is not None:
                        self.device.append((name, phase.mark, mark))
                    was_open = True
                else:
                    was_open = self._close(ends, now_ns, mark)

            begins: tuple[str, object] | None = None
            if enters:
                if kind == OPTIMIZER_BEGINS and opened:
                    self._note_training()
                self.detected = enters
                if not self._suspended:
                    self._is_open = True
                    begins = enters, self
            elif kind == BACKWARD_BEGINS:
                if opened:
                    self._note_training()
                self._backwards += 1
                if not self._suspended:
                    begins = BACKWARD, BACKWARD
            elif kind == BACKWARD_ENDS:
                self._backwards = max(0, self._backwards - 1)
            elif kind == OPEN:
                self._suspended += 1
                begins = value.name, value
            elif kind == COLLECTIVE_BEGINS:
                if not self._suspended:
                    begins = COMMUNICATION, COMMUNICATION
            elif kind in _SUSPENDING:
                if suspends:
                    self._suspended += 1
                    begins = _SUSPENDING[kind]
            elif kind == RESUME or (was_open and kind in (CLOSE, SAVE_ENDS, ZERO_GRAD_ENDS)):
                if kind != RESUME:
                    self._suspended -= 1
                if self.detected and not self._suspended and not self._is_open:
                    self._is_open = True
                    begins = self.detected, self
                    if self._returned_ns:
                        self._returned_ns = now_ns
            if begins is not None:
                name, token = begins
                opened.append(Open(name=name, token=token, entered_ns=now_ns, mark=mark))

    def end_step(
        self, events: Iterable[Event], now_ns: int, mark: Any
    ) -> tuple[dict[str, int], list[tuple[str, Any, Any]]]:
        """Take the last events, end the step and begin the next.

        The detected phase ends. What else is open goes on: each step has its part of the time.

        Returns:
            The times, on the host and on the device.
        """
        self.see((*events, (END, None, now_ns, mark)))
        for depth in range(len(self.open)):
            self._add(depth, now_ns, mark)
        ended = self.times, self.device
        self.times, self.device = {}, []
        shape, self._unknown = self._unknown, None
        if shape is not None and mark is None and len(self._usual) < _MOST_SHAPES:
            self._learn(shape)
        return ended

    def end_usual_step(
        self, events: Sequence[Event], now_ns: int
    ) -> list[int] | dict[str, Any] | None:
        """End a step that has the same events as one before, which takes a tenth of `end_step`.

        Its phases lie between the same events.

        Returns:
            The times of `USUAL_PHASES` and `AFTER_CALL`, -1 for none; fields of the step's record
            where it has other phases; None if `end_step` must end this step.
        """
        is_amid = self._suspended or self._backwards or self._is_stepping or self._is_in_closure
        if is_amid or self.detected or self.open or self.times:
            return None
        if not events:
            return [-1] * len(_SLOT_NAMES)
        kinds, values, at_ns, marks = zip(*events, strict=True)
        at_ns = (*at_ns, now_ns)
        shape = kinds, values, marks
        try:
            usual = self._usual.get(shape)
            if usual is None and LEFT_OUT in kinds:  # such times differ as moments do
                lasted, others, before_ns = [], [], 0
                for kind, value, time_ns, _ in events:
                    if kind != LEFT_OUT:
                        others.append(value)
                    elif value > time_ns - before_ns:
                        return None  # a phase may have begun within it
                    else:
                        lasted.append(value)
                        others.append(None)
                    before_ns = time_ns
                at_ns = (*lasted, *at_ns, 0)
                shape = kinds, tuple(others), marks
                usual = self._usual.get(shape)
        except TypeError:  # a value without a hash
            return None
        if usual is None:
            self._unknown = None if shape in self._usual else shape
            return None
        names, none, spans = usual
        found = [*none]
        for phase, begins, ends in spans:
            found[phase] += at_ns[ends] - at_ns[begins]
        if names is _SLOT_NAMES:
            return found
        phases = dict(zip(names, found, strict=True))
        if AFTER_CALL not in phases:
            return {"phases": phases}
        after_ns = phases.pop(AFTER_CALL)
        return {"phases": phases, AFTER_CALL: after_ns}

    def _learn(self, shape: _Shape) -> None:
        """Keep between which events the phases of such a step lie, if that is all it depends on.

        At moments so far apart, each sum of times between them, less what is left out, is the sum
        of no others.
        """
        kinds, values, marks = shape
        if marks.count(None) < len(marks):
            return
        if not all(value is None or isinstance(value, bool | str | PhaseName) for value in values):
            return
        self._usual[shape] = None
        number = kinds.count(LEFT_OUT)
        apart = [_APART**n for n in range(number + len(kinds) + 1)]
        left_out, at = iter(apart[:number]), apart[number:]
        given = [
            next(left_out) if kind == LEFT_OUT else value
            for kind, value in zip(kinds, values, strict=True)
        ]
        alike = PhaseTimes()
        alike.see(zip(kinds, given, at, marks, strict=False))
        times, _ = alike.end_step((), at[-1], None)
        if AFTER_CALL in times:
            return  # the loop calls a phase so
        if alike.after_call_ns:
            times[AFTER_CALL], alike.after_call_ns = alike.after_call_ns, 0
        alike.training.clear()
        if vars(alike) != vars(PhaseTimes()):
            return  # something goes on in the next step
        names = _SLOT_NAMES if times.keys() <= set(_SLOT_NAMES) else tuple(times)
        spans: list[tuple[int, int, int]] = []
        for path, total in times.items():
            begins: list[int] = []
            ends: list[int] = []
            rest = total + sum(_APART // 2 * one for one in apart)  # no part is negative then
            for n in range(len(apart)):
                rest, part = divmod(rest, _APART)
                parts = part - _APART // 2
                (ends if parts > 0 else begins).extend([n] * abs(parts))
            ends += [len(apart)] * (len(begins) - len(ends))  # from what is left out to 0
            phase = names.index(path)
            spans += [(phase, *span) for span in zip(begins, ends, strict=True)]
        self._usual[shape] = names, [0 if name in times else -1 for name in names], spans

    def _leave_out_tail(self, now_ns: int) -> None:
        returned_ns, self._returned_ns = self._returned_ns, 0
        if returned_ns and self._is_open:
            phase = next(one for one in self.open if one.token is self)
            phase.entered_ns = min(now_ns, phase.entered_ns + now_ns - returned_ns)

    def _leave_out(self, duration_ns: int, now_ns: int) -> None:
        for phase in self.open:
            phase.entered_ns = min(now_ns, phase.entered_ns + duration_ns)
        if self._returned_ns:
            self._returned_ns = now_ns

    def _note_training(self) -> None:
        names = [phase.name for phase in self.open]
        self.training.update("/".join(names[:depth]) for depth in range(1, len(names) + 1))

    def _close(self, token: object, now_ns: int, mark: Any) -> bool:
        """End an open phase, mostly the innermost; returns whether it was open.

        What was begun inside another one and goes on after it has a time inside it and one outside.
        """
        for depth in range(len(self.open) - 1, -1, -1):
            if self.open[depth].token is token:
                for inner in range(depth, len(self.open)):
                    self._add(inner, now_ns, mark)
                del self.open[depth]
                return True
        return False

    def _add(self, depth: int, now_ns: int, mark: Any) -> None:
        """Add the time of an open phase up to now, and count on from here."""
        phase = self.open[depth]
        path = phase.name
        if depth:
            path = "/".join([outer.name for outer in self.open[: depth + 1]])
        self.times[path] = self.times.get(path, 0) + max(0, now_ns - phase.entered_ns)
        phase.entered_ns = now_ns
        if phase.mark is not None and mark is not None:
            self.device.append((path, phase.mark, mark))
            phase.mark = mark
