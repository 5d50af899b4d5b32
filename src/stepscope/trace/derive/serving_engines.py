"""The ranges by which serving engines mark the steps of their scheduler.

vLLM writes `execute_context_2(128)_generation_6(6)`: two requests in prefill with 128 tokens, six
in decode; versions write `execute_12_context_2(sq128sk256)_generation_6(…)` or
`execute_new_2_cached_6` instead. SGLang writes `step[EXTEND bs=2 toks=4096]` (prefill),
`step[DECODE bs=16]` and others, ATOM `prefill[bs=2 tok=16384]` and `decode[bs=64]`.
"""

from __future__ import annotations

import re

_STEPS = (
    ("vLLM", r"^execute_(\d+_)?(new|context)_\d"),
    ("SGLang", r"^step\[[A-Z_]+\b"),
    ("ATOM", r"^(prefill|decode|mixed)\[[^\]]*(bs|tok)"),
    # Ranges that do not say what a step consists of, and whose names are less their own.
    ("vLLM", r"^(v2_)?gpu_model_runner: forward$"),
    ("TensorRT-LLM", r"^\[Executor\] _forward_step\b"),
    ("a serving engine", r"^(scheduler\.)?run_batch$|_forward_step\b"),
)
STEP_RANGES = tuple(pattern for _, pattern in _STEPS)
"""Patterns of the ranges, those that say most about a step first."""


def engine_of(name: str) -> str:
    """The engine that writes ranges of this name; empty for none."""
    return next((engine for engine, pattern in _STEPS if re.search(pattern, name)), "")
