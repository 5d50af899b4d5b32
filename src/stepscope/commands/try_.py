"""`stepscope try -- COMMAND`: apply fixes to a script without changing it, and measure them."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.commands.options import (
    INTEGERS,
    format_option,
    output_option,
    process_options,
    seconds_of,
)
from stepscope.commands.sinks import naming_folder_if_interrupted, print_message, sink_for
from stepscope.report.outputs import Output
from stepscope.report.outputs import output as output_of


@click.command("try", context_settings={"allow_interspersed_args": False})
@click.argument("command_line", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--fix",
    "only",
    multiple=True,
    metavar="NAME",
    help="Try this fix, whatever the findings. Repeatable.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=16),
    metavar="N",
    default=40,
    show_default=True,
    help="Steps of each process.",
)
@process_options(
    budget="10m",
    scratch="stepscope-try",
    kept="the runs, logs and files of the trials",
    writers="script",
    copiers="trials",
)
@click.option(
    "--fail-on",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 1 if a fix that leaves the losses alone gains more, such as 'gain>5%'."
    " Repeatable.",
)
@click.option("--list", "lists", is_flag=True, help="List the fixes, and exit.")
@format_option("trial", INTEGERS)
@output_option
def command(
    command_line: tuple[str, ...],
    only: tuple[str, ...],
    steps: int,
    budget: str,
    scratch: Path,
    writable: tuple[Path, ...],
    conditions: tuple[str, ...],
    lists: bool,
    output: Output,
    file: str | None,
) -> int:
    """Try fixes on a training script without changing it, and say what each brings.

    Put your usual command after `--`: `stepscope try -- python train.py`. The script runs for a few
    dozen steps unchanged, then with each fix that its findings name, each time in a new process.
    Each works in copies of your folders, so yours do not change. In the command, `{scratch}` is a
    folder that belongs to one process, and stays.
    """
    from stepscope.trial.attempts import Narration
    from stepscope.trial.experiment import Request, try_fixes
    from stepscope.trial.fixes import FIXES
    from stepscope.trial.outcome import GainCheck

    if lists:
        with sink_for(file) as sink:
            output_of("fixes", output.format.name).write(list(FIXES.values()), sink)
        return 0
    if not command_line:
        raise click.UsageError("no command: stepscope try -- python train.py")
    budget_s = seconds_of(budget)
    checks = [GainCheck.parse(condition) for condition in conditions]
    request = Request(command_line, scratch, steps, budget_s, only, writable)
    with naming_folder_if_interrupted(scratch):
        record = try_fixes(request, Narration(print_message))
    with sink_for(file) as sink:
        output.write(record, sink)
    failed = [reason for check in checks if (reason := check.reason(record)) is not None]
    for reason in failed:
        print_message(f"failed: {reason}")
    return 1 if failed else 0
