"""Breaks parts of the capture in turn, and trains.

    python -m tests.support.broken_parts FOLDER MODULE ...
    python -m tests.support.broken_parts FOLDER every NUMBER

Breaks each part of some modules, or one of so many of all modules. Prints what the training
noticed, a line each.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import sys
from pathlib import Path

import pytest
import torch

import stepscope
from stepscope import capture
from stepscope.capture.ranks import ProcessClaim
from tests.support.training import SmallTraining, bare_losses, batches

STEPS = 7
WALLS = {
    # What contains the others' failures, and what the loop itself calls.
    "containment",
    "session",
    "steps.core",
    "steps.step_notes",
    # What checks options before anything starts, and raises for wrong ones.
    "options.config",
    "options.option",
    # This too; and what refuses a second profiler, by raising.
    "ranks",
    # A program of its own, for `stepscope doctor`.
    "torch_probe",
}
MODULES = tuple(
    found.name.removeprefix("stepscope.capture.")
    for found in pkgutil.walk_packages(capture.__path__, "stepscope.capture.")
    if not found.ispkg and found.name.removeprefix("stepscope.capture.") not in WALLS
)
"""Every module of the capture whose functions are broken."""
# What a profiler is made of before it starts, where wrong options do raise.
SPARED = {
    "options.schedule.Schedule.first_end",
    "options.schedule.Schedule.cycle",
    "options.schedule.Schedule._origin",
    "options.schedule.settle",
    "options.schedule._trial_step",
    "options.schedule._cycle",
    "options.schedule._max_steps",
    "options.schedule._ranks",
    "options.schedule._memory",
    "options.schedule._activities",
    "options.schedule._folders",
    "options.schedule._functions",
    "steps.pauses.GcPauses.__init__",
    "steps.phase_times.PhaseTimes.__init__",
    "steps.pauses.CompileClock.__init__",
}
OPTIONS = {
    "windows.python_memory": {"window_recorder": "tracemalloc"},
    "record.monitoring": {"monitor": True},
}
"""More options, by module, for parts that only work where they are asked for."""


def parts():
    """Every function and method of the capture: (module, class or None, name)."""
    for module_name in MODULES:
        module = importlib.import_module(f"stepscope.capture.{module_name}")
        for name, found in vars(module).items():
            if getattr(found, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(found):
                if f"{module_name}.{name}" not in SPARED:
                    yield module_name, None, name
            elif inspect.isclass(found) and not issubclass(found, BaseException):
                for method, what in vars(found).items():
                    is_code = inspect.isfunction(what) or isinstance(what, (property, classmethod))
                    is_magic = method.startswith("__") and method != "__init__"
                    place = f"{module_name}.{name}.{method}"
                    if is_code and not is_magic and place not in SPARED:
                        yield module_name, name, method


def break_part(monkeypatch, module_name, class_name, name):
    # All of them first: what is imported while a part is broken would keep the broken one.
    modules = {
        name: importlib.import_module(f"stepscope.capture.{name}") for name in (*MODULES, "session")
    }
    module = modules[module_name]
    owner = module if class_name is None else getattr(module, class_name)

    def broken(*_, **__):
        raise ZeroDivisionError("a broken part")

    original = inspect.getattr_static(owner, name)
    if isinstance(original, property):
        monkeypatch.setattr(owner, name, property(broken))
        return
    monkeypatch.setattr(owner, name, broken)
    if class_name is None:
        # Other modules have it under a name of their own.
        for there in modules.values():
            if vars(there).get(name) is original:
                monkeypatch.setattr(there, name, broken)


def train(output, **more):
    training = SmallTraining()
    options = {
        "wait": 1,
        "warmup": 1,
        "active": 1,
        "repeat": 2,
        "activities": "cpu",
        "export_timeout_s": 20.0,
        "auto_phases": True,
        "slow_step_factor": 1.0,
        "max_pause_s": 60.0,
        "memory_log": True,
        "on_trace_ready": lambda profiler: None,
        **more,
    }
    profiler = stepscope.Profiler(output_dir=output, **options)
    with profiler:
        for batch in itertools.islice(profiler.watch(batches(20)), STEPS - 2):
            with profiler.phase("work"):
                training.step(batch)
            profiler.mark("train")
            profiler.step(tokens=3, samples=1)
        with profiler.outside_steps("evaluation"):
            profiler.trigger()
        for batch in list(batches(STEPS))[STEPS - 2 :]:
            with profiler.session.steps.waiting():
                profiler.session.restart_step()
            training.step(batch)
            profiler.count(tokens=1)
            profiler.snapshot()
            profiler.session.add_text("note", "note.txt", "text")
            profiler.step()
    return training.losses


def harm_of(part, output):
    """What a training notices of a broken part; empty where it notices nothing."""
    with pytest.MonkeyPatch.context() as patch:
        break_part(patch, *part)
        try:
            losses = train(output, **OPTIONS.get(part[0], {}))
            harm = "" if losses == bare_losses(STEPS) else "other losses"
        except Exception as error:
            harm = repr(error)
    if torch.autograd._profiler_enabled():
        harm += " left torch recording"
        torch.autograd._disable_profiler()
    if ProcessClaim.holder() is not None:
        harm += " kept its claim on the process"
        ProcessClaim.give_back(ProcessClaim.holder())
    return harm


def main():
    output = Path(sys.argv[1])
    if sys.argv[2] == "every":
        chosen = list(parts())[:: int(sys.argv[3])]
    else:
        chosen = [part for part in parts() if part[0] in sys.argv[2:]]
    for number, part in enumerate(chosen):
        harm = harm_of(part, output / str(number))
        if harm:
            print(*part, harm)


if __name__ == "__main__":
    main()
