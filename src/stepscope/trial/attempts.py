"""One attempt: one process, or one job of several ranks, of the script with some fixes."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import Settings, resolve
from stepscope.adapters.script.launch import Companion, launch, startable
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.opening.reader import open_run
from stepscope.opening.trials import (
    CRASHED,
    HUNG,
    NOT_APPLIED,
    NOT_MEASURED,
    OUT_OF_MEMORY,
    WRITES_ELSEWHERE,
)
from stepscope.run.figures import duration, percent
from stepscope.terminal.working import working
from stepscope.trial.alternation import InTurns
from stepscope.trial.fixes import FIXES, Plan
from stepscope.trial.inside.guard import SUFFIX
from stepscope.trial.measure import LEAST_STEPS, ProcessSteps, slowest_rank, steps_of
from stepscope.trial.processes import DISTURBED, Ended, Limits, Start, run_apart
from stepscope.trial.workspace import Workspace

SCRATCH_PLACEHOLDER = "{scratch}"
"""In the command, stands for a folder of each process's own."""
_COMPANION = "stepscope.trial.inside.companion"
_GUARD = "stepscope.trial.inside.guard"
_TAIL_BYTES = 8192
_LONGEST_REASON = 200
_DENIED = ("Permission denied", "EACCES")
_KILLED = {-9, 137}
_WRITABLE = ("mirror", "allowed")
_LOGGERS = {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "COMET_MODE": "disabled"}
"""Experiment trackers write to a folder, or not at all, rather than to a server."""


class TrialError(StepscopeError):
    """The script cannot be tried; says why and what to do."""


@dataclass(frozen=True)
class Variant:
    """The script with some fixes, or with none."""

    name: str
    plans: Mapping[str, Plan] = field(default_factory=dict)

    @property
    def start_up_s(self) -> float:
        """How much longer its start may take."""
        return sum(FIXES[name].start_up_s for name in self.plans)


