"""`stepscope report PATH`: the verdict, where the step goes, and the findings by saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stepscope.run.reader import Run


@click.command("report")
@click.argument("path", type=click.Path(path_type=str))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print it; json carries integer nanoseconds and the scope of every number.",
)
def command(path: str, output_format: str) -> None:
    """Say where the step's time went, why, and what to change.

    PATH is a run directory, a directory of runs (its newest is taken), a trace file, a directory
    of traces, or a quoted glob. Of a py-spy recording it tells the functions that took the time.
    """
    from stepscope.advice.diagnosis import diagnose
    from stepscope.errors import UnreadableInputError
    from stepscope.run.reader import open_run

    run = open_run(path)
    try:
        diagnosis = diagnose(run)
    except UnreadableInputError:
        # A sampler's recording has no steps, operators or kernels to judge, and says much.
        if not _report_samples(run, output_format):
            raise
        return
    if output_format == "json":
        import orjson

        from stepscope.report.json_report import diagnosis_to_dict

        text = orjson.dumps(diagnosis_to_dict(diagnosis), option=orjson.OPT_INDENT_2, default=str)
        click.echo(text.decode())
        return
    from rich.console import Console

    from stepscope.report.terminal import print_diagnosis

    print_diagnosis(diagnosis, Console(highlight=False, soft_wrap=False))


def _report_samples(run: Run, output_format: str) -> bool:
    """Report what samplers recorded, if that is what the run consists of; whether it is."""
    from stepscope.analysis.python_functions import is_sampled, python_functions
    from stepscope.report.samples import print_samples, verdict_of
    from stepscope.report.tables import result_to_dict
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
