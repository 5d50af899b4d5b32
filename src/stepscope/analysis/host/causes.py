"""What a host thread does at each moment: the one vocabulary, and its one order of precedence.

Idle time, the critical path, what-if and the findings all name a moment of a thread by this list.
A moment belongs to the first cause that it lies in:

1. profiler: the recorder's own overhead.
2. compilation: the stages of `torch.compile`, and the loading of modules, except as a one-off call
   or in one outside these stages; calls of compiled code are none.
3. garbage collection: pauses of Python's collector.
4. annotated phase: an annotation named as saving a checkpoint, evaluation, validation, logging or
   metrics, with everything inside it.
5. input: waiting for a batch (see `is_input_wait`), or for another thread that reads one (see
   `waits`), with everything inside that wait.
6. one-off call: calls and first runs that cost far more than their like, once (`calls.one_off`).
7. waiting for communication: collectives that another thread does (see `waits`).
8. synchronisation: calls that wait for the device, and copies to the host that block.
9. allocation: calls that get memory from the driver, or give it back.
10. pageable copy: copies to the device that block, and the synchronisation that the operator of
    such a copy adds to it.
11. operators on the CPU: in a trace with GPU work, operators that launch nothing and take
    `ON_CPU_NS` or longer themselves, without those that they call: they compute on the CPU.
12. launch: all other calls of the runtime and the driver.
13. dispatch: operators outside their calls. Without GPU work they do the work themselves, and the
    cause is called operators.
14. annotation: any other annotation in which nothing is launched (without GPU work: in which no
    operator runs). One around the whole step explains nothing.
15. backward: the rest of backward: between operators of autograd's thread, or in a range named
    backward. Only where Python frames were not recorded.
16. python: everything else. Where Python frames were not recorded, nobody knows that it was Python:
    then it is called "host, cause not recorded".

Answers may use coarser words, which `idle_gaps` declares; none names a moment by another rule.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.names import is_call, is_operator
from stepscope.run.own_frames import OWN_FILE
from stepscope.run.step_record import BATCH_FUNCTIONS, DATA_WAIT_RANGE, INPUT_PHASES
from stepscope.trace.known_names import KnownNames
from stepscope.trace.schema import Category


class HostCause(IntEnum):
    """Why a moment of a host thread passed, in order of precedence."""

    PROFILER = 0
    COMPILATION = 1
    GARBAGE_COLLECTION = 2
    PHASE = 3
    INPUT = 4
    ONE_OFF = 5
    COMMUNICATION = 6
    SYNCHRONISATION = 7
    ALLOCATION = 8
    PAGEABLE_COPY = 9
    CPU_OPERATOR = 10
    LAUNCH = 11
    DISPATCH = 12
    ANNOTATION = 13
    BACKWARD = 14
    PYTHON = 15

    @property
    def word(self) -> str:
        """The name that answers show."""
        return _LABELS.get(self, self.name.lower().replace("_", " "))


_LABELS = {
    HostCause.COMPILATION: "compiling or loading kernels",
    HostCause.PHASE: "annotated phase",
    HostCause.ONE_OFF: "one-off call",
    HostCause.COMMUNICATION: "waiting for communication",
    HostCause.CPU_OPERATOR: "operators on the CPU",
    HostCause.BACKWARD: "between operators of backward",
}
"""Where it is not the member's own name."""
_OPERATORS = "operators"
"""What `DISPATCH` is called in a trace without GPU work."""

CAUSES = tuple(HostCause)
BLOCKING = (HostCause.SYNCHRONISATION, HostCause.PAGEABLE_COPY)
"""Causes after which the device has nothing left to do."""
NOT_RECORDED = "host, cause not recorded"
"""What `PYTHON` is called in a trace without Python frames."""
UNNAMED = (HostCause.PHASE, HostCause.ANNOTATION, HostCause.BACKWARD, HostCause.PYTHON)
"""Causes in which Python code of the user's own may run without any other event."""

