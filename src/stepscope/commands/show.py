"""`stepscope show QUESTION PATH…`: the answer to one question about traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.commands.options import (
    INPUT,
    INTEGERS,
    check_standard_input_once,
    engine_of,
    engine_options,
    format_option,
    output_option,
    rows_option,
    scope_of,
    scope_options,
    table_options,
)
from stepscope.commands.sinks import StandardSink, sink_for
from stepscope.errors import UsageError
from stepscope.report.outputs import Layout, Output, Sink
from stepscope.terminal.plain_text import quoted
from stepscope.terminal.working import working

if TYPE_CHECKING:
    from stepscope.analysis.questions import Question
    from stepscope.analysis.selection.scope import Scope
    from stepscope.commands.sinks import CommandSink
    from stepscope.fleet.engines.outcome import Engine


@click.command("show")
@click.argument(
    "question",
    required=False,
    shell_complete=lambda _context, _parameter, begun: _names_beginning(begun),
)
@click.argument("paths", nargs=-1, type=INPUT, metavar="PATH…")
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
    traces, a quoted glob, a URL, or - for standard input; what-if-ranks also takes a table of
    operations (.parquet). `stepscope show --list` lists the questions; `stepscope memory` answers
    those about memory snapshots.
    """
    from stepscope.analysis.questions import question as question_named

    if list_questions or question is None:
        _list_questions()
        if question is None and not list_questions:
            click.echo("\n`stepscope show QUESTION PATH` answers one of them.")
        return
    check_standard_input_once(*paths, baseline)
    _check_order(question, paths)
    chosen = question_named(question)
    if not paths:
        raise click.UsageError(f"no trace given: stepscope show {question} PATH")
    scope = scope_of(steps, device, events)
    layout = Layout(table, rows, columns)
    if baseline is not None and chosen.over_ranks:
        raise click.UsageError(f"'{chosen.name}' takes no baseline")
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    with sink_for(file) as sink:
        runner = engine_of(engine, scheduler, workers) if chosen.over_ranks else None
        if chosen.takes_operations:
            from stepscope.fleet.ask import ask_of_operations, is_of_operations

            if is_of_operations(paths):
                with working(f"Answering {chosen.name}"):
                    answers = ask_of_operations(chosen, paths, scope)
                output.write(answers, sink, layout)
                return
        _show(chosen, paths, scope, baseline, runner, output, sink, layout)


def _show(
    question: Question,
    paths: tuple[str, ...],
    scope: Scope,
    baseline: str | None,
    engine: Engine | None,
    output: Output,
    sink: CommandSink,
    layout: Layout,
) -> None:
    """Show the answers about single traces or the ranks of a job, as before where possible."""
    from stepscope.analysis.questions import ask_all
    from stepscope.commands.remembered import identity_of_traces, write_remembered
    from stepscope.trace.paths import remark_on, resolve_path, resolve_traces

    has_steps = scope.steps is not None
    with working("Looking for traces with these steps" if has_steps else "Looking for traces"):
        traces = resolve_traces(
            paths,
            scope.steps,
            with_unrelated=question.over_ranks,
            samples=question.takes_samples and not has_steps,
        )
    for path in () if question.over_ranks else paths:
        if said := remark_on(resolve_path(path)):
            click.echo(said, err=True)
    known = None if baseline is None else resolve_path(baseline).one_trace().open()

    def write(sink: Sink) -> bool:
        if question.over_ranks:
            from stepscope.fleet.ask import ask_of_job

            with working(f"Answering {question.name}"):
                answers = ask_of_job(question, traces, scope, engine)
        else:
            answers = ask_all(question, traces, scope, known)
        output.write(answers, sink, layout)
        # A rank that a process failed to read may be read the next time.
        return not answers.left_out

    if engine is not None or known is not None:  # an engine may find other files there
        write(sink)
        return
    asked = [question.name, scope]
    write_remembered(sink, output, layout, lambda: [asked, identity_of_traces(traces)], write)


def _check_order(question: str, paths: tuple[str, ...]) -> None:
    """Tell whoever gave a path in the place of the question where each belongs."""
    from stepscope.analysis.questions import QUESTIONS

    names = [candidate.name for candidate in QUESTIONS]
    if question in names or not Path(question).exists():
        return
    asked = next((path for path in paths if path in names), None)
    if asked is not None:
        rest = " ".join(quoted(path) for path in (question, *paths) if path != asked)
        raise UsageError(f"the question comes first: stepscope show {asked} {rest}")
    raise UsageError(
        f"{question}: a path, and the question is missing: stepscope show QUESTION "
        f"{quoted(question)}; `stepscope show --list` lists the questions"
    )


def _names_beginning(begun: str) -> list[str]:
    """Names of questions, for the shell's completion."""
    from stepscope.analysis.questions import QUESTIONS

    return [one.name for one in QUESTIONS if one.name.startswith(begun)]


def _list_questions() -> None:
    from stepscope.analysis.questions import QUESTIONS
    from stepscope.report.manual import write_named

    write_named(((one.name, one.about) for one in QUESTIONS), StandardSink())
