"""`stepscope report PATH`: the verdict, where the step goes, and the findings by saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.commands.options import format_option, one_trace, scope_of, scope_options

if TYPE_CHECKING:
    from stepscope.advice.thresholds import Thresholds


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
    of traces, or a quoted glob.
    """
    if table is not None and output_format != "csv":
        raise click.UsageError("--table goes with --format csv")
    scope = scope_of(steps, device, events)
    limits = _limits(thresholds)
    from stepscope.advice.diagnosis import diagnose
    from stepscope.run.reader import open_run

    known = None if baseline is None else one_trace(baseline)
    diagnosis = diagnose(open_run(path), limits, scope, known)
    if output_format == "json":
        import orjson

        from stepscope.report.json_report import diagnosis_to_dict

        text = orjson.dumps(diagnosis_to_dict(diagnosis), option=orjson.OPT_INDENT_2, default=str)
        click.echo(text.decode())
    elif output_format == "csv":
        from stepscope.report.diagnosis_tables import diagnosis_to_csv

        click.echo(diagnosis_to_csv(diagnosis, table or "findings"), nl=False)
    elif output_format == "md":
        from stepscope.report.diagnosis_markdown import diagnosis_to_markdown

        click.echo(diagnosis_to_markdown(diagnosis), nl=False)
    else:
        from stepscope.report.console import console
        from stepscope.report.terminal import print_diagnosis

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
