"""Runs the demo's trainings, says what happens, and compares prediction with outcome."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.advice.rules.input import input_bound
from stepscope.errors import StepscopeError, UsageError
from stepscope.opening.reader import open_run
from stepscope.trial.measure import ProcessSteps, Ratio, ratio_of, steps_of

if TYPE_CHECKING:
    from rich.console import Console

LEAST_STEPS = 24
"""Steps of the shortest training: those before the window, the window, and enough to measure."""
_CLEAR = 0.1
"""How far the ends of the interval may be from the measured step, as a share of it."""
StepsDone = Callable[[int, int], None]
"""Called with the steps done and the total."""


class DemoError(StepscopeError):
    """The demo could not run; says why and what to do."""


@dataclass(frozen=True)
class TrainingOutcome:
    """The outcome of one training of the demo.

    Attributes:
        wait_us: Wait per sample that its storage cost, in microseconds.
        steps: Its steady steps; None if there are too few.
    """

    diagnosis: Diagnosis
    loss: float
    device: str
    wait_us: int
    steps: ProcessSteps | None = None

    @property
    def had_busy_cpus(self) -> bool:
        """Whether the training waited for CPUs that others used."""
        return any(finding.id == "busy-cpus" for finding in self.diagnosis.findings)


@dataclass(frozen=True)
class DemoOutcome:
    """The prediction of a finding, and what was measured after the fix.

    A step after the fix is measured as a share of the step before, over trainings in turns, so that
    a machine that becomes slower meanwhile favours neither.

    Attributes:
        before: The first training, of which the finding was made.
        after: The first one with the fix.
        share: Step after the fix over the step before, with its interval; None if unknown.
        had_busy_cpus: Whether a training waited for CPUs that others used.
    """

    before: TrainingOutcome
    after: TrainingOutcome
    finding: Finding
    share: Ratio | None
    had_busy_cpus: bool
    workers: int

    @property
    def before_ns(self) -> int:
        """Steady step that the finding was made of."""
        return self.before.diagnosis.ranks[0].step_ns or 0

    @property
    def predicted_ns(self) -> int:
        """The step that the finding promises."""
        return self.finding.predicted_step_ns or 0

    @property
    def predicted_share(self) -> float:
        """The step predicted over the step before."""
        return self.predicted_ns / self.before_ns

    @property
    def is_clear(self) -> bool:
        """Whether the machine was quiet enough to tell how good the prediction was."""
        if self.share is None or self.had_busy_cpus:
            return False
        reach = max(self.share.high - self.share.value, self.share.value - self.share.low)
        return reach <= _CLEAR * self.share.value

    @property
    def error(self) -> float | None:
        """Difference of prediction and measurement, as a share of it; None if it is not clear."""
        if self.share is None or not self.is_clear:
            return None
        return (self.predicted_share - self.share.value) / self.share.value


class Narration:
    """Explains what the demo does, while it runs."""

    def __init__(self, screen: Console, messages: Console, *, shows_report: bool) -> None:
        self._screen = screen
        self._messages = messages
        self._shows_report = shows_report

    def begin(self) -> None:
        """The first training starts."""
        self._screen.print(
            "[bold]1.[/] Training a small transformer. Each sample is read from storage that is "
            "slow on purpose (it sleeps)."
        )

    def fix(self, workers: int) -> None:
        """The second training starts, with the fix."""
        self._screen.print(
            f"\n[bold]2.[/] The same training again, with the fix that the finding suggests: "
            f"DataLoader(num_workers={workers})."
        )

    def turns(self) -> None:
        """Both trainings run once more, in the other order."""
        self._screen.print(
            "\n[bold]3.[/] Both once more, in the other order: a machine that becomes slower "
            "meanwhile favours neither."
        )

    @contextmanager
    def training(self, steps: int) -> Iterator[StepsDone]:
        """Show a progress bar while a training runs; yields a function to report steps to."""
        with Progress(
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=self._messages,
            transient=True,
            disable=not self._messages.is_terminal,
        ) as bar:
            task = bar.add_task("training", total=steps)
            yield lambda done, _: bar.update(task, completed=done)

    def trained(self, steps: int, device: str) -> None:
        """A training has ended."""
        self._messages.print(f"   {steps} steps done on {device}.", style="dim")

    def report(self, diagnosis: Diagnosis) -> None:
        """The first run has been diagnosed."""
        if not self._shows_report:
            return
        from stepscope.report.diagnosis import document
        from stepscope.report.outputs import Layout
        from stepscope.report.render.terminal import print_block

        self._screen.print(Padding(Rule("stepscope report", style="dim"), (1, 0)))
        for block in document(diagnosis, Layout(is_full=True)):
            print_block(block, self._screen)
        self._screen.print(Padding(Rule(style="dim"), (1, 0, 0, 0)))


def run_demo(output_dir: Path, steps: int, narration: Narration) -> DemoOutcome:
    """Train with a planted bottleneck, find it, train with the fix, once more each, and compare."""

    def trained(
        name: str, workers: int, most: int, wait_us: int | None = None, *, is_again: bool = False
    ) -> TrainingOutcome:
        with narration.training(most) as progress:
            outcome = train(
                output_dir, name, most, workers, progress, wait_us, has_window=not is_again
            )
        narration.trained(most, outcome.device)
        return outcome

    if importlib.util.find_spec("torch") is None:
        raise DemoError("the demo trains a model and needs torch: pip install 'stepscope[torch]'")
    narration.begin()
    before = trained("slow", 0, steps)
    finding = input_finding(before)
    narration.report(before.diagnosis)
    workers = workers_needed(finding)
    narration.fix(workers)
    after = trained("fixed", workers, steps, before.wait_us)
    narration.turns()
    fewer = max(LEAST_STEPS, steps // 2)
    after_again = trained("fixed-again", workers, fewer, before.wait_us, is_again=True)
    before_again = trained("slow-again", 0, fewer, before.wait_us, is_again=True)
    return compare((before, before_again), (after, after_again), finding, workers)


def train(
    output_dir: Path,
    run_name: str,
    steps: int,
    workers: int,
    progress: StepsDone,
    wait_us: int | None = None,
    *,
    has_window: bool = True,
) -> TrainingOutcome:
    """Run one training in a separate process and diagnose its run.

    Args:
        has_window: Whether a window is recorded; without one, the step record alone is diagnosed.
    """
    arguments = [
        sys.executable, "-m", "stepscope.demo.training",
        "--output-dir", str(output_dir), "--run-name", run_name,
        "--steps", str(steps), "--workers", str(workers),
    ]  # fmt: skip
    if wait_us is not None:
        arguments += ["--wait-us", str(wait_us)]
    if not has_window:
        arguments.append("--without-window")
    message: dict[str, object] = {"wait_us": wait_us}
    log_path = output_dir / f"{run_name}.log"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        log = log_path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--output-dir {output_dir}: cannot be written: {error.strerror or error}"
        ) from error
    with (
        log,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            for line in process.stdout or ():
                message.update(_read(line))
                if "step" in message:
                    progress(int(str(message["step"])), steps)
        except BaseException:
            # Ctrl-C reaches the training as well, but imports of torch can swallow it.
            process.kill()
            raise
    if process.returncode != 0 or "run" not in message:
        last = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise DemoError(
            f"the demo's training ended with exit code {process.returncode}: "
            f"{last[0] if last else 'no message'} (full log: {log_path})"
        )
    run = open_run(str(message["run"]))
    return TrainingOutcome(
        diagnosis=diagnose(run),
        loss=float(str(message["loss"])),
        device=str(message["device"]),
        wait_us=int(str(message["wait_us"])),
        steps=steps_of(run.ranks[0].steps, warm_up=2),
    )


def input_finding(outcome: TrainingOutcome) -> Finding:
    """The finding that the demo plants; others may stand above it where the CPUs are busy."""
    findings = outcome.diagnosis.findings
    for finding in findings:
        if finding.id == "input-bound":
            return finding
    others = ", ".join(f"'{finding.id}'" for finding in findings) or "none"
    raise DemoError(
        f"the demo expected the finding 'input-bound' and got {others}: "
        "the machine may be too busy; try again"
    )


def compare(
    befores: Sequence[TrainingOutcome],
    afters: Sequence[TrainingOutcome],
    finding: Finding,
    workers: int,
) -> DemoOutcome:
    """Compare the prediction, made of the first training, with what all of them took."""
    slow = [one.steps for one in befores if one.steps is not None]
    fixed = [one.steps for one in afters if one.steps is not None]
    return DemoOutcome(
        befores[0],
        afters[0],
        finding,
        share=ratio_of(fixed, slow) if slow and fixed else None,
        had_busy_cpus=any(one.had_busy_cpus for one in (*befores, *afters)),
        workers=workers,
    )


def workers_needed(finding: Finding) -> int:
    """Number of loader workers that the finding recommends."""
    for item in finding.evidence:
        if item.label == input_bound.WORKERS_LABEL:
            return int(item.value)
    return 2


def _read(line: str) -> dict[str, object]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
