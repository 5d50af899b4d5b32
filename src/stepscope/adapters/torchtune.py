"""Replacement for torchtune's profiler component, with the same configuration section.

    profiler:
      _component_: stepscope.adapters.torchtune.setup_torch_profiler
      enabled: True

For recipes that accept only torchtune's own component, call `take_over()`. Files have torchtune's
names, such as `{output_dir}/iteration_{step}/rank{rank}_key_averages.txt`, beside the run
directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from stepscope.adapters.options.settings import config_of_section
from stepscope.adapters.profiler import Profiler
from stepscope.capture.steps.replacements import Replacements
from stepscope.run.step_record import OPTIMIZER_STEP

log = logging.getLogger("stepscope")

SCHEDULE = {"wait_steps": 5, "warmup_steps": 5, "active_steps": 2, "num_cycles": 1}
"""torchtune's schedule, for values that the section leaves out."""
OUTPUT_DIR = "profiler_output"
_ROWS = 25


def setup_torch_profiler(
    enabled: bool = False,
    cpu: bool = True,
    cuda: bool = True,
    xpu: bool = True,
    profile_memory: bool = False,
    with_stack: bool = False,
    record_shapes: bool = True,
    with_flops: bool = False,
    wait_steps: int | None = None,
    warmup_steps: int | None = None,
    active_steps: int | None = None,
    num_cycles: int | None = None,
    output_dir: str | None = None,
) -> tuple[Profiler, Any]:
    """Create a profiler from the section, like torchtune's function of that name.

    A step is whatever the recipe calls a step; in torchtune's own recipes, an optimizer step. As
    there, `profile_memory` implies stacks, shapes and the memory timeline, which here is drawn from
    the trace and takes no time from the training.

    Args:
        wait_steps: Steps of a cycle in which nothing is recorded.
        num_cycles: Number of cycles; 0 for no limit.

    Returns:
        The profiler, not started (it does nothing unless `enabled`), and the completed section:
        omegaconf's `DictConfig` if that is installed, else a dictionary.

    Raises:
        ConfigError: The options contradict each other.
    """
    if not enabled:
        return Profiler(enabled=False), _section({"enabled": False})
    asked = {
        "wait_steps": wait_steps,
        "warmup_steps": warmup_steps,
        "active_steps": active_steps,
        "num_cycles": num_cycles,
    }
    steps = {name: SCHEDULE[name] if value is None else value for name, value in asked.items()}
    names = [word for word, wanted in (("cpu", cpu), ("cuda", cuda), ("xpu", xpu)) if wanted]
    section = {
        "enabled": True,
        "output_dir": str(output_dir or OUTPUT_DIR),
        "cpu": cpu or not names,
        "cuda": cuda or not names,
        "xpu": xpu or not names,
        "profile_memory": profile_memory,
        "with_stack": with_stack or profile_memory,
        "record_shapes": record_shapes or profile_memory,
        "with_flops": with_flops,
        **steps,
    }
    shared = ("output_dir", "profile_memory", "with_stack", "record_shapes", "with_flops")
    options: dict[str, Any] = {
        **{name: section[name] for name in shared},
        "activities": _activities(names),
        "memory_timeline": "trace" if profile_memory else "off",
        "wait": steps["wait_steps"],
        "warmup": steps["warmup_steps"],
        "active": steps["active_steps"],
        "repeat": steps["num_cycles"],
        "key_averages_rows": _ROWS,
        "step_unit": OPTIMIZER_STEP,
    }
    config = config_of_section(options, "torchtune's profiler section")
    return Profiler(config, layout="torchtune"), _section(section)


def take_over() -> Callable[[], None]:
    """Replace torchtune's own function, for recipes that insist on it; returns the undo."""
    from torchtune import training

    replaced = Replacements()
    replaced.replace(training, "setup_torch_profiler", lambda _: setup_torch_profiler)
    return replaced.restore


def _activities(names: list[str]) -> str | tuple[str, ...]:
    """The option `activities`: the requested devices, which may be all, that torch supports."""
    from torch.profiler import supported_activities

    supported = {activity.name.lower() for activity in supported_activities()}
    chosen = tuple(word for word in names if word in supported)
    return chosen or "auto"


def _section(values: dict[str, Any]) -> Any:
    try:
        from omegaconf import DictConfig
    except ImportError:
        return values
    return DictConfig(values)
