"""What ends a step of a loop that does not say so: pure logic, fed with what the loop does.

A step ends where an optimizer's step does, where the next batch is wanted, or, for inference, where
a call of a model ends. Batches and models that no backward pass follows are an evaluation, and no
part of a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from stepscope.run.step_record import CHECKPOINT, END_OF_EPOCH, EVALUATION

BY_OPTIMIZER, BY_ITERATION, BY_BATCH, BY_FORWARD = "optimizer", "iteration", "batch", "forward"

STEP = "a step"
"""What was done up to now is a step."""
REST = "the rest of a step"
"""It lies between the optimizer that ended the steps so far and the end of the iteration."""
AFTER = "after the last step"
"""What a script does after its last step that is no evaluation and saves nothing."""
_LONG_END_NS = 1_000_000
"""A shorter wait at the end of an epoch is left to what follows."""
_MOST_BATCHES = 4096
"""More batches of a step are not counted separately."""
_OTHERS_BEFORE_CHANGE = 50
"""After this many steps of other optimizers, the one that ends steps counts as unused."""
_CONFIRMATIONS = 2
"""How often in a row another optimizer must be the last before a batch to end steps from then on.
Twice as often after each change, so that a training that alternates settles."""


class StepPolicy:
    """Decides where steps end. Its methods are what the loop does.

    Those that may end something return what was done up to now: `STEP`, `REST`, `END_OF_EPOCH` or
    `EVALUATION`; empty if that goes on.

    Args:
        step_on: `BY_OPTIMIZER`, `BY_ITERATION` (the request for the next batch after training on
            one), `BY_BATCH` (any request for the next batch) or `BY_FORWARD` (the outermost call of
            a module).

    Attributes:
        has_trained: Whether anything was done that makes a step.
        has_learned: Whether there was a backward pass.
        ending_ns: What an epoch's end took that may be part of what follows; 0 for nothing.
    """

    def __init__(self, step_on: str) -> None:
        self.steps = 0
        self.has_trained = self.has_learned = False
        self._step_on = step_on
        self._has_batch = False
        self._backwards = self._batches = 0
        self._batches_of_steps: dict[int, int] = {}
        self._main = MainOptimizer()
        self._fetched: set[Hashable] = set()
        self._training_data: set[Hashable] = set()
        self._excluded: dict[Hashable, int] = {}
        self._evaluated: Hashable = None
        self._has_epoch_ended = False
        self._evaluates = False
        self.ending_ns = 0

    # -- what the loop does ---------------------------------------------------------------------

    def batch_wanted(self, data: Hashable) -> str:
        """The loop asks for a batch of this data."""
        found = self._before_batch(data)
        self._fetched.add(data)
        return found

    def epoch_begins(self, data: Hashable) -> str:
        """The loop makes an iterator over data that it trains on."""
        return self._before_batch(data)

    def epoch_ended(self, data: Hashable, took_ns: int) -> str:
        """The data has no more batches, which took so long to find.

        That is no part of an evaluation that follows. Whether one does is only known later: what
        followed the epoch before is expected again.
        """
        if self._backwards or not self.trains_on(data):
            return ""
        self._has_epoch_ended = True
        if took_ns < _LONG_END_NS or self._step_on == BY_BATCH:
            return ""
        self.ending_ns = 0 if self._evaluates else took_ns
        return END_OF_EPOCH if self._evaluates else ""

    def trains_on(self, data: Hashable) -> bool:
        """Whether a backward pass followed a batch of this data."""
        return data in self._training_data

    def batch_came(self) -> None:
        """A batch has arrived."""
        self._has_batch = True
        self._batches += 1

    def backward_begins(self) -> None:
        """A backward pass begins: the batches since the last step were for training."""
        self._training_data |= self._fetched
        self._backwards += 1
        self.has_learned = True

    def optimizer_ended(self, optimizer: Any) -> str:
        """An optimizer, or an engine with everything it does, has stepped."""
        self.has_trained = True
        if self._step_on in {BY_BATCH, BY_FORWARD} or not self._main.ends_steps(optimizer):
            return ""
        return "" if self._step_on == BY_ITERATION and self._training_data else self._end_step()

    def call_ended(self) -> str:
        """The outermost call of a module has ended."""
        self.has_trained = True
        return self._end_step()

    def mode_changed(self, model: Hashable, is_training: bool) -> str:
        """A model was set to evaluation, or back to training.

        It was evaluated if no backward pass came between, and none before in the step.
        """
        if self._backwards or self._step_on in {BY_BATCH, BY_FORWARD}:
            return ""
        if not is_training:
            self._evaluated = model
        elif self._evaluated == model:
            self._evaluated = None
            if model not in self._training_data:
                return self._leave_out({model})
        return ""

    # -- at the end -----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the last iteration has no other end than that of the loop."""
        is_iteration = self._step_on == BY_ITERATION and self._backwards > 0
        return is_iteration or (self._step_on == BY_BATCH and self._has_batch)

    def rest_kind(
        self, *, has_called: bool, finds_calls: bool, has_saved: bool, is_long: bool
    ) -> str:
        """What was done after the last step; empty for nothing that is known of.

        That is long which takes longer than the end of any process.
        """
        if self._backwards or self._step_on in {BY_BATCH, BY_FORWARD}:
            return ""
        if self._batches or has_called or (self._evaluated is not None and not finds_calls):
            return EVALUATION
        if has_saved:
            return CHECKPOINT
        return AFTER if is_long else ""

    def usual_batches(self) -> int:
        """How many batches most steps trained on; 0 without steps.

        Not the most: at the end of an epoch some may be left for the next step, and a step may be
        skipped, as for an overflow.
        """
        counts = self._batches_of_steps
        return max(counts, key=lambda batches: (counts[batches], -batches), default=0)

    # -- what it means --------------------------------------------------------------------------

    def _before_batch(self, data: Hashable) -> str:
        if self._step_on == BY_BATCH:
            if not self._has_batch:
                return ""
            self._has_batch = False
            self.has_trained = True
            return self._end_step()
        if self._step_on == BY_ITERATION and self._backwards:
            return self._end_step()
        if self._step_on == BY_OPTIMIZER and self._main.batch_is_wanted():
            # The loop's iterations end here, and not where an optimizer ended the steps so far.
            return self._restart(REST)
        if not self._backwards:
            foreign = self._fetched - self._training_data - {data}
            if foreign and (data in self._training_data or not self._training_data):
                # No backward pass followed these batches, and now the training continues.
                return self._leave_out(foreign)
        return ""

    def _end_step(self) -> str:
        self._evaluated = None
        self.ending_ns = 0
        if self._has_epoch_ended:
            self._has_epoch_ended = self._evaluates = False  # and no evaluation came
        # Several losses of one batch are no accumulation; nor is a batch without a loss. Without
        # `min` and `Counter`, which take 7 µs where a step has pushed them out of the CPU's caches.
        backwards = self._backwards if self._backwards < _MOST_BATCHES else _MOST_BATCHES  # noqa: FURB136
        batches = self._batches if self._batches < backwards else backwards  # noqa: FURB136
        counts = self._batches_of_steps
        if batches in counts:
            counts[batches] += 1
        else:
            counts[batches] = 1
        self.steps += 1
        if self._fetched:
            self._fetched.clear()
        self._backwards = self._batches = 0
        return STEP

    def _leave_out(self, what: set[Hashable]) -> str:
        """Exclude this data, or a model, from the step: it was an evaluation.

        What recurs in every step is no evaluation but part of the step, and counts as that of the
        training from then on.
        """
        for one in what:
            if self._excluded.get(one) == self.steps - 1:
                self._training_data.add(one)
            self._excluded[one] = self.steps
        if self._has_epoch_ended:
            self._has_epoch_ended, self._evaluates = False, True
        return self._restart(EVALUATION)

    def _restart(self, before: str) -> str:
        self._fetched.clear()
        self._backwards = self._batches = 0
        return before


