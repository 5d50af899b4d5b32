"""`stepscope show QUESTION PATH…`: the answer to one question about traces, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stepscope.commands.options import format_option, last_with, one_trace, scope_of, scope_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.selection.scope import Scope
    from stepscope.report.answer.questions import Question


@click.command("show")
@click.argument("question", required=False)
@click.argument("paths", nargs=-1, type=click.Path(path_type=str))
@click.option("--list", "list_questions", is_flag=True, help="List the questions.")
@format_option
@scope_options("Only these steps; by default the whole file.")
@click.option("--table", metavar="NAME", help="Only this table; csv prints the first by default.")
@click.option(
    "--baseline",
    metavar="PATH",
    help="For abnormal-collectives: a trace of a run that was as it should be.",
)
@click.option("--rows", default="30", show_default=True, metavar="N|all", help="Rows to print.")
def command(
    question: str | None,
    paths: tuple[str, ...],
    list_questions: bool,
    output_format: str,
    steps: str | None,
    device: str | None,
    events: str,
    table: str | None,
    baseline: str | None,
    rows: str,
) -> None:
    """Answer one question about traces, as tables.

    PATH is a trace file, a run directory (the last window of each rank is taken), a directory of
    traces, or a quoted glob. `stepscope show --list` lists the questions.
    """
    from stepscope.report.answer.questions import QUESTIONS
    from stepscope.report.answer.questions import question as question_named

    if list_questions or question is None:
        width = max(len(one.name) for one in QUESTIONS)
        for one in QUESTIONS:
            click.echo(f"{one.name:<{width}}  {one.about}")
        if question is None and not list_questions:
            click.echo("\nstepscope show QUESTION PATH answers one of them.")
        return
    chosen = question_named(question)
    if not paths:
        raise click.UsageError(f"which trace? stepscope show {question} PATH")
    _answer(
        chosen,
        paths,
        scope_of(steps, device, events),
        output_format,
        table,
        baseline,
        None if rows == "all" else _one_number("--rows", rows),
    )


def _answer(
    question: Question,
    paths: tuple[str, ...],
    scope: Scope,
    output_format: str,
    table: str | None,
    baseline: str | None,
    rows: int | None,
) -> None:
    """Ask the question of every trace, one after the other, and print the answers."""
    from stepscope.report.answer.tables import (
        print_result,
        result_to_csv,
        result_to_dict,
        result_to_markdown,
    )
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()
    traces = _traces(paths, scope.steps)
    documents: list[dict[str, Any]] = []
    for number, (path, origin_ns, result) in enumerate(_results(question, traces, scope, baseline)):
        if output_format == "json":
            documents.append({"question": question.name, "path": path, **result_to_dict(result)})
            continue
        if output_format == "csv":
            if len(traces) > 1 and number == 0:
                click.echo(f"{len(traces)} traces, one CSV after the other", err=True)
            click.echo(result_to_csv(result, question, table), nl=False)
            continue
        if output_format == "md":
            if len(traces) > 1:
                click.echo(f"# {path}\n")
            text = result_to_markdown(result, question, origin_ns=origin_ns, rows=rows, table=table)
            click.echo(text)
            continue
        from rich.text import Text

        from stepscope.report.console import console

        screen = console()
        if number:
            screen.print()
        screen.print(Text(path, "dim"))
        print_result(result, question, screen, origin_ns=origin_ns, rows=rows, table=table)
    if output_format == "json":
        import orjson

        document: Any = documents[0] if len(documents) == 1 else documents
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _results(
    question: Question, traces: list[Any], scope: Scope, baseline: str | None
) -> Iterator[tuple[str, int, Any]]:
    """Path, first moment and answer: of each trace, or of all ranks' traces together."""
    from stepscope.trace.load import load

    known = None if baseline is None else one_trace(baseline)
    if not question.over_ranks:
        for path in traces:
            trace = load(path)
            yield str(path), _first_moment(trace), question.ask(trace, scope, known)
        return
    if known is not None:
        raise click.UsageError(f"'{question.name}' takes no baseline")
    loaded = [load(path) for path in traces]
    recorded = [_rank_of(trace) for trace in loaded]
    told = [rank for rank in recorded if rank is not None]
    # Files that do not tell their rank, or tell one twice, are numbered as they were given.
    ranks = told if len(set(told)) == len(loaded) else list(range(len(loaded)))
    result = question.ask_ranks(list(zip(ranks, loaded, strict=True)), scope)
    yield ", ".join(map(str, traces)), min(map(_first_moment, loaded), default=0), result


def _rank_of(trace: Any) -> int | None:
    about = trace.header.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, dict) else None
    return rank if isinstance(rank, int) else None


def _traces(paths: tuple[str, ...], steps: tuple[int, ...] | None) -> list[Any]:
    """The trace files that the paths stand for, in order; of a rank's windows one.

    It is the last that has the steps asked for.
    """
    from pathlib import Path

    from stepscope.errors import UnreadableInputError
    from stepscope.run.reader import open_run

    found: list[Any] = []
    for path in paths:
        if "://" in path or Path(path).is_file():
            found.append(path)
            continue
        run = open_run(path)
        mine = []
        for rank in run.ranks:
            traces = [window.trace_path for window in rank.windows if window.trace_path]
            # Loose traces of one rank are no windows of one run: each is asked.
            if rank.manifest is not None and traces:
                traces = [last_with(traces, steps)]
            mine += traces
        if not mine:
            raise UnreadableInputError(f"{path}: the run has no trace that could be read")
        found += mine
    return found


def _first_moment(trace: Any) -> int:
    import polars as pl

    first = trace.events.select(pl.col("start_ns").min()).collect().item()
    return int(first or 0)


def _one_number(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise click.UsageError(f"{option} {text}: give a number from 1 on, or all")
    return int(text)