@dataclass(frozen=True)
class Attempt:
    """What came of one attempt.

    Attributes:
        problem: Why it gave no steps, such as "crashed"; empty if it did.
        steps: The steady steps of its slowest rank; None if there is a problem.
        run: Its run directory; None if it left none.
        overrode: Where they overrode what the script says.
        peak_resident_bytes: Most memory on the host, over its ranks.
        peak_device_bytes: Most memory on a GPU, over its ranks.
        peak_reserved_bytes: Most memory that a GPU's allocator reserved, over its ranks.
        allocator_retries: Most often that it gave back its cache, over its ranks.
        others_share: Share of the CPUs that other programs used meanwhile; None if unknown.
    """

    problem: str
    reason: str
    steps: ProcessSteps | None
    run: Path | None
    losses: tuple[float, ...]
    applied: tuple[str, ...]
    overrode: tuple[str, ...]
    facts: Mapping[str, Any]
    peak_resident_bytes: int
    peak_device_bytes: int
    peak_reserved_bytes: int
    allocator_retries: int
    wall_s: float
    others_share: float | None = None

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs used too much of the CPUs for its steps to count."""
        return (self.others_share or 0.0) >= DISTURBED

    def was_cut_short(self, left_s: float) -> bool:
        """Whether the time that was left to it ended it, so that nobody saw whether it hangs."""
        return self.problem == HUNG and self.wall_s >= left_s


@dataclass(frozen=True)
class Narration:
    """Says how the trials go.

    Attributes:
        print_message: Prints a line.
        first: What the attempt before the rounds is.
    """

    print_message: Callable[[str], None]
    first: str = "diagnosis"

    def ended(self, name: str, number: int, attempt: Attempt) -> None:
        """An attempt has ended; number 0 came before the rounds."""
        if attempt.steps is None:
            what = f"{attempt.problem}: {attempt.reason}"
        else:
            what = f"{duration(attempt.steps.mean_ns)} a step"
            if attempt.is_disturbed and attempt.others_share is not None:
                what += f", beside other programs on {percent(attempt.others_share)} of the CPUs"
        where = self.first if not number else f"round {number}"
        self.print_message(f"{where}, {name}: {what} ({duration(attempt.wall_s * 1e9)})")


@dataclass(frozen=True)
class Bench:
    """Where and how attempts run.

    Attributes:
        warm_up: The first of them, which do not count.
        workspace: What of the user's files each attempt gets a copy of.
        standard_input: What the script reads from its standard input.
    """

    command: tuple[str, ...]
    folder: Path
    steps: int
    warm_up: int
    workspace: Workspace
    standard_input: bytes = b""

    def with_steps(self, steps: int) -> Bench:
        """The same with another number of steps."""
        return replace(self, steps=steps, warm_up=warm_up_of(steps))

    def attempt(
        self,
        variant: Variant,
        name: str,
        most_s: float,
        window_at: int | None = None,
        *,
        hung_s: float = math.inf,
        with_memory: bool = False,
        alternation: InTurns | None = None,
    ) -> Attempt:
        """Run the script once.

        Args:
            name: Name of the run directory, which no other attempt has.
            most_s: After so many seconds it is ended, whatever it does.
            hung_s: After so many seconds of CPUs to itself, it is taken to be hung (`Limits`).
            window_at: Step at which a window is recorded; None for none.
            alternation: How it takes turns with another run; None: it runs alone.
        """
        notes_folder = self.folder / "notes" / name
        files = self.folder / "files" / name
        log = self.folder / "logs" / f"{name}.log"
        for path in (notes_folder, files):
            path.mkdir(parents=True)
        mirror = self._mirror(name)
        try:
            with working("Copying the script's folders"):
                place = self.workspace.create(mirror)
        except OSError as error:
            shutil.rmtree(mirror, ignore_errors=True)
            raise UsageError(f"{mirror}: cannot copy to it: {error.strerror or error}") from error
        request = {
            "fixes": {fix: plan.value for fix, plan in variant.plans.items()},
            "steps": self.steps,
            "warm_up": self.warm_up,
            "turns": alternation.address if alternation is not None else "",
            "notes": str(notes_folder),
            "guarded": place.guarded,
        }
        more = _environment(variant, files)
        ended: list[Ended] = []

        def run(command: Sequence[str], environment: dict[str, str]) -> int:
            limits = Limits(
                most_s,
                lambda: any(note["has_ended"] for note in _notes(notes_folder)),
                hung_s=hung_s,
            )
            if alternation is not None:
                limits = replace(limits, meanwhile=alternation.meanwhile)
            start = Start(
                command,
                {**environment, **more},
                log,
                place.directory,
                self.standard_input,
                [self.folder, *(Path(one) for kind in _WRITABLE for one in place.guarded[kind])],
            )
            with working(f"Running the script: {name}"):
                ended.append(run_apart(start, uuid.uuid4().hex, limits))
            return ended[0].exit_code or 0

        arguments = [word.replace(SCRATCH_PLACEHOLDER, str(files)) for word in place.command]
        command = startable(arguments, place.directory)
        settings = _settings(self.folder, name, window_at, with_memory)
        try:
            launched = launch(
                command, settings, companion=Companion(_COMPANION, request, _GUARD), runner=run
            )
        finally:
            shutil.rmtree(mirror, ignore_errors=True)
        notes = _notes(notes_folder)
        refused = _refused(notes_folder)
        shutil.rmtree(notes_folder, ignore_errors=True)
        for empty in (files, files.parent, notes_folder.parent, mirror.parent):
            with suppress(OSError):
                empty.rmdir()
        run_path = next(iter(launched.runs), None)
        problem, reason = self._problem(variant, ended[0], notes, log, launched.problems)
        if refused:
            problem, reason = WRITES_ELSEWHERE, _elsewhere(refused)
        steps = None if problem or run_path is None else self._steps(run_path)
        if steps is None and not problem:
            problem, reason = NOT_MEASURED, self._too_few(notes)
        first = notes[0] if notes else {}

        def most(fact: str) -> int:
            return max((note["facts"][fact] for note in notes), default=0)

        return Attempt(
            problem=problem,
            reason=reason,
            steps=steps,
            run=run_path,
            losses=tuple(first.get("losses", ())),
            applied=tuple(first.get("applied", ())),
            overrode=tuple(first.get("overrode", ())),
            facts=first.get("facts", {}),
            peak_resident_bytes=most("peak_resident_bytes"),
            peak_device_bytes=most("peak_device_bytes"),
            peak_reserved_bytes=most("peak_reserved_bytes"),
            allocator_retries=most("allocator_retries"),
            wall_s=ended[0].wall_s,
            others_share=ended[0].others_share,
        )

    def _mirror(self, name: str) -> Path:
        """Where an attempt's copies of the user's folders lie, each at its own path below."""
        return self.folder / "work" / name

    def _steps(self, run: Path) -> ProcessSteps | None:
        """The steady steps of the slowest rank; None if a rank has too few."""
        try:
            ranks = [steps_of(rank.steps, self.warm_up) for rank in open_run(run).ranks]
        except UnreadableInputError:
            return None
        known = [rank for rank in ranks if rank is not None]
        return slowest_rank(known) if known and len(known) == len(ranks) else None

    def _too_few(self, notes: Sequence[Mapping[str, Any]]) -> str:
        done = max((note["steps"] for note in notes), default=0)
        if not done:
            return "no training step was seen: no optimizer of torch stepped"
        return (
            f"{done} steps of {self.steps} were seen, of which the first {self.warm_up} are "
            f"warm-up, and {LEAST_STEPS} steady ones are needed"
        )

    def _problem(
        self,
        variant: Variant,
        ended: Ended,
        notes: Sequence[Mapping[str, Any]],
        log: Path,
        problems: Sequence[str],
    ) -> tuple[str, str]:
        """What kept an attempt from being measured, and why; empty if nothing did."""
        failed = [problem for note in notes for problem in note["problems"]]
        if failed:
            return NOT_APPLIED, failed[0]
        if notes and variant.plans and not any(note["applied"] for note in notes):
            refused = [why for note in notes for why in note["refused"]]
            where = "; ".join(FIXES[name].applies_to for name in variant.plans)
            return NOT_APPLIED, refused[0] if refused else f"it had no effect; applies to {where}"
        if any(note["has_ended"] for note in notes):
            return "", ""
        if ended.exit_code is None:
            return HUNG, f"still running after {ended.wall_s:.0f} s; ended"
        if ended.exit_code != 0:
            text = _tail(log)
            errors = {note["error"] for note in notes}
            is_oom = errors & {"OutOfMemoryError", "MemoryError"} or "out of memory" in text.lower()
            problem = OUT_OF_MEMORY if is_oom or ended.exit_code in _KILLED else CRASHED
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            # The copy is gone by now; the reader knows the file that it was made of.
            last = lines[-1].replace(str(self._mirror(log.stem)), "") if lines else "no message"
            last = last[:_LONGEST_REASON]
            if not self.standard_input and "EOFError" in last:
                last += "; it has no standard input here: give it a file with < FILE"
            if ended.is_confined and any(word in text for word in _DENIED):
                last += "; it may write only to its copies of your folders: see --allow-writes"
            return problem, f"exit code {ended.exit_code}: {last} (log: {log})"
        if problems and not notes:
            return NOT_MEASURED, problems[0]
        return "", ""


def _settings(folder: Path, name: str, window_at: int | None, with_memory: bool) -> Settings:
    """The options of the recording. Those of the user's environment are for other recordings."""
    given: dict[str, tuple[object, str]] = {
        "output_dir": (str(folder), "--scratch"),
        "run_name": (name, "stepscope try"),
        "announce": (False, "stepscope try"),
        "triggers": (False, "stepscope try"),
    }
    if with_memory:
        given["memory_history"] = (True, "stepscope try")
    if window_at is None:
        given["window_recorder"] = ("none", "stepscope try")
    else:
        given |= {
            "skip_first": (window_at, "stepscope try"),
            "wait": (0, "stepscope try"),
        }
    return resolve(find_dialect("native"), given, environment={})


