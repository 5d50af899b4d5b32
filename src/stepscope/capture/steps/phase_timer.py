"""What is told about calls into torch, and what times them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Read(NamedTuple):
    """How a batch was read.

    Attributes:
        batch: The batch.
        duration_ns: How long it took.
        cpu_ns: How much of that the reading thread ran on a CPU.
        is_beside: Whether another thread than the training's read it.
    """

    batch: Any
    duration_ns: int = 0
    cpu_ns: int = 0
    is_beside: bool = False


class PhaseTimer(Protocol):
    """What times phases and waits: a profiler."""

    def phase(self, name: str, /) -> AbstractContextManager[None]:
        """Time the block as a phase."""

    def leave_out(self, duration_ns: int, /) -> None:
        """Leave time that has just passed out of the open phases."""

    def waiting(self) -> AbstractContextManager[None]:
        """Time the block as the wait for a batch."""

    def add_wait(self, duration_ns: int, /) -> None:
        """Count time that has just passed as the wait for a batch."""

    def see_loader(self, iterator: Any, /, *, read: Read | None = None) -> None:
        """Take notice of the iterator that a batch came from."""

    def loader_ends(self, iterator: Any, /) -> None:
        """Measure an iterator's workers for the last time: its data has ended."""

    def add_loader_time(
        self, *, epoch_start_ns: int = 0, workers_ns: int = 0, sampler_ns: int = 0
    ) -> None:
        """Add parts of the wait: see the fields of `StepRecord`."""

    def note_training_work(self) -> None:
        """Note that the open phases contain a backward pass or an optimizer's step."""

    def note_exchanges(self) -> None:
        """The training sends to single ranks, or receives from them."""


class Listener(Protocol):
    """Is told about calls into torch and decides what is timed; None means not timed."""

    def listens(self) -> bool:
        """Whether this process and thread is the one whose steps are recorded."""

    def before_fetch(self, iterator: Any) -> PhaseTimer | None:
        """An iterator over a DataLoader is about to fetch a batch."""

    def after_fetch(self, profiler: Any, batch: Any) -> None:
        """The iterator has returned a batch."""

    def before_workers(self, data: Any, *, is_start: bool) -> PhaseTimer | None:
        """A DataLoader over this data makes an iterator, or ends the workers of one."""

    def before_backward(self) -> PhaseTimer | None:
        """A backward pass is about to begin."""

    def before_optimizer(self) -> PhaseTimer | None:
        """An optimizer step is about to begin."""

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer step has ended, and no other one surrounds it.

        Of optimizers that step within a backward pass, one is named when the pass has ended.
        """


class OpenPhase(Protocol):
    """The phase that is open, to those that end or interrupt it."""

    def leave(self) -> None:
        """End it."""

    def interrupt(self) -> None:
        """End it for now."""

    def resume(self) -> None:
        """Go on with it."""

    def end_after_calls(self) -> None:
        """End it if it lasts only because no other has begun after a call of a module."""

    def stand_back(self) -> None:
        """Interrupt it, and open none: the loop begins a phase of its own."""

    def come_back(self) -> None:
        """Resume it: that phase has ended."""


@dataclass
class Depths:
    """How deep the training thread is in what is watched; plain numbers, whose reading cannot fail.

    Attributes:
        own: In phases that the loop names itself.
        backward: In backward passes.
        optimizer: In steps of optimizers.
    """

    own: int = 0
    backward: int = 0
    optimizer: int = 0
