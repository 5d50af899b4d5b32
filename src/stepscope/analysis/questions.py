"""Every question that `stepscope show` answers, in one table. Importing it imports no analysis.

A question is a function `(trace, scope) -> result`. The result is a frozen dataclass: its
`scope` says what it covers, its `notes` say what a reader must know, its polars frames are tables,
and its other fields are numbers. Names carry units (`_ns`, `_bytes`, `_share`), which reporters
rely on. A field with the metadata {"show": False} is for programs only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError, did_you_mean
from stepscope.opening.remote import as_shown
from stepscope.terminal.working import working

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import Scope
    from stepscope.trace.model import Trace
    from stepscope.trace.paths import TraceRef


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        name: Its name on the command line, and of its page in docs/questions.
        home: Module and function, "stepscope.analysis.timeline:timeline".
        titles: Field of the result to the title of its table, in display order. Tables without a
            title follow under their field's name.
        over_ranks: The function takes the ranks of a job (`fleet.job.Job`) instead of one trace.
        compares_ranks: Of these, one that a single rank has no answer to.
        takes_baseline: The function takes `baseline`, the trace of a healthy run.
        is_timed: The answer has step times, or times that only mean something beside the step's:
            of a run with a step record it says how long steps take that nobody recorded.
        takes_operations: It is also answered about a table of operations (`fleet.ask`).
        takes_step_record: The function takes the step record of the rank beside the trace.
        takes_samples: Of a run that a sampler such as py-spy recorded, it is about these
            recordings, which cover all its processes and steps, unless steps are named.
    """

    name: str
    about: str
    home: str
    titles: Mapping[str, str] = field(default_factory=dict)
    over_ranks: bool = False
    compares_ranks: bool = False
    takes_baseline: bool = False
    is_timed: bool = False
    takes_operations: bool = False
    takes_step_record: bool = False
    takes_samples: bool = False

    def ask(self, trace: Trace, scope: Scope | None = None, baseline: Trace | None = None) -> Any:
        """Answer it.

        Raises:
            UsageError: The scope names steps or devices that the trace does not have, or the
                question takes no baseline.
        """
        if baseline is None:
            return self._function()(trace, scope)
        if not self.takes_baseline:
            able = ", ".join(one.name for one in QUESTIONS if one.takes_baseline)
            raise UsageError(
                f"'{self.name}' takes no baseline, only {able} does; to compare two runs, use"
                " `stepscope compare`"
            )
        return self._function()(trace, scope, baseline=baseline)

    def ask_of_run(
        self,
        trace: Trace,
        step_record: Path | None,
        scope: Scope | None = None,
        baseline: Trace | None = None,
    ) -> Any:
        """Answer it about a window of a run, in the step time that the report states for the run.

        Args:
            step_record: The `steps.jsonl` of its rank; None for a trace outside a run.
            scope: What the answer covers. With steps it is about these alone, in their own time.
        """
        if self.takes_step_record and baseline is None:
            return self._function()(trace, scope, step_record)
        result = self.ask(trace, scope, baseline)
        asks_for_steps = scope is not None and scope.steps is not None
        if step_record is None or asks_for_steps or not self.is_timed:
            return result
        from stepscope.analysis.steps import in_run_steps
        from stepscope.run.step_record import read_steps

        records, _ = read_steps(step_record)
        return in_run_steps(result, trace, records)

    def ask_job(self, job: Any) -> Any:
        """Answer it about the ranks of a job (`fleet.job.Job`)."""
        return self._function()(job)

    def _function(self) -> Callable[..., Any]:
        module, _, function = self.home.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return found


@dataclass(frozen=True)
class Answer:
    """The answer about one trace, or about the traces of several ranks together.

    Attributes:
        origin_ns: Their first moment; people read other moments relative to it.
    """

    path: str
    origin_ns: int
    result: Any


@dataclass(frozen=True)
class Answers:
    """The answers to a question.

    Attributes:
        answers: Each is computed when the iterator reaches it.
        left_out: How many of the traces could not be read, where the answer is about the others.
    """

    question: Question
    traces: int
    answers: Iterable[Answer]
    left_out: int = 0


def ask_all(
    question: Question,
    traces: Sequence[TraceRef],
    scope: Scope | None = None,
    baseline: Trace | None = None,
) -> Answers:
    """Ask a question of traces, of each alone. `fleet.ask` asks those over several ranks."""
    found = (_one(question, described, scope, baseline) for described in traces)
    return Answers(question, len(traces), found)


def _one(
    question: Question, described: TraceRef, scope: Scope | None, baseline: Trace | None
) -> Answer:
    import polars as pl

    from stepscope.trace.problems import LACKS_END, describe_losses

    name = as_shown(described.name)
    with working(f"Answering {question.name} of {name}"):
        trace = described.open()  # freed on return, before the next one is opened
        result = question.ask_of_run(trace, described.step_record, scope, baseline)
        losses = describe_losses(trace.all_problems)
        if trace.lacks_end:
            losses = (*losses, LACKS_END)
        if losses:
            result = replace(result, notes=(*losses, *result.notes))
        first = trace.events.select(pl.col("start_ns").min()).collect().item()
        return Answer(name, int(first or 0), result)


