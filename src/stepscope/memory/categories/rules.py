"""Rules that derive a category from a stack.

A rule looks for one frame anywhere in the stack, as "file:function". The first rule that matches
decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.categories.kinds import CATEGORY, MemoryCategory
from stepscope.memory.program.lines import first_match
from stepscope.memory.schema import Snapshot


@dataclass(frozen=True)
class Rule:
    """A frame that tells a category.

    Attributes:
        pattern: A regular expression, searched for in "file:function".
        if_kept: The category of what outlives the step that it was made in; None: the same.
    """

    category: MemoryCategory
    pattern: str
    if_kept: MemoryCategory | None = None


_C = MemoryCategory
_RULES = (
    Rule(_C.WORKSPACE, r"[wW]orkspace\w*(?:\(|::|$)|cudnn::\w*[wW]orkspace|CuDNN\w*Workspace"),
    Rule(_C.WORKSPACE, r"getCurrent(?:CUDA|HIP)\w*Handle"),
    Rule(_C.COMMUNICATION, r"torch/distributed/(distributed_c10d|_functional_collectives)\.py"),
    Rule(_C.COMMUNICATION, r"_fsdp_collectives\.py|ProcessGroup(NCCL|Gloo)|c10d::|ncclInternal"),
    Rule(_C.CACHE, r"/cache_(utils|engine)\.py:|:_?allocate_kv_cache\w*$|:initialize_kv_cache\w*$"),
    Rule(_C.CACHE, r":(setup_caches|init_kv_cache|make_kv_cache)$|/kv_?cache\w*\.py:|KVCache\w*::"),
    Rule(_C.OPTIMIZER_STATE, r"/optim/[^:]*:(_init_group|init_state|_init_state)$"),
    Rule(_C.OPTIMIZER_STATE, r":(initialize_optimizer_states|_init_optimizer_state\w*)$"),
    Rule(_C.TEMPORARY, r"torch/optim/[^:]*:", if_kept=_C.OPTIMIZER_STATE),
    Rule(_C.INPUT, r"torch/utils/data/|:default_collate$|:collate(_fn)?$|:pin_memory$"),
    Rule(_C.GRADIENT, r"AccumulateGrad"),
    Rule(
        _C.TEMPORARY,
        r"torch::autograd::(Engine|Node|generated)|Backward\d*::apply",
        if_kept=_C.GRADIENT,
    ),
    Rule(_C.TEMPORARY, r"torch/autograd/graph\.py:_engine_run_backward$", if_kept=_C.GRADIENT),
    Rule(_C.PARAMETER, r"nn/parallel/(replicate\.py:|comm\.py:broadcast)"),
    Rule(_C.INPUT, r"nn/parallel/(scatter_gather\.py:scatter|comm\.py:scatter)"),
    Rule(_C.TEMPORARY, r"nn/utils/clip_grad\.py:"),
    Rule(_C.PARAMETER, r"torch/nn/modules/[^:]*:(__init__|reset_parameters)$"),
    Rule(_C.PARAMETER, r"torch/nn/modules/module\.py:(_apply|to_empty|convert)$"),
    Rule(_C.PARAMETER, r":(from_pretrained|load_state_dict|_load_state_dict_into\w*)$"),
    Rule(_C.ACTIVATION, r"torch/nn/modules/module\.py:_(wrapped_)?call_impl$"),
    Rule(_C.ACTIVATION, r"torch/nn/functional\.py:|:forward$"),
)

OF_BACKWARD = (
    r"AccumulateGrad|torch::autograd::(Engine|Node|generated|python)|Backward\d*::apply|"
    r"_engine_run_backward$|/optim/"
)
"""A frame that only a training has."""

GIVES_GRADIENTS_BACK = r":zero_grad$"
"""What is freed in such a frame is a gradient."""


def categories_of_stacks(snapshot: Snapshot) -> pl.DataFrame:
    """The category that the rules find for each stack.

    Returns:
        One row per stack: stack, category, and if_kept, the category of what outlives its step;
        null where no rule applies.
    """
    first = first_match(snapshot, [rule.pattern for rule in _RULES])
    names = pl.Series([rule.category.value for rule in _RULES] + [None], dtype=CATEGORY)
    kept = [(rule.if_kept or rule.category).value for rule in _RULES]
    return pl.DataFrame(
        {
            "stack": snapshot.stacks["stack"],
            "category": names.gather(first),
            "if_kept": pl.Series([*kept, None], dtype=CATEGORY).gather(first),
        }
    )