def _environment(variant: Variant, files: Path) -> dict[str, str]:
    more = {name: os.environ.get(name, value) for name, value in _LOGGERS.items()}
    more |= {"WANDB_DIR": str(files), "MLFLOW_TRACKING_URI": (files / "mlruns").as_uri()}
    more["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
    for plan in variant.plans.values():
        more |= plan.environment
    return more


def _notes(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError):
            found.append(json.loads(path.read_bytes()))
    return sorted(found, key=lambda note: int(note["rank"]))


def _refused(folder: Path) -> list[str]:
    """The files outside its folders that the script was kept from writing."""
    found: dict[str, None] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with suppress(OSError):
            found |= dict.fromkeys(path.read_text("utf-8", "replace").splitlines())
    return list(found)


def _elsewhere(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    folder = Path(paths[0]).parent
    return (
        f"it writes to {paths[0]}{more}, outside the folders that trials copy. Nothing was written "
        f"there. Give the script a folder with {SCRATCH_PLACEHOLDER} in its options, or let every "
        f"trial write there with --allow-writes {folder}"
    )


def _tail(log: Path) -> str:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
    return ""


def warm_up_of(steps: int) -> int:
    """Number of first steps that do not count: a fifth, but so that enough are left."""
    return min(max(3, steps // 5), steps - LEAST_STEPS - 2)


def time_limit_s(longest_s: float, variant: Variant | None = None) -> float:
    """After how long, on an idle machine, an attempt counts as hung."""
    return 3 * longest_s + 5 + (0.0 if variant is None else variant.start_up_s)


def new_folder(scratch: Path) -> Path:
    """Create a folder for the attempts of one experiment."""
    from stepscope.run.layout import run_name

    name = run_name(time.time_ns(), os.getpid())
    try:
        scratch.absolute().mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch.absolute()))
    except OSError as error:
        raise UsageError(
            f"--scratch {scratch}: cannot be made: {error.strerror or error}"
        ) from error


def new_bench(
    command: tuple[str, ...],
    directory: Path,
    folder: Path,
    steps: int,
    writable: tuple[Path, ...],
    standard_input: bytes,
) -> Bench:
    """Where the attempts of an experiment run, which do not copy what it writes itself."""
    scratch, inside = folder.parent, directory.resolve()
    own = folder if scratch in (inside, *inside.parents) else scratch
    workspace = Workspace(command, directory, (own,), writable)
    return Bench(command, folder, steps, warm_up_of(steps), workspace, standard_input)