QUESTIONS: tuple[Question, ...] = (
    Question(
        "timeline",
        "what each GPU did: compute, exposed communication, exposed copies, idle",
        "stepscope.analysis.timeline:timeline",
        {"devices": "Devices", "steps": "Steps", "main_thread": "Steps of the training thread"},
        is_timed=True,
    ),
    Question(
        "steps",
        "each step: its time on host and device, and where it went",
        "stepscope.analysis.steps:step_table",
        {"steps": "Steps", "summary": "Over the steps"},
        is_timed=True,
    ),
    Question(
        "idle",
        "why the GPU was idle: each gap by its cause",
        "stepscope.analysis.idle:idle_causes",
        {
            "causes": "Causes",
            "longest": "The longest gaps",
            "details": "Causes by what explains them",
            "steps": "Steps",
        },
        is_timed=True,
    ),
    Question(
        "kernels",
        "what ran on the GPU: by category and name, short kernels, sequences, tensor cores",
        "stepscope.analysis.kernels:kernels",
        {
            "groups": "By category",
            "kernels": "By name",
            "short": "Short kernels",
            "sequences": "Sequences that an operator repeats",
            "tensor_cores": "Matrix kernels and tensor cores",
            "counters": "Hardware counters",
        },
    ),
    Question(
        "compute",
        "what the compute is made of: kinds, operators, modules, and how near it is to the peak",
        "stepscope.analysis.compute:compute",
        {
            "kinds": "By kind",
            "operators": "By operator",
            "places": "By module or function",
            "products": "Matrix products by shape",
        },
        is_timed=True,
    ),
    Question(
        "fusion",
        "known patterns of kernels that one fused kernel replaces, and what that saves",
        "stepscope.analysis.fusion:fusion",
        {"patterns": "Patterns"},
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
            "copies": "Copies",
            "pageable": "Copies to the GPU that block the host",
        },
        is_timed=True,
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
        is_timed=True,
    ),
    Question(
        "memory",
        "allocated and reserved memory over time, the peak, and the operators that hold it",
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
        "the same for each combination of input shapes and types",
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
        "who called what: host events merged by call path, with self time and device time",
        "stepscope.analysis.call_tree:build_call_tree",
        {"nodes": "Call tree"},
    ),
    Question(
        "python-functions",
        "where the interpreter's time went: functions and threads, from py-spy or stacks",
        "stepscope.analysis.python_functions:python_functions",
        {"functions": "Functions", "threads": "Threads"},
        takes_samples=True,
    ),
    Question(
        "communication",
        "collectives: size, bandwidth, overlap with computation, exposed time",
        "stepscope.analysis.communication:analyse_communication",
        {"devices": "Devices", "sizes": "By kind and size", "collectives": "Collectives"},
    ),
    Question(
        "abnormal-collectives",
        "collectives far slower than comparable ones, and what memory did meanwhile",
        "stepscope.analysis.abnormal_collectives:find_abnormal_collectives",
        {"table": "Abnormal collectives"},
        takes_baseline=True,
    ),
    Question(
        "stragglers",
        "which rank makes the others wait, and why, from the traces of several ranks",
        "stepscope.fleet.stragglers:stragglers_of_job",
        {
            "ranks": "Ranks",
            "causes": "Causes",
            "groups": "Process groups",
            "sets": "Collectives",
            "arrivals": "Arrivals",
        },
        over_ranks=True,
        compares_ranks=True,
    ),
    Question(
        "ranks",
        "each rank's steps: time, input, compute, exposed communication, and the slowest",
        "stepscope.fleet.rank_map:rank_map",
        {"ranks": "Ranks", "parts": "Parts of the step over the ranks", "steps": "Ranks and steps"},
        over_ranks=True,
    ),
    Question(
        "collectives",
        "collectives over all ranks: waits against transfers, bandwidths, abnormal and uneven ones",
        "stepscope.fleet.collectives:collectives_over_ranks",
        {
            "kinds": "By kind and size",
            "groups": "Process groups",
            "abnormal": "Abnormal transfers",
            "uneven": "Uneven all-to-alls",
        },
        over_ranks=True,
        compares_ranks=True,
    ),
    Question(
        "pipeline",
        "pipeline bubbles: how long each stage waits for its neighbours and stands idle",
        "stepscope.fleet.ask:pipeline_of_job",
        {"ranks": "Ranks", "steps": "Ranks and steps"},
        over_ranks=True,
    ),
    Question(
        "flops",
        "FLOPs from shapes: achieved speed, roofline, MFU",
        "stepscope.analysis.flops:analyse_flops",
        {"steps": "Steps", "operators": "Operators"},
        is_timed=True,
    ),
    Question(
        "critical-path",
        "what would have to be shorter for the steps to end earlier",
        "stepscope.analysis.critical_path:critical_path",
        {
            "causes": "Causes",
            "kernels": "GPU work on the path",
            "steps": "Steps",
            "segments": "The path",
        },
        is_timed=True,
    ),
    Question(
        "what-if",
        "how long the step would take if a cause were gone",
        "stepscope.analysis.what_if:what_if_table",
        {"causes": "Without a cause"},
        is_timed=True,
    ),
    Question(
        "ladder",
        "the step after each fix in order, what limits it then, and the floor of the work",
        "stepscope.advice.rank.ladder_answer:ladder_of",
        {"rungs": "From today's step down"},
        takes_step_record=True,
    ),
    Question(
        "what-if-ranks",
        "how long a job's step would take if a rank were like the others, or collectives faster",
        "stepscope.fleet.what_if.ranks:what_if_over_ranks",
        {
            "changes": "With one change",
            "workers": "Workers",
            "stages": "Stages",
            "replicas": "Replicas",
            "kinds": "Kinds of operations",
            "steps": "The replay against the recording",
        },
        over_ranks=True,
        compares_ranks=True,
        takes_operations=True,
    ),
)
"""In the order of the list."""


def question(name: str) -> Question:
    """The question of that name."""
    for candidate in QUESTIONS:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in QUESTIONS]
    hint = did_you_mean(name, names, "`stepscope show --list` lists them")
    raise UsageError(f"no question '{name}': {hint}")
