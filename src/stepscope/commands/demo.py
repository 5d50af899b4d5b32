"""`stepscope demo`: plant a bottleneck, find it, fix it, and check the prediction."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.commands.options import format_option
from stepscope.commands.sinks import StandardSink, naming_folder_if_interrupted
from stepscope.report.outputs import Output


@click.command("demo")
@click.option(
    "--output-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("stepscope-demo"),
    show_default=True,
    help="Folder for the runs; it stays.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=24),
    metavar="N",
    default=45,
    show_default=True,
    help="Steps of the two trainings; half as many when they run again.",
)
@format_option("demo")
def command(output_dir: Path, steps: int, output: Output) -> None:
    """Train a small transformer with a slow input pipeline, diagnose it, fix it, measure again.

    Both trainings run twice, in turns. Takes about a minute on two CPU cores. Uses a GPU if
    torch finds one. The runs stay in the output folder.
    """
    from stepscope.demo.runner import Narration, run_demo

    sink = StandardSink()
    messages = StandardSink(is_error=True).console(keeps_padding=True)
    # A program that reads standard output gets the result alone.
    is_told = output.format.is_for_people
    screen = sink.console(keeps_padding=True) if is_told else messages
    narration = Narration(screen, messages, shows_report=is_told)
    with naming_folder_if_interrupted(output_dir):
        outcome = run_demo(output_dir, steps, narration)
    output.write(outcome, sink)
