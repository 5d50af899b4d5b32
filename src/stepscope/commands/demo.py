"""`stepscope demo`: plant a bottleneck, find it, mend it, and hold the promise to account."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.commands.options import format_option
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Output


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
@format_option("demo", None)
def command(output_dir: Path, steps: int, output: Output) -> None:
    """Train a small transformer with a slow input pipeline, diagnose it, mend it, measure again.

    Takes well under two minutes on two CPU cores; uses a GPU where torch finds one.
    """
    from stepscope.demo.runner import run_demo
    from stepscope.report.demo.narration import Narration

    sink = StandardSink()
    messages = StandardSink(is_error=True).console(keeps_padding=True)
    # What a program reads stands alone on standard output.
    is_told = output.format.is_for_people
    screen = sink.console(keeps_padding=True) if is_told else messages
    narration = Narration(screen, messages, shows_report=is_told)
    output.write(run_demo(output_dir, steps, narration), sink)
