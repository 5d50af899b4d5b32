"""Two versions of a training in turns: the runs that a comparison needs to know its noise.

Each version runs once for a few steps, which fills caches and shows what would fail. Then come
rounds: in each, both versions run once, in processes and copies of their folders of their own, in
an order that is reversed every other round, so that a machine that becomes slower favours none. The
number of rounds is fixed beforehand. Ending when the answer looks clear would fail identical
versions more often than the interval says.

Runs on the CPU, of one process each and small enough for both to be in memory, train in turns of a
quarter of a second (`alternation`). Others, whose memory on the GPU or whose ranks would be twice
as many, run one after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stepscope.errors import UsageError
from stepscope.run.figures import percent
from stepscope.trial.alternation import InTurns, alternating
from stepscope.trial.attempts import (
    Attempt,
    Bench,
    Narration,
    TrialError,
    Variant,
    new_bench,
    new_folder,
    time_limit_s,
)
from stepscope.trial.processes import DISTURBED, own_standard_input

VERSION_PLACEHOLDER = "{version}"
"""In the command, stands for the version."""
LEAST_RUNS = 2
STEPS_PER_RUN, LEAST_S = 100, 3.0
"""What each run has at least: a machine that is faster now and slower then takes seconds to show
itself. Where steps take 8 ms, runs of 100 differ by half as much again as runs of 400."""
_REHEARSAL_STEPS = 16
_MOST_MEMORY = 0.5
"""Of the memory that is free, what two runs together may take."""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        versions: The two versions, the one before first. A folder is the working directory of the
            command. Anything else takes the place of `VERSION_PLACEHOLDER` in it; a Python script
            without a command is the command.
        steps: Steps of each run; None: `STEPS_PER_RUN`, or as many as take `LEAST_S`.
        writable: Paths outside the versions' folders to which they may write.
    """

    versions: tuple[str, str]
    command: tuple[str, ...]
    scratch: Path
    runs: int
    steps: int | None
    budget_s: float
    writable: tuple[Path, ...] = ()

    def command_of(self, version: str) -> tuple[tuple[str, ...], Path]:
        """The command of a version, and its working directory."""
        if any(VERSION_PLACEHOLDER in word for word in self.command):
            return tuple(w.replace(VERSION_PLACEHOLDER, version) for w in self.command), Path.cwd()
        if Path(version).is_dir():
            if not self.command:
                raise UsageError(
                    f"{version}: no command: put it after --, as in -- python train.py"
                )
            return self.command, Path(version)
        if not self.command and Path(version).is_file() and version.endswith(".py"):
            return (version,), Path.cwd()
        place = f"write {VERSION_PLACEHOLDER} in the command where it belongs"
        if not Path(version).exists():
            raise UsageError(f"{version}: no such file or folder; if it is a value, {place}")
        if self.command:
            raise UsageError(f"{version}: not a folder to run the command in: {place}")
        raise UsageError(
            f"{version}: not a Python script: put its command after --, as in -- bash "
            f"{VERSION_PLACEHOLDER}"
        )


@dataclass(frozen=True)
class InterleavedRuns:
    """What was run.

    Attributes:
        is_alternating: Whether both runs of a round trained in turns of a quarter of a second.
    """

    before: tuple[Path, ...]
    after: tuple[Path, ...]
    folder: Path
    notes: tuple[str, ...]
    is_alternating: bool


@dataclass
class _Side:
    name: str
    bench: Bench
    runs: list[Path] = field(default_factory=list)


