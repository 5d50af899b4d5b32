"""`stepscope run -- COMMAND`: record a training without changing its code."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.adapters.external.options import external_options, take_tool
from stepscope.adapters.options.dialect import OPTIONS
from stepscope.capture.options.option import flags_of_run
from stepscope.commands.options import grouped
from stepscope.commands.sinks import StandardSink, print_message
from stepscope.errors import StepscopeError
from stepscope.terminal.plain_text import quoted
from stepscope.terminal.working import is_watched, working

if TYPE_CHECKING:
    from stepscope.adapters.external.session import Outcome
    from stepscope.adapters.options.settings import Settings

LEFT_OUT = {
    "auto_phases",
    "enabled",
    "step_unit",
    "max_steps",
    "max_steps_per_loop",
    "memory_snapshot_path",
    "deepspeed_flops",
    "deepspeed_flops_step",
    "deepspeed_memory",
}
"""Options that this verb sets itself, or that only code inside the script can give."""


_METAVARS = {
    "output_dir": "DIR",
    "run_name": "NAME",
    "tensorboard_dir": "DIR",
    "tensorboard_worker": "NAME",
}
"""What the help calls values of whose kind it would say less."""


def _options(function: Any) -> Any:
    for option in reversed(OPTIONS.values()):
        if option.name in LEFT_OUT:
            continue
        name = option.name.replace("_", "-")
        text = option.help
        if option.default is not None:
            # No click default: environment variables take precedence over it.
            text += f"  [default: {option.text_of(option.default)}]"
        shape: dict[str, Any] = {"default": None, "help": text}
        if option.kind == "bool":
            names = f"--{name}/--no-{name}"
        else:
            names = f"--{name}"
            kind = "SECONDS" if option.is_in_seconds else option.kind.upper()
            shape["metavar"] = _METAVARS.get(option.name) or "|".join(option.choices) or kind
        function = click.option(names, option.name, **shape)(function)
    return function


GROUPS = {
    "The command": ("step_on", "shows_report", "result_file", "dry_run"),
    "Where the run goes": ("output_dir", "run_name"),
    "Which steps": (
        "skip_first", "skip_first_wait", "wait", "warmup", "active", "repeat", "cycle_length",
        "start_step", "end_step", "ranks", "pause_together_s",
    ),
    "Windows on demand": ("triggers", "slow_step"),
    "What a window records": (
        "window_recorder", "activities", "record_shapes", "profile_memory", "with_stack",
        "with_flops", "with_modules", "cuda_sync_events", "tracemalloc", "with_tracemalloc",
    ),
    "Files of a window": (
        "export_trace", "trace_format", "tensorboard", "key_averages", "memory_timeline",
    ),
    "Memory": ("memory", "oom_snapshot"),
    "Beside the windows": ("announce", "step_record", "monitor"),
    "Limits": ("max", "min_free_bytes", "keep_windows"),
    "How files are written": ("export_timeout_s", "flush_on_sigterm", "grace_s"),
    "py-spy": ("py_spy",),
    "nsys": ("nsys",),
    "memray": ("memray",),
}  # fmt: skip
"""Heading of the help to the options below it, by their names or the beginning of them."""


@click.command(
    "run",
    cls=grouped(GROUPS),
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command_line", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--step-on",
    type=click.Choice(["optimizer", "iteration", "batch", "forward"]),
    default="optimizer",
    show_default=True,
    help="What ends a step: the optimizer's step; a training's request for the next batch; for "
    "inference, any request for a batch, or the end of a model's forward pass.",
)
@click.option(
    "--report/--no-report", "shows_report", default=True, help="Print the report at the end."
)
@click.option(
    "--result-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the outcome of the command to this file, as JSON, and print nothing about it.",
)
@click.option("--dry-run", is_flag=True, help="Print the command that would run, and exit.")
@click.option(
    "--tracemalloc",
    "with_tracemalloc",
    is_flag=True,
    help="Short for --window-recorder tracemalloc.",
)
@external_options
@_options
def command(
    command_line: tuple[str, ...],
    step_on: str,
    shows_report: bool,
    result_file: Path | None,
    dry_run: bool,
    with_tracemalloc: bool,
    **values: Any,
) -> int:
    """Record a training script without changing its code.

    Put your usual command after `--`: `stepscope run -- python train.py --lr 0.1`, or `stepscope
    run -- torchrun --nproc-per-node 8 train.py`. The exit code is that of your command. Messages
    from Stepscope go to standard error.
    """
    from stepscope.adapters.external.options import as_flags, choose_recorder
    from stepscope.adapters.external.session import (
        Outcome,
        run_with,
        tool_command,
        write_beginning,
        write_result,
    )
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import misspelled_variables, resolve
    from stepscope.adapters.script.launch import launch, startable

    if not command_line:
        raise click.UsageError("no command: stepscope run -- python train.py")
    command_line = startable(command_line)
    tool = take_tool(values)
    given = {
        name: (value, f"--{name.replace('_', '-')}")
        for name, value in values.items()
        if value is not None
    }
    choose_recorder(given, tool, with_tracemalloc=with_tracemalloc)
    names = flags_of_run(name for name in OPTIONS if name not in LEFT_OUT)
    settings = dataclasses.replace(resolve(find_dialect("native"), given), own_names=names)
    for line in misspelled_variables():
        print_message(line)
    flags = as_flags(given, step_on)
    if dry_run:
        from stepscope.adapters.external.memray import MemrayOptions
        from stepscope.adapters.external.nsys import NsysOptions, report_file

        folder = Path(settings.value("output_dir")).absolute() / "external"
        click.echo(shlex.join(tool_command(tool, folder, command_line, flags, settings)))
        if isinstance(tool, MemrayOptions):
            print_message("memray counts from inside each process that imports torch")
        elif isinstance(tool, NsysOptions) and tool.output:
            print_message(f"afterwards, the report is put in {report_file(tool.output)} as well")
        return 0
    if result_file is not None:
        write_beginning(result_file)
    elif is_watched(sys.stderr):  # importing torch is silent for seconds
        print_message(f"recording {shlex.join(command_line)}")
    if tool is None:
        outcome = Outcome(launch(command_line, settings, step_on))
    else:
        outcome = run_with(tool, command_line, flags, settings, step_on)
    if result_file is not None:
        write_result(result_file, outcome.launched)
    else:
        _print_outcome(outcome, settings, step_on, shows_report=shows_report)
    return outcome.launched.exit_code


def _print_outcome(
    outcome: Outcome, settings: Settings, step_on: str, *, shows_report: bool
) -> None:
    """Report the outcome on standard error: standard output belongs to the script."""
    from stepscope.opening.reader import open_run
    from stepscope.report.launch import file_lines, outcome_lines, table_lines

    recorder = settings.settings["window_recorder"]
    for line in outcome_lines(
        outcome,
        counts_steps=step_on == "optimizer",
        memray_chose_recorder=recorder.origin == "--memray",
    ):
        print_message(line)
    for run in outcome.launched.runs:
        if shows_report:
            _report(run)
        else:
            print_message(f"recorded; next: stepscope report {quoted(run)}")
        if recorder.value == "tracemalloc":
            for line in table_lines(open_run(run)):
                print_message(line)
    for line in file_lines(outcome):
        print_message(line)


def _report(run: Path) -> None:
    try:
        with working(f"Diagnosing {run}"):  # the imports take a second, too
            from stepscope.advice.diagnosis import diagnose
            from stepscope.opening.reader import open_run
            from stepscope.report.outputs import output

            diagnosis = diagnose(open_run(run))
        click.echo(err=True)
        output("diagnosis", "table").write(diagnosis, StandardSink(is_error=True))
    except StepscopeError as error:
        print_message(f"no report: {error}")
    print_message(f"the run: {run}")
