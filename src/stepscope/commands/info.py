"""`stepscope info PATH`: what a trace file or a run directory is, and what it holds."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("info")
@click.argument("path", type=click.Path(path_type=str))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print it; json carries integer nanoseconds and bytes.",
)
def command(path: str, output_format: str) -> None:
    """Say what a file or a directory is, and what it holds.

    PATH is a trace file of any format that Stepscope reads, a URL, or - for standard input (its
    writer, devices, steps, lanes, events by category, problems), or a directory or quoted glob (its
    ranks and windows), or a file of metrics of ours or of nvidia-smi (how busy, full and hot the
    GPUs were).
    """
    import json

    from rich.console import Console

    console = Console(highlight=False)
    metrics = _metrics_file(Path(path))
    if metrics is not None:
        from stepscope.analysis.metrics import summarise_metrics
        from stepscope.report.metrics.reports import metrics_to_dict, print_metrics

        summary = summarise_metrics(metrics)
        if output_format == "json":
            click.echo(json.dumps(metrics_to_dict(summary), ensure_ascii=False, indent=2))
        else:
            print_metrics([("", summary)], console)
        return
    if Path(path).is_dir() or _is_run_url(path) or (not Path(path).exists() and _is_glob(path)):
        from stepscope.report.contents.reports import print_run, run_to_dict
        from stepscope.run.reader import open_run

        run = open_run(path)
        if output_format == "json":
            click.echo(json.dumps(run_to_dict(run), ensure_ascii=False, indent=2))
        else:
            print_run(run, console)
        return
    from stepscope.analysis.contents import describe
    from stepscope.commands.options import one_trace
    from stepscope.report.contents.reports import contents_to_dict, print_contents

    contents = describe(one_trace(path))
    if output_format == "json":
        click.echo(json.dumps(contents_to_dict(contents), ensure_ascii=False, indent=2))
    else:
        print_contents(contents, console)


def _is_run_url(path: str) -> bool:
    """Whether a URL names a directory: no trace file is without an ending."""
    from stepscope.run.remote import is_url

    return is_url(path) and "." not in path.rstrip("/").rpartition("/")[2]


def _is_glob(path: str) -> bool:
    from stepscope.run.discover import has_wildcard

    return "://" not in path and has_wildcard(path)


def _metrics_file(path: Path) -> Path | None:
    """The file of metrics that is meant: itself, or the one in a folder that holds no run."""
    from stepscope.run.layout import METRICS_FILE, RUN_FILE

    if path.suffix == ".csv" and path.is_file():
        return path
    file = path / METRICS_FILE
    is_alone = file.is_file() and not (path / RUN_FILE).exists()
    return file if is_alone and not (path / "manifest.json").exists() else None