def run_interleaved(request: Request, narration: Narration) -> InterleavedRuns:
    """Run two versions in turns; see the module.

    Raises:
        TrialError: A version fails, or the budget suffices for fewer than `LEAST_RUNS` of each.
    """
    begun = time.monotonic()
    folder = new_folder(request.scratch)
    others = request.writable, own_standard_input()
    names = (BEFORE, AFTER)
    sides = [
        _Side(name, new_bench(*request.command_of(version), folder, _REHEARSAL_STEPS, *others))
        for name, version in zip(names, request.versions, strict=True)
    ]
    busy: list[float] = []

    def left_s() -> float:
        return request.budget_s - (time.monotonic() - begun)

    rehearsed = [_run(side, 0, left_s(), narration) for side in sides]
    alternates = _can_alternate(rehearsed)
    steps = request.steps or _enough_steps(rehearsed)
    for side in sides:
        side.bench = side.bench.with_steps(steps)
    round_s, hung_s = sum(one.wall_s for one in rehearsed), math.inf
    done = 0
    for number in range(1, request.runs + 1):
        if left_s() < round_s:
            break
        began_s = left_s()
        order = sides if number % 2 else sides[::-1]
        try:
            if alternates:
                busy.append(_alternate(order, number, left_s, hung_s, narration))
            else:
                attempts = [_run(side, number, left_s(), narration, hung_s) for side in order]
                busy += [attempt.others_share or 0.0 for attempt in attempts]
        except _BudgetSpentError:
            break
        round_s = max(round_s, began_s - left_s())
        hung_s = time_limit_s(round_s)
        done = number
    needed_s = (time.monotonic() - begun) + (request.runs - done) * round_s
    suffices = f"--budget {math.ceil(1.2 * needed_s)}s would do for {request.runs}"
    if done < LEAST_RUNS:
        raise TrialError(f"the budget was spent after {done} runs of each version; {suffices}")
    notes = []
    if done < request.runs:
        notes.append(f"the budget was spent after {done} runs of each version; {suffices}")
    if max(busy) >= DISTURBED:
        notes.append(
            f"other programs used up to {percent(max(busy))} of the CPUs during the runs: what they"
            " take differs from run to run, and makes the interval wide"
        )
    # A round that was cut short may have left a run of one version.
    before, after = (tuple(side.runs[:done]) for side in sides)
    return InterleavedRuns(before, after, folder, tuple(notes), alternates)


class _BudgetSpentError(Exception):
    """A run of a round was ended because the time was up."""


def _run(
    side: _Side,
    number: int,
    left_s: float,
    narration: Narration,
    hung_s: float = math.inf,
    alternation: InTurns | None = None,
) -> Attempt:
    name = f"{side.name}-{number}" if number else f"{side.name}-rehearsal"
    attempt = side.bench.attempt(
        Variant(side.name), name, left_s, hung_s=hung_s, alternation=alternation
    )
    narration.ended(side.name, number, attempt)
    if number and attempt.was_cut_short(left_s):
        raise _BudgetSpentError
    if attempt.problem or attempt.run is None:
        which = f"run {number}" if number else "the rehearsal"
        raise TrialError(f"{side.name}, {which}: {attempt.problem}: {attempt.reason}")
    if number:
        side.runs.append(attempt.run)
    return attempt


def _enough_steps(rehearsed: Sequence[Attempt]) -> int:
    shortest_s = min(one.steps.mean_ns for one in rehearsed if one.steps is not None) / 1e9
    return max(STEPS_PER_RUN, math.ceil(LEAST_S / max(1e-3, shortest_s)))


def _can_alternate(rehearsed: Sequence[Attempt]) -> bool:
    """Whether both versions can be in memory together, and each is one process on the CPU."""
    if any(one.facts["uses_gpu"] or one.facts["is_distributed"] for one in rehearsed):
        return False
    needed = sum(one.peak_resident_bytes for one in rehearsed)
    return needed < _MOST_MEMORY * int(psutil.virtual_memory().available)


def _alternate(
    order: Sequence[_Side],
    number: int,
    left_s: Callable[[], float],
    hung_s: float,
    narration: Narration,
) -> float:
    """Run a round whose runs take turns; returns the share of the CPUs that others used.

    The second runs while this process waits for the first: from when that one has warmed up, or
    after it, should it never ask for a turn.
    """
    first, second = order
    has_run = False

    def run_second() -> None:
        nonlocal has_run
        has_run = True
        _run(second, number, left_s(), narration, hung_s, InTurns(address, lambda: None))

    def meanwhile() -> None:
        if alternation.has_begun and not has_run:
            run_second()
            alternation.end()

    with alternating() as (alternation, address):
        attempt = _run(first, number, left_s(), narration, hung_s, InTurns(address, meanwhile))
        if not has_run:
            run_second()
    return attempt.others_share or 0.0
