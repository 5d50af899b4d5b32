"""The names of the questions about snapshots. Importing it imports no question."""

from __future__ import annotations

from collections.abc import Mapping

ABOUT: Mapping[str, str] = {
    "overview": "why a request failed, what leaks, the numbers, and what the peak consists of",
    "peak": "what was held when most was: by category, line, module and size",
    "held": "what is held at any other moment (--at)",
    "timeline": "allocated, reserved, and what the allocated bytes are for, over time",
    "growth": "what survives the steps, and the line that leaks",
    "oom": "why a request failed, what held the memory, and what would have helped",
    "fragmentation": "what is reserved and not in use, and what pins it",
    "settings": "what other values of PYTORCH_CUDA_ALLOC_CONF would have reserved (--settings)",
    "diff": "what changed between two moments (--before-at) or two snapshots (--before)",
    "outside": "memory outside torch's allocator (the CUDA context, NCCL), if metrics were sampled",
    "fit": "the peak at another batch size or sequence length, from runs at two or three sizes",
    "shard": "the peak if more ranks share the model's state (ZeRO, FSDP)",
}
"""What each question answers, in one line; in the order of the list."""
