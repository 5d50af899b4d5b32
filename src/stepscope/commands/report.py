"""`stepscope report PATH`: the verdict, where the step goes, and the findings by saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.commands.options import format_option, one_trace, scope_of, scope_options

if TYPE_CHECKING:
    from stepscope.advice.thresholds import Thresholds
    from stepscope.run.reader import Run


@click.command("report")
@click.argument("path", type=click.Path(path_type=str))
@format_option
@scope_options("Only these steps of the recorded windows, which follow one another.")
@click.option("--table", metavar="NAME", help="Which table csv prints; by default findings.")
@click.option(
    "--baseline",
    metavar="PATH",
    help="A trace of a run that was as it should be: collectives are held against its.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="From where on something is a finding, such as saving_low=0.01; may be given often.",
)
def command(
    path: str,
    output_format: str,
    steps: str | None,
    device: str | None,
    events: str,
    table: str | None,
    baseline: str | None,
    thresholds: tuple[str, ...],
) -> None:
    """Say where the step's time went, why, and what to change.

    PATH is a run directory, a directory of runs (its newest is taken), a trace file, a directory
    of traces, or a quoted glob. Of a py-spy recording it tells the functions that took the time.
    """
    if table is not None and output_format != "csv":
        raise click.UsageError("--table goes with --format csv")
    scope = scope_of(steps, device, events)
    limits = _limits(thresholds)
    from stepscope.advice.diagnosis import diagnose
    from stepscope.errors import UnreadableInputError
    from stepscope.run.reader import open_run
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    known = None if baseline is None else one_trace(baseline)
    run = open_run(path)
    try:
        diagnosis = diagnose(run, limits, scope, known)
    except UnreadableInputError:
        # A sampler's recording has no steps, operators or kernels to judge, and says much.
        if not _report_samples(run, output_format):
            raise
        return
    if output_format == "json":
        import orjson

        from stepscope.report.diagnosis.as_json import diagnosis_to_dict

        text = orjson.dumps(diagnosis_to_dict(diagnosis), option=orjson.OPT_INDENT_2, default=str)
        click.echo(text.decode())
    elif output_format == "csv":
        from stepscope.report.diagnosis.csv_tables import diagnosis_to_csv

        click.echo(diagnosis_to_csv(diagnosis, table or "findings"), nl=False)
    elif output_format == "md":
        from stepscope.report.diagnosis.markdown import diagnosis_to_markdown

        click.echo(diagnosis_to_markdown(diagnosis), nl=False)
    else:
        from stepscope.report.console import console
        from stepscope.report.diagnosis.terminal import print_diagnosis

        print_diagnosis(diagnosis, console())


def _limits(settings: tuple[str, ...]) -> Thresholds:
    """The thresholds, with those changed that were given as NAME=VALUE."""
    from stepscope.advice.thresholds import Thresholds

    changed: dict[str, float] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        try:
            changed[name.strip()] = float(value) if sign else float("nan")
        except ValueError:
            changed[name.strip()] = float("nan")
    return Thresholds().changed(changed)


def _report_samples(run: Run, output_format: str) -> bool:
    """Report what samplers recorded, if that is what the run consists of; whether it is."""
    from stepscope.analysis.python_functions import is_sampled, python_functions
    from stepscope.report.answer.samples import print_samples, verdict_of
    from stepscope.report.answer.tables import result_to_dict
    from stepscope.trace.load import load

    answers = []
    for window in run.windows:
        if window.trace_path is None:
            continue
        trace = load(window.trace_path)
        if not is_sampled(trace):
            return False
        answers.append((str(window.trace_path), python_functions(trace)))
    if output_format == "json":
        import orjson

        documents = [
            {"path": path, "verdict": verdict_of(answer), **result_to_dict(answer)}
            for path, answer in answers
        ]
        document = documents[0] if len(documents) == 1 else documents
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return bool(answers)
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    for path, answer in answers:
        print_samples(path, answer, console)
    return bool(answers)
