"""What the demo prints while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.advice.diagnosis import Diagnosis


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
        from stepscope.report.diagnosis import document
        from stepscope.report.outputs import Layout
        from stepscope.report.render.terminal import print_block

        self._screen.print(Padding(Rule("stepscope report", style="dim"), (1, 0)))
        for block in document(diagnosis, Layout(is_full=True)):
            print_block(block, self._screen)
        self._screen.print(Padding(Rule(style="dim"), (1, 0, 0, 0)))
