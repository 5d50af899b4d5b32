"""torchtune's profiler component: the same section of the configuration, our recording.

    profiler:
      _component_: stepscope.adapters.torchtune.setup_torch_profiler
      enabled: True

Recipes that accept only torchtune's own component get ours after `take_over()`. Files have
torchtune's names: `{output_dir}/iteration_{step}/rank{rank}_key_averages.txt` and its siblings,
beside the run's own directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import resolve
from stepscope.adapters.profiler import Profiler
from stepscope.run.step_record import OPTIMIZER_STEP

log = logging.getLogger("stepscope")

SCHEDULE = {"wait_steps": 5, "warmup_steps": 5, "active_steps": 2, "num_cycles": 1}
"""torchtune's schedule where the section leaves steps out."""
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
    """As torchtune's function of that name.

    A step is what the recipe calls one, which is an optimizer step in torchtune's own. As there,
    `profile_memory` brings stacks and shapes with it; and the memory timeline, here drawn from the
    trace, which takes no time from the training.

    Args:
        enabled: Whether to record.
        cpu: Whether to record the CPU.
        cuda: Whether to record CUDA, where there is any.
        xpu: Whether to record XPU, where there is any.
        profile_memory: Whether to record memory.
        with_stack: Whether to record stacks.
        record_shapes: Whether to record shapes.
        with_flops: Whether to estimate floating-point operations.
        wait_steps: Steps of a cycle in which nothing is recorded.
        warmup_steps: Steps of warming up.
        active_steps: Steps that are recorded.
        num_cycles: Number of cycles; 0 for no end.
        output_dir: Where files go.

    Returns:
        The profiler, not started (one that does nothing where `enabled` is not set), and the
        section as it became: omegaconf's `DictConfig` where that is installed, else a dictionary.

    Raises:
        ConfigError: The options cannot work together.
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
    words = [word for word, wanted in (("cpu", cpu), ("cuda", cuda), ("xpu", xpu)) if wanted]
    section = {
        "enabled": True,
        "output_dir": str(output_dir or OUTPUT_DIR),
        "cpu": cpu or not words,
        "cuda": cuda or not words,
        "xpu": xpu or not words,
        "profile_memory": profile_memory,
        "with_stack": with_stack or profile_memory,
        "record_shapes": record_shapes or profile_memory,
        "with_flops": with_flops,
        **steps,
    }
    options: dict[str, Any] = {
        "output_dir": section["output_dir"],
        "activities": _activities(words),
        "profile_memory": profile_memory,
        "memory_timeline": "trace" if profile_memory else "off",
        "with_stack": section["with_stack"],
        "record_shapes": section["record_shapes"],
        "with_flops": with_flops,
        "wait": steps["wait_steps"],
        "warmup": steps["warmup_steps"],
        "active": steps["active_steps"],
        "repeat": steps["num_cycles"],
        "key_averages_rows": _ROWS,
        "step_unit": OPTIMIZER_STEP,
    }
    given: dict[str, tuple[object, str]] = {
        name: (value, f"torchtune's profiler section ({name})") for name, value in options.items()
    }
    config = resolve(find_dialect("native"), given).config(enabled=True)
    return Profiler(config, layout="torchtune"), _section(section)


def take_over() -> Callable[[], None]:
    """Put `setup_torch_profiler` in the place of torchtune's, for recipes that insist on that.

    Returns:
        A function that undoes it.

    Raises:
        ImportError: torchtune is not installed.
    """
    from torchtune import training

    before = training.setup_torch_profiler
    training.setup_torch_profiler = setup_torch_profiler

    def undo() -> None:
        training.setup_torch_profiler = before

    return undo


def _activities(words: list[str]) -> str | tuple[str, ...]:
    """Our option: what torch supports here of what is wanted, since recipes list all devices."""
    from torch.profiler import supported_activities

    supported = {activity.name.lower() for activity in supported_activities()}
    chosen = tuple(word for word in words if word in supported)
    return chosen or "auto"


def _section(values: dict[str, Any]) -> Any:
    try:
        from omegaconf import DictConfig
    except ImportError:
        return values
    return DictConfig(values)
