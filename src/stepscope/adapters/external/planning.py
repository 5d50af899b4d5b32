"""What `stepscope run` is about to do: recorder, flags, command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import click

from stepscope.adapters.external.memray import MemrayOptions
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.py_spy import PySpyOptions
from stepscope.adapters.external.session import Tool, tool_command
from stepscope.adapters.options.settings import Settings

Given = Mapping[str, tuple[Any, str]]
"""Canonical option to the value that was given for it, and where."""


def choose_recorder(
    given: MutableMapping[str, tuple[Any, str]], tool: Tool | None, *, with_tracemalloc: bool
) -> None:
    """Choose what records the windows, as the tool beside the training allows; adds it to `given`.

    Raises:
        click.UsageError: Options contradict each other.
    """
    if with_tracemalloc:
        if isinstance(tool, MemrayOptions):
            raise click.UsageError("--tracemalloc and --memray: one would count the other's memory")
        if isinstance(tool, NsysOptions):
            raise click.UsageError("--tracemalloc and --nsys: a window has one recorder")
        if given.get("window_recorder", ("tracemalloc",))[0] != "tracemalloc":
            raise click.UsageError("--tracemalloc conflicts with another --window-recorder")
        given["window_recorder"] = ("tracemalloc", "--tracemalloc")
    if isinstance(tool, NsysOptions):
        recorder, _ = given.setdefault("window_recorder", ("cuda-range", "--nsys"))
        if tool.only_windows and recorder != "cuda-range":
            raise click.UsageError(
                f"--nsys collects in marked windows only, and --window-recorder {recorder} marks "
                "none: drop it, or use --nsys-range all"
            )
    if isinstance(tool, MemrayOptions):
        # torch's profiler keeps its events in the memory that memray counts.
        given.setdefault("window_recorder", ("none", "--memray"))


def as_flags(given: Given, step_on: str) -> list[str]:
    """The recording options as command-line flags."""
    flags = ["--step-on", step_on]
    for name, (value, _) in given.items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{word}" if value else f"--no-{word}")
        else:
            flags += [f"--{word}", str(value)]
    return flags


def planned_command(
    command: Sequence[str], tool: Tool | None, flags: Sequence[str], settings: Settings
) -> list[str]:
    """The command line that would run: the command, wrapped in the tool if there is one."""
    if tool is None:
        return list(command)
    folder = Path(settings.value("output_dir")).absolute() / "external"
    return tool_command(tool, folder, command, flags, settings)


def what_it_lacks(tool: Tool) -> Callable[[], str]:
    """A function that says what a tool that did not start may lack."""
    if isinstance(tool, PySpyOptions):
        return _allowance
    return lambda: "see its own output above; `stepscope doctor` checks what it needs"


def _allowance() -> str:
    from stepscope.doctor.machine import this_machine
    from stepscope.doctor.permissions import attaching_allowance

    return attaching_allowance(this_machine())