ON_CPU_NS = 500_000
"""No operator takes that long to hand its work to a GPU."""
NO_CAUSE = -1
_COMPILATION = (
    # Ranges of torch.compile's stages, which torch writes with and without stacks.
    r"\(dynamo_timed\)$|^(entire_(frame|backward)_compile|backend_compile|inductor_compile"
    r"|compile_file|fx_codegen_and_compile|compile_attempt_\d+|async_compile\.wait)$"
    # Frames that compile. Others of the same packages run compiled code: `compile_wrapper` in
    # eval_frame.py and `__call__` in output_code.py lie around every call of it.
    r"|torch/_dynamo/(convert_frame|output_graph)\.py\(\d+\): \w*(compile|codegen)"
    r"|torch/_inductor/(compile_fx|codecache|graph|scheduler|async_compile|cpp_builder)\.py\(\d+\)"
    r": \w*(compile|codegen)"
    r"|triton/compiler/\w+\.py\(\d+\): (compile|make_\w+|ast_to_\w+)$"
)
_OF_THE_DRIVER = r"(?i)(module|function) loading|command buffer full|driver compiler"
"""What CUPTI records as overhead though it takes as long without a recorder."""
_GARBAGE = r"^Python GC|^gc\.collect|<built-in method collect of|<built-in function collect>"
_PHASES = (
    r"(?i)\b(checkpoint(ing)?|save|evaluat\w*|eval|validat\w*|log(ging)?|metrics)\b"
    r"|(save|load|write)_?(checkpoint|model|state)|checkpoint_?(save|write)"
)


def cause_names(*, has_gpu: bool, has_stacks: bool = True) -> tuple[str, ...]:
    """The word for each of `CAUSES` in a trace with or without GPU work, and Python frames."""
    names = [cause.word for cause in CAUSES]
    if not has_gpu:
        names[HostCause.DISPATCH] = _OPERATORS
    if not has_stacks:
        names[HostCause.PYTHON] = NOT_RECORDED
    return tuple(names)


def cause_of_names(names: pl.DataFrame) -> npt.NDArray[np.int8]:
    """The cause that each name stands for, as far as names tell; `NO_CAUSE` for the others.

    Blocking copies, waits for communication and what annotations contain are known from events:
    `events.host_events` adds them.

    Args:
        names: The table of names, in order of `name_id`.
    """
    return np.array(_KNOWN.of(names), np.int8)


def _causes(names: pl.DataFrame) -> list[int]:
    name, group = pl.col("name").fill_null(""), pl.col("group")
    category = pl.col("category")
    called = is_call()
    is_annotation = group.is_null() & category.is_in(
        [Category.USER_ANNOTATION.value, Category.OTHER.value]
    )
    rules = (
        (
            HostCause.PROFILER,
            (category == Category.OVERHEAD.value) & ~name.str.contains(_OF_THE_DRIVER),
        ),
        (
            HostCause.COMPILATION,
            compiles() | (called & (group == "module_load")),
        ),
        (HostCause.GARBAGE_COLLECTION, name.str.contains(_GARBAGE)),
        (HostCause.PHASE, is_annotation & name.str.contains(_PHASES)),
        (HostCause.INPUT, is_input_wait()),
        (HostCause.SYNCHRONISATION, called & (group == "sync")),
        (HostCause.ALLOCATION, called & (group == "allocation")),
        (HostCause.LAUNCH, called),
        (HostCause.DISPATCH, is_operator()),
        (HostCause.ANNOTATION, is_annotation),
    )
    found = pl.coalesce(
        *(pl.when(condition).then(pl.lit(int(cause), pl.Int8)) for cause, condition in rules),
        pl.lit(NO_CAUSE, pl.Int8),
    )
    return names.select(found.alias("cause"))["cause"].to_list()


_BATCH_FUNCTION = rf"\.py\(\d+\): ({'|'.join(sorted(BATCH_FUNCTIONS))})$"
_KNOWN = KnownNames(_causes, "name", "category", "group")


def compiles() -> pl.Expr:
    """Of rows of `names`: whether the event is a stage of a compiler; loading kernels is none."""
    return pl.col("name").fill_null("").str.contains(_COMPILATION)


def is_input_wait() -> pl.Expr:
    """Of rows of `names`: whether the event is a wait for a batch.

    It is where a DataLoader or DataPipe noted it, or `profiler.watch`, or a phase that the step
    record takes for input as well, or a Python function whose name says that it makes a batch.
    """
    phase = pl.col("name").str.to_lowercase().is_in(sorted(INPUT_PHASES)) & (
        pl.col("category") == Category.USER_ANNOTATION.value
    )
    found = (pl.col("group") == "dataloader") | (pl.col("name") == DATA_WAIT_RANGE) | phase
    return (found | makes_batch()).fill_null(value=False)


def makes_batch() -> pl.Expr:
    """Of rows of `names`: whether it is a Python function such as `train.py(9): get_batch`."""
    name = pl.col("name")
    is_function = pl.col("category") == Category.PYTHON_FUNCTION.value
    return is_function & name.str.contains(_BATCH_FUNCTION) & ~name.str.contains(OWN_FILE)
