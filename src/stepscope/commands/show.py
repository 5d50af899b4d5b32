"""`stepscope show QUESTION PATH…`: the answer to one question about traces, as tables."""

from __future__ import annotations

import click

from stepscope.commands.options import (
    INTEGERS,
    engine_of,
    engine_options,
    format_option,
    output_option,
    rows_option,
    scope_of,
    scope_options,
    table_options,
)
from stepscope.commands.sinks import sink_for
from stepscope.report.outputs import Layout, Output


@click.command("show")
@click.argument(
    "question",
    required=False,
    shell_complete=lambda _context, _parameter, begun: _names_beginning(begun),
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=str))
@click.option("--list", "list_questions", is_flag=True, help="List the questions.")
@format_option("answer", INTEGERS)
@output_option
@scope_options("Only these steps.  [default: the whole file]")
@table_options
@click.option(
    "--baseline",
    metavar="PATH",
    help="For abnormal-collectives: trace of a healthy run to compare with.",
)
@engine_options
@rows_option(30)
def command(
    question: str | None,
    paths: tuple[str, ...],
    list_questions: bool,
    output: Output,
    file: str | None,
    steps: str | None,
    device: str | None,
    events: str,
    table: str | None,
    columns: tuple[str, ...] | None,
    baseline: str | None,
    engine: str,
    scheduler: str | None,
    workers: int | None,
    rows: int | None,
) -> None:
    """Answer one question about traces, as tables.

    PATH is a trace file, a run directory (the last window of each rank is used), a directory of
    traces, a quoted glob, a URL, or - for standard input. `stepscope show --list` lists the
    questions.
    """
    from stepscope.analysis.questions import ask_all
    from stepscope.analysis.questions import question as question_named

    if list_questions or question is None:
        _list_questions()
        if question is None and not list_questions:
            click.echo("\n`stepscope show QUESTION PATH` answers one of them.")
        return
    chosen = question_named(question)
    if not paths:
        raise click.UsageError(f"no trace given: stepscope show {question} PATH")
    scope = scope_of(steps, device, events)
    layout = Layout(table, rows, columns)
    if baseline is not None and chosen.over_ranks:
        raise click.UsageError(f"'{chosen.name}' takes no baseline")
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory
    from stepscope.trace.paths import remark_on, resolve_path, resolve_traces

    keep_freed_memory()
    traces = resolve_traces(paths, scope.steps, with_unrelated=chosen.over_ranks)
    if not chosen.over_ranks:
        for path in paths:
            if said := remark_on(resolve_path(path)):
                click.echo(said, err=True)
    if chosen.over_ranks:
        from stepscope.fleet.ask import ask_of_job

        runner = engine_of(engine, scheduler, workers)
        with sink_for(file) as sink:
            output.write(ask_of_job(chosen, traces, scope, runner), sink, layout)
        return
    known = None if baseline is None else resolve_path(baseline).one_trace().open()
    with sink_for(file) as sink:
        output.write(ask_all(chosen, traces, scope, known), sink, layout)


def _names_beginning(begun: str) -> list[str]:
    """Names of questions, for the shell's completion."""
    from stepscope.analysis.questions import QUESTIONS

    return [one.name for one in QUESTIONS if one.name.startswith(begun)]


def _list_questions() -> None:
    from stepscope.analysis.questions import QUESTIONS

    width = max(len(one.name) for one in QUESTIONS)
    for one in QUESTIONS:
        click.echo(f"{one.name:<{width}}  {one.about}")
