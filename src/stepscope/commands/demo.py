"""`stepscope demo`: plant a bottleneck, find it, mend it, and hold the promise to account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.demo.runner import Comparison, TrainingOutcome


@click.command("demo")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("stepscope-demo"),
    show_default=True,
    help="Where the two runs are kept.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=24),
    default=60,
    show_default=True,
    help="Length of each of the two trainings.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
def command(output_dir: Path, steps: int, output_format: str) -> None:
    """Train a small transformer with a slow input pipeline, diagnose it, mend it, measure again.

    Takes well under two minutes on two CPU cores; uses a GPU where torch finds one.
    """
    from rich.console import Console

    from stepscope.demo import runner

    messages = Console(stderr=True, highlight=False)
    screen = messages if output_format == "json" else Console(highlight=False)
    screen.print(
        "[bold]1.[/] Training a small transformer. Each sample is read from storage that is "
        "slow on purpose (it sleeps)."
    )
    before = _train(messages, output_dir, "slow", steps, 0, None)
    finding = runner.input_finding(before)
    if output_format != "json":
        _show(screen, before)
    workers = runner.workers_needed(finding)
    screen.print(
        f"\n[bold]2.[/] The same training again, mended as the finding says: "
        f"DataLoader(num_workers={workers})."
    )
    after = _train(messages, output_dir, "fixed", steps, workers, before.wait_us)
    comparison = runner.compare(before, after, finding, workers)
    if output_format == "json":
        _print_json(before, after, comparison)
    else:
        _print_comparison(screen, before, after, comparison)


def _train(
    messages: Console, output_dir: Path, name: str, steps: int, workers: int, wait_us: int | None
) -> TrainingOutcome:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stepscope.demo import runner

    with Progress(
        TextColumn("   {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=messages,
        transient=True,
        disable=not messages.is_terminal,
    ) as bar:
        task = bar.add_task("training", total=steps)
        outcome = runner.train(
            output_dir,
            name,
            steps,
            workers,
            lambda done, _: bar.update(task, completed=done),
            wait_us,
        )
    messages.print(f"   {steps} steps done on {outcome.device}.", style="dim")
    return outcome


def _show(screen: Console, outcome: TrainingOutcome) -> None:
    from rich.padding import Padding
    from rich.rule import Rule

    from stepscope.report.diagnosis.terminal import print_diagnosis

    screen.print(Padding(Rule("stepscope report", style="dim"), (1, 0)))
    print_diagnosis(outcome.diagnosis, screen)
    screen.print(Padding(Rule(style="dim"), (1, 0, 0, 0)))


def _print_comparison(
    screen: Console, before: TrainingOutcome, after: TrainingOutcome, comparison: Comparison
) -> None:
    from rich.table import Table

    from stepscope.report import units

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 3))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    faster = comparison.before_ns / comparison.measured_ns
    table.add_row("step before", units.duration(comparison.before_ns), "")
    table.add_row(
        "predicted", units.duration(comparison.predicted_ns), f"by {comparison.finding.id}"
    )
    table.add_row(
        "measured",
        units.duration(comparison.measured_ns),
        f"the prediction is off by {comparison.error:+.1%}; {faster:.2f}× faster than before",
    )
    screen.print()
    screen.print(table)
    loss = (
        f"both trainings end with the same loss, {before.loss:.6f}"
        if comparison.same_loss
        else f"loss {before.loss:.6f} before, {after.loss:.6f} after"
    )
    screen.print(f"   {loss}", style="dim")
    screen.print(
        "\n[bold]3.[/] Look around:\n"
        f"   stepscope report {before.diagnosis.run.path}\n"
        f"   stepscope report {after.diagnosis.run.path}\n"
        "   Your own training: see docs/quickstart.md",
    )


def _print_json(before: TrainingOutcome, after: TrainingOutcome, comparison: Comparison) -> None:
    import orjson

    document = {
        "before": {"run": str(before.diagnosis.run.path), "step_ns": comparison.before_ns},
        "after": {"run": str(after.diagnosis.run.path), "step_ns": comparison.measured_ns},
        "first_finding": comparison.finding.id,
        "predicted_step_ns": comparison.predicted_ns,
        "measured_step_ns": comparison.measured_ns,
        "prediction_error": comparison.error,
        "workers": comparison.workers,
        "same_loss": comparison.same_loss,
    }
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
