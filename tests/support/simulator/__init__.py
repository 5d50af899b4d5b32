"""A simulator of trainings, which knows what a fix brings because it can run it.

    program = random_program(seed=7, causes=("python", "pageable"))
    timeline = simulate(program)
    write_trace(timeline, path)
    now_ns = steady_step_ns(program)
    for finding, (before, after) in fixes(program).items():
        saving_ns = steady_step_ns(before) - steady_step_ns(after)

It shares no code with the product: host threads, launch queue, streams, loader, collectives and
the formats of traces and of step records are written anew from their definitions.
"""

from tests.support.simulator.fixes import (
    fixes,
    on_time,
    questions,
    with_persistent_workers,
    with_workers,
    without_communication,
    without_input_wait,
)
from tests.support.simulator.machine import Timeline, simulate, steady_step_ns
from tests.support.simulator.program import Program
from tests.support.simulator.random_programs import CAUSES, random_program
from tests.support.simulator.trace import write_job, write_run, write_trace

__all__ = [
    "CAUSES",
    "Program",
    "Timeline",
    "fixes",
    "on_time",
    "questions",
    "random_program",
    "simulate",
    "steady_step_ns",
    "with_persistent_workers",
    "with_workers",
    "without_communication",
    "without_input_wait",
    "write_job",
    "write_run",
    "write_trace",
]
