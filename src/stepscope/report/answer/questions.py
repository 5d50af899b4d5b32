"""Every question that `stepscope show` answers, in one table; importing it imports no analysis.

A question is a function `(trace, scope) -> result`. The result is a frozen dataclass: its
`scope` says what it covers, its `notes` what a reader must know, its polars frames are tables,
and its other fields are numbers. Names carry units (`_ns`, `_bytes`, `_share`); reporters read
them from there. A field with the metadata {"show": False} is for programs only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import Scope
    from stepscope.trace.model import Trace


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        name: What it is asked by; also its page under docs/questions.
        about: What it answers, in one line.
        home: Module and function, "stepscope.analysis.timeline:timeline".
        titles: Field of the result -> title of its table, in the order in which they are shown.
            Tables that are not named here follow under their field's name.
        over_ranks: The function takes [(rank, trace), …] instead of one trace.
        takes_baseline: The function takes `baseline`, the trace of a run that was as it should be.
    """

    name: str
    about: str
    home: str
    titles: Mapping[str, str] = field(default_factory=dict)
    over_ranks: bool = False
    takes_baseline: bool = False

    def ask(self, trace: Trace, scope: Scope | None = None, baseline: Trace | None = None) -> Any:
        """Answer it.

        Raises:
            UsageError: The scope names steps or devices that the trace does not have, or the
                question has no use for a baseline.
        """
        if baseline is None:
            return self._function()(trace, scope)
        if not self.takes_baseline:
            able = ", ".join(one.name for one in QUESTIONS if one.takes_baseline)
            raise UsageError(
                f"'{self.name}' takes no baseline: {able} does; `stepscope compare` holds two runs"
                " against each other"
            )
        return self._function()(trace, scope, baseline=baseline)

    def ask_ranks(self, ranks: Sequence[tuple[int, Trace]], scope: Scope | None = None) -> Any:
        """Answer it from the traces of several ranks.

        Raises:
            UsageError: There are too few ranks, or the scope does not fit them.
        """
        return self._function()(ranks, scope)

    def _function(self) -> Callable[..., Any]:
        module, _, function = self.home.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return found


QUESTIONS: tuple[Question, ...] = (
    Question(
        "timeline",
        "what each GPU did: compute, exposed communication, exposed copies, idle",
        "stepscope.analysis.timeline:timeline",
        {"devices": "Devices", "steps": "Steps"},
    ),
    Question(
        "steps",
        "each step: its time on the host and on the device, and where it went",
        "stepscope.analysis.steps:step_table",
        {"steps": "Steps", "summary": "Over the steps"},
    ),
    Question(
        "idle",
        "why the GPU was idle: every gap by its cause",
        "stepscope.analysis.idle:idle_causes",
        {
            "causes": "Causes",
            "longest": "The longest gaps",
            "details": "Causes by what explains them",
            "steps": "Steps",
        },
    ),
    Question(
        "kernels",
        "what ran on the GPU: by category and by name, short kernels, sequences, tensor cores",
        "stepscope.analysis.kernels:kernels",
        {
            "groups": "By category",
            "kernels": "By name",
            "short": "Short kernels",
            "sequences": "Sequences that one operator repeats",
            "tensor_cores": "Matrix kernels and tensor cores",
            "counters": "Hardware counters",
        },
    ),
    Question(
        "launches",
        "how the host feeds the GPU: launch delays, queues, launch-bound stretches, blocking calls",
        "stepscope.analysis.launches:launches",
        {
            "blocking": "Blocking calls",
            "stretches": "Launch-bound stretches",
            "delays": "Launching calls",
            "queues": "Queues",
            "queue_steps": "Queues by step",
            "copies": "Copies",
            "pageable": "Copies to the GPU that hold the host up",
        },
    ),
    Question(
        "input",
        "the input pipeline: how long each step waited for its batch, and what that cost",
        "stepscope.analysis.input_pipeline:input_pipeline",
        {
            "steps": "Steps",
            "sources": "What was waited for",
            "inside": "What ran inside the waits",
            "workers": "Threads of the loader",
        },
    ),
    Question(
        "memory",
        "allocated and reserved memory over time, the peak, and which operators hold it",
        "stepscope.analysis.memory_timeline:memory_timeline",
        {
            "devices": "Devices",
            "at_peak": "Held at the peak",
            "steps": "Steps",
            "timeline": "Over time",
        },
    ),
    Question(
        "operators",
        "what each operator costs: host and device time, its backward, recomputation",
        "stepscope.analysis.operators:analyse_operators",
        {"table": "Operators"},
    ),
    Question(
        "operators-by-shape",
        "the same for every shape and type that an operator was called with",
        "stepscope.analysis.operators:analyse_operators_by_shape",
        {"table": "Operators by shape"},
    ),
    Question(
        "modules",
        "what each module of the model costs: forward, backward, recomputation",
        "stepscope.analysis.modules:analyse_modules",
        {"table": "Modules"},
    ),
    Question(
        "call-tree",
        "who called what: the host's events merged by path, with self times and device time",
        "stepscope.analysis.call_tree:build_call_tree",
        {"nodes": "Call tree"},
    ),
    Question(
        "python-functions",
        "where the interpreter's time went: functions and threads, from py-spy or stacks",
        "stepscope.analysis.python_functions:python_functions",
        {"functions": "Functions", "threads": "Threads"},
    ),
    Question(
        "communication",
        "collectives: size, bandwidth, overlap with computation, exposed time",
        "stepscope.analysis.communication:analyse_communication",
        {"devices": "Devices", "sizes": "By kind and size", "collectives": "Collectives"},
    ),
    Question(
        "abnormal-collectives",
        "collectives far slower than their like, and what memory did meanwhile",
        "stepscope.analysis.abnormal_collectives:find_abnormal_collectives",
        {"table": "Abnormal collectives"},
        takes_baseline=True,
    ),
    Question(
        "stragglers",
        "which rank makes the others wait, and why, from the traces of several ranks",
        "stepscope.fleet.stragglers:find_stragglers",
        {
            "ranks": "Ranks",
            "causes": "Causes",
            "groups": "Process groups",
            "sets": "Collectives",
            "arrivals": "Arrivals",
        },
        over_ranks=True,
    ),
    Question(
        "flops",
        "FLOPs from shapes: achieved speed, roofline, MFU",
        "stepscope.analysis.flops:analyse_flops",
        {"steps": "Steps", "operators": "Operators"},
    ),
    Question(
        "critical-path",
        "what one would have to shorten for the steps to end earlier",
        "stepscope.analysis.critical_path:critical_path",
        {
            "causes": "Causes",
            "kernels": "GPU work on the path",
            "steps": "Steps",
            "segments": "The path",
        },
    ),
    Question(
        "what-if",
        "how long the step would take if a cause were gone",
        "stepscope.analysis.what_if:what_if_table",
        {"causes": "Without a cause"},
    ),
)
"""In the order in which they are listed."""


def question(name: str) -> Question:
    """The question of that name.

    Raises:
        UsageError: There is none; names the nearest.
    """
    for candidate in QUESTIONS:
        if candidate.name == name:
            return candidate
    import difflib

    names = [candidate.name for candidate in QUESTIONS]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else "`stepscope show --list` lists them"
    raise UsageError(f"no question '{name}': {hint}")
