"""What a fix is: a change to a training that needs no word in its script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Patches(Protocol):
    """Through which a fix changes the training process; see `trial.inside.patches`."""

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace an attribute by what `wrap` makes of it."""

    def assign(self, owner: Any, name: str, value: Any) -> None:
        """Set a plain attribute."""

    def later(self, undo: Callable[[], None]) -> None:
        """Register what undoes a change."""

    def after_step(self, act: Callable[[int], None]) -> None:
        """Call a function after each step, with the number of steps so far."""

    def arguments(
        self, owner: type, change: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> None:
        """Change the arguments with which objects of a class are made."""

    def did(self, what: str) -> None:
        """Note that the fix took effect."""

    def override(self, what: str) -> None:
        """Note that it overrode what the script says itself."""

    def refuse(self, why: str) -> None:
        """Note that it could not be applied somewhere."""

    def place(self) -> str:
        """Where the script, or its framework, calls into torch: "train.py:41"."""


@dataclass(frozen=True)
class AllocatorChoice:
    """Settings of the GPU's allocator that are worth a run.

    Attributes:
        value: The value of PYTORCH_CUDA_ALLOC_CONF.
        settings: What of it is simulated; "default" for the defaults.
        reserved_bytes: The most that the allocator reserves with them, by simulation.
        retries: How often it gives back all cached blocks to serve a request, by simulation.
        basis: What is promised against what was simulated of the script as it is.
    """

    value: str
    settings: str
    reserved_bytes: int
    retries: int
    basis: str


@dataclass(frozen=True)
class Facts:
    """What is known of the script as it is, once it has been diagnosed.

    Attributes:
        findings: Ids of its findings.
        promises: Finding to the step after its fix over the step before.
        doubt: Why the diagnosis promises nothing; empty if it does.
        workers_advised: Loader workers that `input-bound` advises; None if it does not say.
        workers_alone_ratio: Step with these workers alone, if they cannot keep up, over the step.
        workers_kept_ratio: Step over the step as it is, at most, if workers live on from epoch to
            epoch; None if they do already, or that is unknown.
        loader_workers: Workers of the training's loader; None if it has no loader.
        prefetch_factor: Batches that each of them prepares ahead; None if unknown.
        threads: Threads that torch uses within an operator.
        cpus: CPUs that the process may use.
        local_ranks: Ranks on the machine.
        is_distributed: Whether several ranks train together.
        uses_gpu: Whether it trains on a GPU.
        optimizers: Classes of the optimizers that step, as a script would import them.
        zeroes_gradients: Whether it fills gradients with zeros; None if unknown.
        allocator: Settings of the allocator that are worth a run; or, as text, why there are none;
            empty if they were not simulated.
    """

    findings: frozenset[str] = frozenset()
    promises: Mapping[str, float] = field(default_factory=dict)
    doubt: str = ""
    workers_advised: int | None = None
    workers_alone_ratio: float | None = None
    workers_kept_ratio: float | None = None
    loader_workers: int | None = None
    prefetch_factor: int | None = None
    threads: int = 1
    cpus: int = 1
    local_ranks: int = 1
    is_distributed: bool = False
    uses_gpu: bool = False
    optimizers: tuple[str, ...] = ()
    zeroes_gradients: bool | None = None
    allocator: AllocatorChoice | str = ""


@dataclass(frozen=True)
class Plan:
    """A fix with its value for one script.

    Attributes:
        value: What `Fix.apply` is given; plain, because it travels to the process as JSON.
        changes: What it changes, for people.
        lines: What a person would write into the script.
        promised_ratio: Step after over step before, if the fix knows better than its findings.
        promise_basis: Why there is another promise than the finding's, or none.
        promised_reserved_bytes: The most that the GPU's allocator reserves; None: no promise.
        promised_retries: How often it has to give back its cache; None: no promise.
        environment: Environment variables of the process.
    """

    value: Any
    changes: str
    lines: tuple[str, ...]
    promised_ratio: float | None = None
    promise_basis: str = ""
    promised_reserved_bytes: int | None = None
    promised_retries: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fix:
    """A fix that can be tried on a script.

    Attributes:
        name: Its name for `--fix`.
        title: What it does, in a few words.
        answers: Findings that it answers.
        applies_to: Where it applies.
        risks: What it may cost.
        plan: Its value for a script; or, as text, why it does not apply.
        apply: Applies it in the training process, once torch is imported.
        group: Fixes of the same group exclude each other; empty for none.
        promised_by: The findings whose promise is what this fix alone brings.
        only_if_asked: Whether it is tried only if it is named.
        start_up_s: How much longer the start of the script may take with it, in seconds.
        redraws: Whether random numbers for the data are drawn in another order, so that the losses
            of a script that augments its data differ from step to step.
    """

    name: str
    title: str
    answers: tuple[str, ...]
    applies_to: str
    risks: str
    plan: Callable[[Facts], Plan | str]
    apply: Callable[[Patches, Any], None]
    group: str = ""
    promised_by: tuple[str, ...] = ()
    only_if_asked: bool = False
    start_up_s: float = 0.0
    redraws: bool = False
