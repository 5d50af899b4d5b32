"""Command-line options of other tools, and what follows from them for a launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import click

from stepscope.adapters.external.memray import MemrayOptions
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.py_spy import PySpyOptions
from stepscope.adapters.external.tools import Tool, split_arguments
from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import resolve

Given = Mapping[str, tuple[Any, str]]
"""Canonical option to the value that was given for it, and where."""
_Tool = TypeVar("_Tool", bound=Tool)

_STEPS_THAT_TELL_A_LEAK = 5
_TOOLS: dict[str, type[Tool]] = {
    kind.name.replace("-", "_"): kind for kind in (PySpyOptions, NsysOptions, MemrayOptions)
}
"""Name of a tool's switch, with which those of its options begin, to the tool."""
_MEANT = {"nsys_output": "; the folder of the run is --output-dir, not -o"}


def external_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all tools."""
    for kind in reversed(_TOOLS.values()):
        function = click.option(f"--{kind.name}", is_flag=True, help=kind.about)(
            tool_options(kind)(function)
        )
    return function


def tool_options(kind: type[Tool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a tool, but for the one that chooses it."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(dataclasses.fields(kind)):  # type: ignore[arg-type]
            said, default = one.metadata, one.default
            text = f"{said['help']}  [default: {default}]" if default else said["help"]
            shape: dict[str, Any] = {"help": text, "metavar": said["metavar"] or None}
            if isinstance(default, bool):
                shape |= {"is_flag": True, "default": None}
            elif "choices" in said:
                shape["type"] = click.Choice(said["choices"])
            elif "limits" in said:
                shape["type"] = click.IntRange(*said["limits"])
            names = (said.get("short"), f"--{kind.name}-{one.name.replace('_', '-')}")
            function = click.option(*filter(None, names), **shape)(function)
        return function

    return add


def take_tool(values: dict[str, Any]) -> Tool | None:
    """The requested tool. Its options are removed from `values`."""
    own = {name: values.pop(name) for name in list(values) if name.startswith(tuple(_TOOLS))}
    wanted = [name for name in _TOOLS if own[name]]
    if len(wanted) > 1:
        names = " and ".join(f"--{_TOOLS[name].name}" for name in wanted)
        raise click.UsageError(
            f"{names}: use one at a time, since each affects what the other measures"
        )
    for name, value in own.items():
        tool = next(tool for tool in _TOOLS if name.startswith(tool))
        if value is not None and name != tool and tool not in wanted:
            raise click.UsageError(
                f"--{name.replace('_', '-')} needs --{_TOOLS[tool].name}{_MEANT.get(name, '')}"
            )
    return read_tool(_TOOLS[wanted[0]], own) if wanted else None


def read_tool(kind: type[_Tool], values: Mapping[str, Any]) -> _Tool:
    """A tool with the options that are given; the others keep their defaults."""
    given = {}
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]
        option = f"--{kind.name}-{one.name}"
        value = values.get(option.removeprefix("--").replace("-", "_"))
        if value:
            is_text = one.name == "arguments"
            given[one.name] = split_arguments(option, value, kind.ours) if is_text else value
    return kind(**given)


def choose_recorder(
    given: MutableMapping[str, tuple[Any, str]], tool: Tool | None, *, with_tracemalloc: bool
) -> None:
    """Add to `given` what records the windows, as the tool beside the training allows."""
    if with_tracemalloc:
        if isinstance(tool, MemrayOptions):
            raise click.UsageError("--tracemalloc and --memray: one would count the other's memory")
        if isinstance(tool, NsysOptions):
            raise click.UsageError("--tracemalloc and --nsys: a window has one recorder")
        if given.get("window_recorder", ("tracemalloc",))[0] != "tracemalloc":
            raise click.UsageError("--tracemalloc conflicts with another --window-recorder")
        given["window_recorder"] = ("tracemalloc", "--tracemalloc")
        # Fewer steps do not tell a leak from what one step leaves behind.
        if resolve(find_dialect("native"), given).settings["active"].origin.startswith("default"):
            given["active"] = (_STEPS_THAT_TELL_A_LEAK, "--tracemalloc")
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
