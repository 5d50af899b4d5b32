"""What the demo prints while it runs: its steps, its progress, the report of the first run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule

from stepscope.advice.diagnosis import Diagnosis
from stepscope.report.diagnosis.terminal import print_diagnosis


class Narration:
    """Explains what the demo does, while it runs.

    Args:
        screen: For the explanation.
        messages: For the progress.
        shows_report: Whether to print the report of the first run.
    """

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

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[int, int], None]]:
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
        self._screen.print(Padding(Rule("stepscope report", style="dim"), (1, 0)))
        print_diagnosis(diagnosis, self._screen)
        self._screen.print(Padding(Rule(style="dim"), (1, 0, 0, 0)))
