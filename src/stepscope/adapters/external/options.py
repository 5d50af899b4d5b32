"""Command-line options of other tools, and what follows from them for a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import click

from stepscope.adapters.external import nsys, py_spy
from stepscope.adapters.external.memray import MemrayOptions
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.py_spy import FORMATS, PySpyOptions
from stepscope.adapters.external.tools import Tool, split_arguments
from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import resolve

Given = Mapping[str, tuple[Any, str]]
"""Canonical option to the value that was given for it, and where."""

_STEPS_THAT_TELL_A_LEAK = 5
_PY_SPY = (
    click.option("--py-spy", "py_spy", is_flag=True, help="Sample Python stacks with py-spy."),
    click.option(
        "--py-spy-format",
        type=click.Choice(list(FORMATS)),
        help="Format of py-spy's file.  [default: chrometrace]",
    ),
    click.option(
        "--py-spy-rate",
        type=click.IntRange(1, 1000),
        metavar="N",
        help="Samples per second.  [default: 100]",
    ),
    click.option(
        "--py-spy-arguments",
        metavar="TEXT",
        help='More arguments of `py-spy record`, as in --py-spy-arguments="--native --gil".',
    ),
)
_NSYS = (
    click.option("--nsys", is_flag=True, help="Record with nsys, in the scheduled windows."),
    click.option(
        "--nsys-trace",
        metavar="LIST",
        help="What nsys traces, such as cuda,nvtx,osrt,mpi.  [default: cuda,nvtx,osrt]",
    ),
    click.option(
        "--nsys-gpu-metrics",
        metavar="GPUS",
        help="Sample hardware counters of these GPUs: all, or a list such as 0,1.",
    ),
    click.option(
        "--nsys-memory", is_flag=True, default=None, help="Track the CUDA memory of each process."
    ),
    click.option(
        "--nsys-range",
        type=click.Choice(["windows", "all"]),
        help="Collect only in windows, or all the time.  [default: windows]",
    ),
    click.option(
        "--nsys-run-as", metavar="USER", help="Run nsys as root and the training as this user."
    ),
    click.option(
        "-o",
        "--nsys-output",
        metavar="NAME",
        help="Also put nsys's reports here, as NAME.nsys-rep.",
    ),
    click.option("--nsys-arguments", metavar="TEXT", help="More arguments of `nsys profile`."),
)
_MEMRAY = (
    click.option("--memray", is_flag=True, help="Track host memory with memray."),
    click.option(
        "--memray-native", is_flag=True, default=None, help="Record C and C++ frames as well."
    ),
    click.option(
        "--memray-follow-fork",
        is_flag=True,
        default=None,
        help="Track forked child processes as well.",
    ),
)
_OF_TOOL = {"py_spy": "--py-spy", "nsys": "--nsys", "memray": "--memray"}
_MEANT = {"nsys_output": "; the folder of the run is --output-dir, not -o"}


def external_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all tools."""
    for option in reversed((*_PY_SPY, *_NSYS, *_MEMRAY)):
        function = option(function)
    return function


def py_spy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of py-spy."""
    for option in reversed(_PY_SPY[1:]):
        function = option(function)
    return function


def take_tool(values: dict[str, Any]) -> Tool | None:
    """The requested tool. Its options are removed from `values`."""
    own = {name: values.pop(name) for name in list(values) if name.startswith(tuple(_OF_TOOL))}
    wanted = [name for name in _OF_TOOL if own[name]]
    if len(wanted) > 1:
        names = " and ".join(_OF_TOOL[name] for name in wanted)
        raise click.UsageError(
            f"{names}: use one at a time, since each affects what the other measures"
        )
    for name, value in own.items():
        tool = next(tool for tool in _OF_TOOL if name.startswith(tool))
        if value is not None and name != tool and tool not in wanted:
            raise click.UsageError(
                f"--{name.replace('_', '-')} needs {_OF_TOOL[tool]}{_MEANT.get(name, '')}"
            )
    if not wanted:
        return None
    if wanted == ["py_spy"]:
        return read_py_spy(own)
    if wanted == ["memray"]:
        return MemrayOptions(bool(own["memray_native"]), bool(own["memray_follow_fork"]))
    return NsysOptions(
        own["nsys_trace"] or NsysOptions.trace,
        own["nsys_gpu_metrics"] or "",
        bool(own["nsys_memory"]),
        own["nsys_range"] != "all",
        own["nsys_run_as"] or "",
        own["nsys_output"] or "",
        split_arguments("--nsys-arguments", own["nsys_arguments"] or "", nsys.OURS),
    )


def read_py_spy(values: dict[str, Any]) -> PySpyOptions:
    """The options of py-spy."""
    return PySpyOptions(
        values["py_spy_format"] or PySpyOptions.format,
        values["py_spy_rate"] or 100,
        split_arguments("--py-spy-arguments", values["py_spy_arguments"] or "", py_spy.OURS),
    )


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
