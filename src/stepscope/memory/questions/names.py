"""The names of the questions about snapshots. Importing it imports nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NamedQuestion:
    """A question, as far as its answers are laid out.

    Attributes:
        titles: Field of the answer to the title of its table, in display order.
    """

    name: str
    about: str
    titles: Mapping[str, str]


ABOUT: Mapping[str, str] = {
    "overview": "the numbers of each device, and what the peak consists of",
    "peak": "what was held when most was: by category, line, module and size",
    "held": "what is held at any other moment (--at)",
    "timeline": "allocated, reserved, and what the allocated bytes are for, over time",
    "growth": "what survives the steps, and the line that leaks",
    "oom": "why a request failed, whose the memory was, and what would have helped",
    "fragmentation": "what is reserved and not in use, and what pins it",
    "settings": "what other values of PYTORCH_CUDA_ALLOC_CONF would have reserved (--settings)",
    "churn": "how often memory is requested, and how often that reaches the device",
    "diff": "what changed between two moments (--before-at) or two snapshots (--before)",
    "outside": "memory outside torch's allocator (the CUDA context, NCCL), where metrics tell",
    "fit": "the peak at another batch size or sequence length, from runs at two or three sizes",
    "shard": "the peak if more ranks share the model's state (ZeRO, FSDP)",
}
"""What each question answers, in one line; in the order of the list."""

NEEDS: Mapping[str, str] = {
    "diff": "--before FILE",
    "fit": "--size 4 --also OTHER=8 --target 16",
}
"""Options that a question cannot do without, as on the command line."""