class MainOptimizer:
    """Decides whose steps are counted: those of the optimizer that is used first.

    If another one is always the last before the next batch, as in a training with two networks, it
    ends the steps from then on. If the one that does goes unused or is gone, another one takes its
    place.
    """

    def __init__(self) -> None:
        self._main: weakref.ref[Any] | None = None
        self._last: weakref.ref[Any] | None = None
        self._others = 0
        self._confirmations = 0
        self._needed = _CONFIRMATIONS

    def batch_is_wanted(self) -> bool:
        """Take notice that the loop asks for a batch: what stepped last may end its iterations.

        Returns:
            Whether another optimizer ends the steps from now on. Then what came since the last end
            of a step is the rest of one.
        """
        last = self._last() if self._last is not None else None
        self._last = None
        if last is None or self._main is None:
            return False
        if last is self._main():
            self._confirmations = 0
            return False
        self._confirmations += 1
        if self._confirmations < self._needed:
            return False
        self._main = weakref.ref(last)
        self._others = self._confirmations = 0
        self._needed *= 2
        return True

    def ends_steps(self, optimizer: Any) -> bool:
        """Whether the step that this optimizer has just made ends a step of the training."""
        main = self._main() if self._main is not None else None
        if main is optimizer:
            self._last = self._main
            self._others = 0
            return True
        self._last = weakref.ref(optimizer)
        self._others += 1
        if main is None or self._others > _OTHERS_BEFORE_CHANGE:
            self._main = weakref.ref(optimizer)
            self._others = 0
            return True
        return False
