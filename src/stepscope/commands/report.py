"""`stepscope report PATH`: the verdict, where the step goes, and the findings by saving."""

from __future__ import annotations

import click


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
    of traces, or a quoted glob.
    """
    from stepscope.advice.diagnosis import diagnose
    from stepscope.run.reader import open_run
    from stepscope.trace.memory_reuse import keep_freed_memory

    keep_freed_memory()
    diagnosis = diagnose(open_run(path))
    if output_format == "json":
        import orjson

        from stepscope.report.json_report import diagnosis_to_dict

        text = orjson.dumps(diagnosis_to_dict(diagnosis), option=orjson.OPT_INDENT_2, default=str)
        click.echo(text.decode())
        return
    from rich.console import Console

    from stepscope.report.terminal import print_diagnosis

    print_diagnosis(diagnosis, Console(highlight=False, soft_wrap=False))
